"""The log's journal on Apache Kafka: one partition of a topic holds every change, in order."""
