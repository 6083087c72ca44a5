"""What the executors are told of a pass: per table, which rows count, what they become, and where files go.

It is made by the planner on the driver and travels with the job, so it holds nothing but plain values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, Lineage, LogPosition
from mainstem.tables.evolution import Column
from mainstem.tables.parquet import WriterOptions
from mainstem.tables.since import Since
from mainstem.tables.types import ColumnType

# The parts of a logical table, as descriptions name them.
STATE, HISTORY, DEAD_LETTERS = "state", "history", "dead_letters"

# What a job's rows are besides changes: what the table has now of the keys, and deletes that came before.
CHANGE, OLD_ROW, TOMBSTONE = 0, 1, 2

# One row per file that was written, and per table and task one without a file that counts what was read.
DESCRIPTIONS = pa.schema(
    [
        ("namespace", pa.string()),
        ("table", pa.string()),
        ("part", pa.string()),
        # What the format's commit wants to know of the file, as JSON. Null: nothing was written.
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        # Of a state: the hashes of the file's keys, in the order of its rows; 16 bytes each.
        ("hashes", pa.binary()),
        # The hashes of keys that have no row any more; and how many changes were read.
        ("gone", pa.binary()),
        ("read", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partition spec."""

    name: str
    source: str
    transform: str


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """Files of an Iceberg table."""

    location: str
    # Name, type and id of every column, in the table's order.
    fields: tuple[tuple[str, ColumnType, int], ...]
    spec_id: int
    partition: tuple[PartitionField, ...]
    options: WriterOptions


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """Files of a Delta table."""

    url: str
    path: str
    # Delta's own description of the table: its schema, partition columns and properties.
    metadata: Mapping[str, Any]
    # Partition columns that the rows do not have by themselves.
    derived: tuple[PartitionField, ...] = ()
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    # What the files' schema was before columns changed their types, as Delta writes it.
    before: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the physical tables. Rows up to `after` are in it already."""

    target: IcebergTarget | DeltaTarget
    after: LogPosition
    # Ranges of positions whose rows need no writing: their segments become files of the table as they are.
    linked: tuple[tuple[LogPosition, LogPosition], ...] = ()


@dataclass(frozen=True, slots=True)
class TableTask:
    """One logical table in a pass."""

    table: TableName
    # Rows beyond are the next pass's.
    last: LogPosition
    columns: tuple[Column, ...] = ()
    seen: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Columns that the table cannot have, with the reason.
    refused: Mapping[str, str] = field(default_factory=dict)
    # Why no change can be taken, where no door may write the table: all of them are dead letters.
    refusal: str = ""
    # Whether rows may be partial, late or out of order: then columns are merged one by one with the old rows.
    merges: bool = False
    # Whether every change is a row of its own, which replaces none.
    appends: bool = False
    # Whether the tables need nothing but the last change of each key: the others need not come to a Python worker.
    latest_only: bool = False
    # Where rows come as no more than their positions: the segments that the rest of them is in.
    segments: tuple[str, ...] = ()
    # Columns that came later than the table: old rows lack them.
    since: Since = field(default_factory=Since)
    # Which log the positions of the changes are of.
    lineage: Lineage = field(default_factory=Lineage)
    state: Part | None = None
    history: Part | None = None
    # None: a table for dead letters is made once there is one.
    dead_letters: Part | None = None

    @property
    def after(self) -> LogPosition:
        """Where the part that is behind most begins. Every part passes over what it has."""
        parts = self.state, self.history, self.dead_letters if self.refusal else None
        return min((part.after for part in parts if part is not None), default=NOWHERE)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Everything that a task needs to know."""

    tables: Mapping[TableName, TableTask]
    # How to reach the store: properties as a catalog has them.
    store: Mapping[str, str]
    now_ms: int
