"""What the gateway and a sandbox process say to each other: frames over a socket.

    order    length (4 bytes) and a pickle: the gateway is trusted by its own child
    answer   kind (1 byte), length (4 bytes) and JSON or a complete Arrow stream: the gateway trusts nothing that comes
             back, so no pickle goes that way and no frame is larger than FRAME_BYTES_MAX

One answer to each order, and one order at a time.
"""

import pickle
import socket
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from mainstem.model import Conflict, Denied, Invalid, MainstemError, NotFound, TableName
from mainstem.query.binding import BoundTable
from mainstem.query.sandbox.session import SandboxSettings
from mainstem.query.statements.statement import Statement

T = TypeVar("T")

FRAME_BYTES_MAX = 64 * 1024 * 1024
JSON, ROWS, END, ERROR = b"J", b"R", b"Z", b"E"
# In the metadata of the schema that answers `Run`: the columns with their SQL types, as JSON.
COLUMNS = b"mainstem.columns"
_LENGTH_BYTES = 4
_ERRORS: dict[str, type[MainstemError]] = {
    kind.__name__: kind for kind in (MainstemError, Invalid, Denied, NotFound, Conflict)
}


class Hello(msgspec.Struct, frozen=True):
    """The first order: the bounds, and the folder to have a session ready for. Answered by `Ready`."""

    settings: SandboxSettings
    folder: str | None


class Check(msgspec.Struct, frozen=True):
    """Parse a statement and hold it against the list of what is allowed."""

    sql: str


class PlanScans(msgspec.Struct, frozen=True):
    """Which scans a checked statement makes, over tables with these columns."""

    sql: str
    tables: Mapping[TableName, Mapping[str, str]]


class Translate(msgspec.Struct, frozen=True):
    """A checked statement in Spark's SQL."""

    statement: Statement
    names: Collection[TableName]


class Run(msgspec.Struct, frozen=True):
    """Start a checked statement over these tables, in a session that may read these folders."""

    statement: Statement
    tables: tuple[BoundTable, ...]
    folders: frozenset[str]


class Next(msgspec.Struct, frozen=True):
    """The next rows of the statement that runs."""


class Stop(msgspec.Struct, frozen=True):
    """Forget the statement that runs."""


Order = Hello | Check | PlanScans | Translate | Run | Next | Stop


class Column(msgspec.Struct, frozen=True):
    """A column of the result, with the name of its type in SQL."""

    name: str
    type: str


class Ready(msgspec.Struct, frozen=True):
    """The process is free again. `spent`: it has taken so much memory that a new one should take its place."""

    spent: bool


class Failure(msgspec.Struct, frozen=True):
    """An error of ours, by its name."""

    kind: str
    message: str
    reason: str | None = None

    def error(self) -> MainstemError:
        """The error itself. A name that is not on the list is a fault."""
        kind = _ERRORS.get(self.kind, MainstemError)
        if kind is Invalid and self.reason:
            return Invalid(self.message, reason=self.reason)
        return kind(self.message)


def failure_of(error: MainstemError) -> Failure:
    """An error as it travels."""
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS), "MainstemError")
    return Failure(kind, str(error), getattr(error, "reason", None))


def send_order(channel: socket.socket, order: Order, seconds: float) -> None:
    """`seconds`: after that the process ends itself, should the gateway be gone by then."""
    data = pickle.dumps((seconds, order), protocol=5)
    channel.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def take_order(channel: socket.socket) -> tuple[float, Order] | None:
    """The next order; None where the gateway has gone."""
    head = _exactly(channel, _LENGTH_BYTES)
    if head is None:
        return None
    data = _exactly(channel, int.from_bytes(head, "big"))
    if data is None:
        return None
    seconds, order = pickle.loads(data)
    return float(seconds), order


def send_answer(channel: socket.socket, kind: bytes, body: bytes | pa.Buffer) -> None:
    """One frame of an answer."""
    channel.sendall(kind + len(body).to_bytes(_LENGTH_BYTES, "big"))
    channel.sendall(body)


def take_answer(channel: socket.socket) -> tuple[bytes, bytearray] | None:
    """The next frame; None where the process has ended or says what it must not."""
    head = _exactly(channel, 1 + _LENGTH_BYTES)
    if head is None:
        return None
    length = int.from_bytes(head[1:], "big")
    body = _exactly(channel, length) if length <= FRAME_BYTES_MAX else None
    return None if body is None else (bytes(head[:1]), body)


def stream_of(schema: pa.Schema, batch: pa.RecordBatch | None) -> pa.Buffer:
    """A complete Arrow stream: each can be read by itself, dictionaries included."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return sink.getvalue()


def read_stream(body: bytearray) -> tuple[pa.Schema, pa.RecordBatch | None]:
    """The schema and the batch of one frame."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return reader.schema, None
        batch.validate()
        return reader.schema, batch


def decoded(body: bytearray, kind: type[T]) -> T:
    """A JSON answer."""
    return msgspec.json.decode(body, type=kind)


def _exactly(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view: Any = memoryview(data)
    while view:
        try:
            count = channel.recv_into(view)
        except ConnectionError:
            return None
        if not count:
            return None
        view = view[count:]
    return data
