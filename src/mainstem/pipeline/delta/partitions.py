"""Partitions of Delta tables. Delta knows only columns as they are: a transform becomes a column of its own.

The same declaration as for Iceberg, and the same names. The column is filled by the writer and stands behind all
others. Readers need not name it: files of one day have bounds of one day.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainstem.model.errors import Invalid
from mainstem.pipeline.passes.plan import PartitionField
from mainstem.tables.partitions import field_name, iceberg_transform, source_of, takes
from mainstem.tables.settings import Transform
from mainstem.tables.types import STRING, ColumnType

_DATE, _INT = ColumnType("date"), ColumnType("int")


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A column to partition by: one that the rows have, or one that is made from such a one."""

    name: str
    type: ColumnType
    source: str
    transform: str = "identity"

    @property
    def is_derived(self) -> bool:
        """Whether the writer has to fill it."""
        return self.name != self.source

    @property
    def field(self) -> PartitionField:
        """As the executors fill it."""
        return PartitionField(self.name, self.source, self.transform)


def partition_columns(transforms: Sequence[Transform], types: Mapping[str, ColumnType]) -> tuple[PartitionColumn, ...]:
    """The columns that stand for the transforms. `types` are those of the columns that rows have."""
    return tuple(_column(transform, types) for transform in transforms)


def _column(transform: Transform, types: Mapping[str, ColumnType]) -> PartitionColumn:
    source, name = source_of(transform), field_name(transform)
    if source not in types:
        raise Invalid(f"the table cannot be partitioned. expected=a declared column got={source}")
    if not takes(transform.name, types[source]):
        raise Invalid(f"the table cannot be partitioned. {transform.name} cannot be taken of {types[source]}")
    if transform.name == "identity" and transform.alias is None:
        return PartitionColumn(source, types[source], source)
    if name in types:
        raise Invalid(f"the table cannot be partitioned. it has a column of the name {name}: give another by `as`")
    stored = {"year": _INT, "month": STRING, "day": _DATE, "hour": STRING, "bucket": _INT}
    return PartitionColumn(name, stored.get(transform.name, types[source]), source, iceberg_transform(transform))


def derived(columns: Sequence[PartitionColumn]) -> list[tuple[str, ColumnType]]:
    """Those that the rows do not have by themselves."""
    return [(column.name, column.type) for column in columns if column.is_derived]
