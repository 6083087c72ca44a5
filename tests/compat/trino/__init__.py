"""Trino on the catalog's tables: `python -m tests.compat.trino`."""
