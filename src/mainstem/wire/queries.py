"""Queries that the pipeline runs for the gateway: the order as JSON, the rows as frames of Arrow.

A frame is a length of four bytes (big-endian) and that many bytes of a complete Arrow stream, so that each can be read
by itself. The last frame has the length zero: without it, the answer was cut off.
"""

import msgspec
import pyarrow as pa

FRAME_BYTES_MAX = 64 * 1024 * 1024
END = b"\x00\x00\x00\x00"


class ViewOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A table at a snapshot, under the name that the statement has for it."""

    view: str
    namespace: str
    table: str
    snapshot_id: int | None
    # Of a table in Delta's format.
    delta_location: str | None = None


class QueryOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A statement in Spark's SQL."""

    id: str
    sql: str
    views: tuple[ViewOrder, ...]
    limit: int
    timeout_s: float
    # An order of `wire/mongo/stages`, where executors are to run a pipeline's stages over the documents in the rows.
    stages: str = ""


class QueryFailed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why there are no rows. `is_wrong`: the statement is to blame, and not the engine.

    `is_denied`: one of its tables names files that are not its own.
    """

    message: str
    is_wrong: bool = False
    is_denied: bool = False


def frame(batch: pa.RecordBatch) -> bytes:
    """One batch, with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    return len(content).to_bytes(4, "big") + bytes(content)


def unframe(content: bytes) -> pa.RecordBatch:
    """The batch of one frame."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_next_batch()
