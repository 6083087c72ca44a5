"""The Mongo door: MongoDB's commands on the log and its tables."""
