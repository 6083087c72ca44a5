"""The merge rule: a row is a join semilattice, so replicas agree whatever the order of arrival.

Each column keeps its own latest (clock, source) → value. A delete is a tombstone with its (clock, source). A column
that is not newer than the tombstone is gone; a later write brings the row back with only what was written after.
`pipeline.merge` runs the same rule in Spark, against the same test vectors.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mainstem.model.change import Change, Operation
from mainstem.model.errors import Invalid
from mainstem.model.hlc import Hlc


class Stamp(NamedTuple):
    """When and by whom: compared as a tuple, so that two sources never tie."""

    hlc: Hlc
    source: str


class Cell(NamedTuple):
    """A column's value with the stamp of the write that set it."""

    stamp: Stamp
    value: Any


class Row(msgspec.Struct, frozen=True):
    """The merged state of one key: the cells that are alive, and the latest delete."""

    cells: Mapping[str, Cell] = {}
    tombstone: Stamp | None = None

    @property
    def visible(self) -> bool:
        """Whether a reader of the table sees the row. A row written with no columns at all is not there."""
        return bool(self.cells)

    def values(self) -> dict[str, Any]:
        """The row as readers see it."""
        return {name: cell.value for name, cell in self.cells.items()}


EMPTY = Row()


def row_of(change: Change) -> Row:
    """The row that one stamped change makes on its own."""
    if change.hlc is None:
        raise Invalid(f"a change is merged after it is stamped. table={change.table} key={change.key}")
    stamp = Stamp(change.hlc, change.source)
    if change.operation is Operation.DELETE:
        return Row(tombstone=stamp)
    return Row(cells={name: Cell(stamp, value) for name, value in (change.columns or {}).items()})


def join(left: Row, right: Row) -> Row:
    """The least row that holds what both know. Commutative, associative, idempotent."""
    tombstone = max(filter(None, (left.tombstone, right.tombstone)), default=None)
    cells: dict[str, Cell] = {}
    for name in left.cells.keys() | right.cells.keys():
        cell = _later(left.cells.get(name), right.cells.get(name))
        if tombstone is None or cell.stamp > tombstone:
            cells[name] = cell
    return Row(cells=cells, tombstone=tombstone)


def merge(changes: Iterable[Change], onto: Row = EMPTY) -> Row:
    """Merge changes of one key, in any order, onto a row."""
    row = onto
    for change in changes:
        row = join(row, row_of(change))
    return row


def _later(left: Cell | None, right: Cell | None) -> Cell:
    if left is None or right is None:
        present = left or right
        assert present is not None
        return present
    if left.stamp != right.stamp:
        return max(left, right, key=lambda cell: cell.stamp)
    # One source never writes a column twice with one clock; if it does, the order must still not matter.
    return max(left, right, key=lambda cell: msgspec.json.encode(cell.value, order="deterministic"))
