"""MongoDB's wire protocol, its values as ordered bytes, and what a batch of documents looks like in the log."""
