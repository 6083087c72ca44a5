"""Iceberg's own REST Compatibility Kit, run against a real server: `python -m tests.compat.rck`."""
