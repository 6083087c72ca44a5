"""A batch: the unit that is admitted, appended and acknowledged as one.

A batch keeps its payload as the client sent it. Its changes are expanded when the log is sealed, so that taking one
in costs nothing per change but the decode that validates it.
"""

from enum import IntEnum

import msgspec

from mainstem.model.change import SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition


class Encoding(IntEnum):
    """How a payload is written. The numbers are stored in the log: never reuse one."""

    # The JSON text of the `events` array of the CDC protocol; the log stamps the clocks.
    CDC_JSON = 1
    # MessagePack of a list of `Change`, each with its own clock.
    CHANGES = 2
    # The namespace in UTF-8, a zero byte, and a SyncPush of the sync protocol: each delta has its writer's clock.
    DELTAS = 3
    # The length of a shard's name (two bytes, the lower one first), the name in UTF-8, and what CDC_JSON has.
    CDC_JSON_OF_SHARD = 4
    # One record batch of a partition of a topic, see `wire/kafka/payload.py`. (6 is the Mongo door's.)
    KAFKA_RECORDS = 5
    # What `wire.mongo.batches` writes: the documents that one command, or one transaction, changed.
    DOCUMENTS = 6
    # Rows of one table that came over HTTP, see `wire/rows.py`: a JSON array of objects, or an Arrow stream.
    ROWS_JSON = 11
    ROWS_ARROW = 12
    # An event of Debezium's as it was posted, see `wire/debezium_posts.py`.
    ENVELOPE = 13


class Priority(IntEnum):
    """How much a batch matters to its producer where not everything can be taken."""

    LOW = 1
    NORMAL = 2
    HIGH = 3


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a door decoded and validated, not yet let in."""

    source: SourceId
    sequence: int
    count: int
    encoding: Encoding
    payload: bytes
    # Of the payload: tells a retry from another batch under the same sequence.
    fingerprint: int
    tables: frozenset[TableName]
    priority: Priority = Priority.NORMAL
    # The highest clock of changes that bring their own: what the log stamps from here on comes after it, also where the
    # writer's clock runs ahead of ours.
    hlc_max: Hlc = Hlc(0)


def shard_payload(shard: str, events: bytes) -> bytes:
    """The events of a batch, with the shard that they come from."""
    name = shard.encode()
    return len(name).to_bytes(2, "little") + name + events


def split_shard(payload: bytes | memoryview) -> tuple[str, bytes | memoryview]:
    """The shard, and the events. Raises ValueError where there is no such name."""
    size = int.from_bytes(payload[:2], "little")
    name = bytes(payload[2 : 2 + size])
    if len(name) != size or not size:
        raise ValueError(f"shard. expected={size} bytes got={len(name)}")
    return name.decode(), payload[2 + size :]


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """A batch that passed the gate. Only `admission` builds one."""

    batch: Batch


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a frame of the log says of its batch, without the payload."""

    first: LogPosition
    count: int
    hlc_first: Hlc
    arrival_ms: int
    source: SourceId
    sequence: int
    fingerprint: int
    encoding: Encoding

    @property
    def last(self) -> LogPosition:
        """The position of the batch's last change."""
        return LogPosition(self.first + self.count - 1)
