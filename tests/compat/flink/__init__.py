"""Flink on the catalog's tables: `python -m tests.compat.flink`."""
