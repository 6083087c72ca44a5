"""The rows of a gateway that has rules, as far as rules need them: merged, and what filters saw of them over time.

A fold of the gateway's feed, so it can be made again at any time. It is only kept for gateways with rules, and bounded.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mainstem.feeds.entries import Entry
from mainstem.feeds.rules import EVERYTHING, RULES_COLUMN, RULES_ROW, Rules, View, read_rules
from mainstem.model.errors import Invalid, Overloaded
from mainstem.model.hlc import Hlc
from mainstem.model.merge import Cell, Row, Stamp, join
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import Op, RowDelta, decode_response, parse_value

ROWS_MAX = 1_000_000
_RETRY_AFTER_S = 60.0

# What filters see of a row; None where the row is not there.
Seen = Mapping[str, Any] | None


class ShadowRow:
    """A merged row, and since which positions filters saw what of it."""

    __slots__ = ("positions", "row", "seen")

    def __init__(self) -> None:
        self.row = Row()
        self.positions: list[int] = []
        self.seen: list[Seen] = []

    def at(self, position: LogPosition) -> Seen:
        """What filters saw at a position."""
        index = bisect_right(self.positions, position)
        return self.seen[index - 1] if index else None

    def during(self, first: int, last: int | None = None) -> list[Seen]:
        """Everything that filters saw from the position `first` on, up to `last` or up to now."""
        end = None if last is None else bisect_right(self.positions, last)
        return self.seen[max(0, bisect_right(self.positions, first) - 1) : end]


class NewColumns(Exception):
    """Rules came up that look at columns which were not followed: the shadow is to be made again with them."""

    def __init__(self, columns: frozenset[str]) -> None:
        super().__init__(f"columns={sorted(columns)}")
        self.columns = columns


class Shadow:
    """The rows of one gateway up to `position`, and the rules over time."""

    def __init__(self, columns: frozenset[str] = frozenset(), rows_max: int = ROWS_MAX) -> None:
        self.position = NOWHERE
        self._columns = columns
        self._rows_max = rows_max
        self._count = 0
        self._tables: dict[str, dict[str, ShadowRow]] = {}
        self._rules_since: list[int] = []
        # The stamp of the rules that held before the first position.
        self._rules_began: tuple[int, str] = (-1, "")
        self._rules: list[Rules | None] = []

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are followed."""
        return self._columns

    def begin(self, entries: Iterable[Entry]) -> None:
        """Take in what was there before the first position, in any order. Raises NewColumns, and Overloaded."""
        for entry in entries:
            (delta,) = decode_response(entry.encoded).deltas
            if entry.table == RULES_TABLE:
                self._begin_rules(delta)
            else:
                self._take(delta, NOWHERE)

    def _begin_rules(self, delta: RowDelta) -> None:
        """The newest of several counts, by the clock."""
        if delta.row_id != RULES_ROW or (delta.hlc, delta.client_id) <= self._rules_began:
            return
        self._rules_began = delta.hlc, delta.client_id
        self._rules_since, self._rules = [], []
        self._take_rules(delta, NOWHERE)

    def advance(self, entries: Iterable[Entry], position: LogPosition) -> None:
        """Take in what arrived, up to a position. Raises NewColumns, and Overloaded at the bound."""
        for entry in entries:
            if entry.position <= self.position:
                continue
            (delta,) = decode_response(entry.encoded).deltas
            if entry.table == RULES_TABLE:
                self._take_rules(delta, entry.position)
            else:
                self._take(delta, entry.position)
            self.position = entry.position
        self.position = max(self.position, position)

    def rules_at(self, position: LogPosition) -> Rules | None:
        """The rules that held at a position; None where there were none."""
        index = bisect_right(self._rules_since, position)
        return self._rules[index - 1] if index else None

    def view_at(self, position: LogPosition, claims: Mapping[str, Any]) -> View:
        """What a viewer saw at a position."""
        rules = self.rules_at(position)
        return EVERYTHING if rules is None else rules.view(claims)

    def views_since(self, position: LogPosition, claims: Mapping[str, Any]) -> list[tuple[int, View]]:
        """What a viewer saw at a position, and each other view that came after it, with the position where it began."""
        views: list[tuple[int, View]] = [(position, self.view_at(position, claims))]
        for index in range(bisect_right(self._rules_since, position), len(self._rules)):
            rules = self._rules[index]
            view = EVERYTHING if rules is None else rules.view(claims)
            if view != views[-1][1]:
                views.append((self._rules_since[index], view))
        return views

    def find(self, table: str, row_id: str) -> ShadowRow | None:
        """One row, if it was ever written."""
        return self._tables.get(table, {}).get(row_id)

    def rows(self) -> Iterator[tuple[str, str, ShadowRow]]:
        """Every row that was ever written."""
        for table, rows in self._tables.items():
            for row_id, row in rows.items():
                yield table, row_id, row

    def _take(self, delta: RowDelta, position: LogPosition) -> None:
        rows = self._tables.setdefault(delta.table, {})
        found = rows.get(delta.row_id)
        if found is None:
            self._count += 1
            if self._count > self._rows_max:
                raise Overloaded(
                    f"too many rows for rules. expected=at most {self._rows_max}", retry_after_s=_RETRY_AFTER_S
                )
            found = rows[delta.row_id] = ShadowRow()
        found.row = join(found.row, row_of_delta(delta))
        seen = self._seen(found.row)
        if not found.seen or found.seen[-1] != seen:
            found.positions.append(position)
            found.seen.append(seen)

    def _take_rules(self, delta: RowDelta, position: LogPosition) -> None:
        rules = rules_of(delta)
        if rules is not None and not rules.columns <= self._columns:
            raise NewColumns(self._columns | rules.columns)
        self._rules_since.append(position)
        self._rules.append(rules)

    def _seen(self, row: Row) -> Seen:
        if not row.visible:
            return None
        return {name: parse_value(row.cells[name].value) for name in self._columns if name in row.cells}


def rules_of(delta: RowDelta) -> Rules | None:
    """The rules that a row of the table of rules holds; None where it was deleted, or is none of ours."""
    if delta.op == Op.DELETE or delta.row_id != RULES_ROW:
        return None
    for each in delta.columns:
        if each.column == RULES_COLUMN:
            try:
                return read_rules(parse_value(each.value))
            except Invalid:
                # Written by something else than this door: clients are shown nothing rather than everything.
                return Rules()
    return None


def row_of_delta(delta: RowDelta) -> Row:
    """The row that one delta makes on its own; the values are JSON text."""
    stamp = Stamp(Hlc(delta.hlc), delta.client_id)
    if delta.op == Op.DELETE:
        return Row(tombstone=stamp)
    return Row(cells={each.column: Cell(stamp, each.value) for each in delta.columns})
