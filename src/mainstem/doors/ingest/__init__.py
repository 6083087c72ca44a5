"""Rows over plain HTTP: JSON, JSON lines, Arrow, CSV, and the events that Debezium Server posts."""
