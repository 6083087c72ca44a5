"""schemathesis on the Iceberg REST specification: `python -m tests.compat.spec path/to/the/specification.yaml`."""
