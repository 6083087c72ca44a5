"""Kafka's protocol as bytes and values: framing, messages, record batches. Sans-I/O; built on kio's generated schemas.

Nothing is re-exported: `messages` loads kio, which a process that only reads record batches (the sealer) can do
without.
"""
