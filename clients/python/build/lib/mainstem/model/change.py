"""The change: the one value that every door produces and every table is made of."""

from enum import StrEnum
from typing import Any, NewType

import msgspec

from mainstem.model.hlc import Hlc
from mainstem.model.names import DEFAULT_NAMESPACE
from mainstem.model.position import LogPosition

SourceId = NewType("SourceId", str)

# A time of the source's outside the years 1 to 9999 is none that tables and their readers can hold.
SOURCE_TIME_MS_MIN, SOURCE_TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999


class Operation(StrEnum):
    """What happened to the row. `READ` is a row of an initial snapshot: it merges as an insert does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    READ = "read"


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change of one row.

    `columns` holds only what was written: a column set to None is a value, a column that is missing is not.
    `hlc` is None until the change is stamped; a door whose clients bring their own clocks sets it.
    """

    namespace: str = DEFAULT_NAMESPACE
    table: str
    key: str
    operation: Operation
    columns: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    hlc: Hlc | None = None
    source: SourceId
    # The sequence of the batch that brought the change, and the change's own sequence at its source.
    batch_sequence: int
    sequence: int | None = None
    # An id given by the client, where its protocol has one.
    id: str | None = None
    # When the source says it happened, in milliseconds since 1970.
    source_time_ms: int | None = None
    metadata: dict[str, Any] | None = None
    position: LogPosition | None = None
