"""What the local database keeps. These shapes are on people's disks: change them only with a new `FORMAT`."""

from functools import lru_cache
from typing import Any

import msgspec

from mainstem.model.errors import Invalid
from mainstem.model.hlc import Hlc
from mainstem.model.merge import Cell, Row, Stamp
from mainstem.wire.sync import RowDelta

FORMAT = 1

SCHEMA = """
CREATE TABLE _mainstem_state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE _mainstem_columns (
  table_name TEXT NOT NULL, column_name TEXT NOT NULL, type TEXT NOT NULL, PRIMARY KEY (table_name, column_name));
-- The merged rows, of tables that the app has not declared too: a later version of it may.
CREATE TABLE _mainstem_rows (
  table_name TEXT NOT NULL, row_id TEXT NOT NULL, cells TEXT NOT NULL, tombstone_hlc INTEGER, tombstone_source TEXT,
  merged TEXT, PRIMARY KEY (table_name, row_id)) WITHOUT ROWID;
-- What the server has not acknowledged, by clock.
CREATE TABLE _mainstem_queue (
  hlc INTEGER PRIMARY KEY, table_name TEXT NOT NULL, row_id TEXT NOT NULL, op INTEGER NOT NULL, columns TEXT NOT NULL,
  client_id TEXT NOT NULL, delta_id TEXT NOT NULL);
CREATE INDEX _mainstem_queue_rows ON _mainstem_queue (table_name, row_id);
-- What the server refused for good.
CREATE TABLE _mainstem_dead (
  hlc INTEGER PRIMARY KEY, table_name TEXT NOT NULL, row_id TEXT NOT NULL, op INTEGER NOT NULL, columns TEXT NOT NULL,
  client_id TEXT NOT NULL, delta_id TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL, at_ms INTEGER NOT NULL);
-- Rows edited here that no completed pull has followed yet.
CREATE TABLE _mainstem_touched (
  table_name TEXT NOT NULL, row_id TEXT NOT NULL, pending INTEGER NOT NULL, columns TEXT NOT NULL,
  PRIMARY KEY (table_name, row_id)) WITHOUT ROWID;
"""


class State(msgspec.Struct, frozen=True):
    """Read and written in every transaction that stamps or moves the cursor."""

    client_id: str
    # The last clock value issued or seen.
    clock: Hlc = Hlc(0)
    # The highest clock that the server is known to have accepted: stamping again must stay after it.
    observed: Hlc = Hlc(0)
    # What to add to the wall clock; learnt when the server refuses our clock.
    offset_ms: int = 0
    # The server's arrival clock up to which everything is here; 0 before the first sync.
    cursor: int = 0
    pending: int = 0
    dead: int = 0
    # Rows with edits of ours that the last checkpoint did not have: newer than it, or hidden. The pull tells.
    unconfirmed: tuple[tuple[str, str], ...] = ()


class MergedMark(msgspec.Struct, frozen=True):
    """Someone else's change met ours. `took`: columns that are now theirs; `kept`: where ours is newer."""

    by: str
    hlc: Hlc
    took: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class RowRecord(msgspec.Struct, frozen=True):
    """A merged row, and what a merge last did to an edit made here."""

    row: Row
    merged: MergedMark | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """A delta that the server refused for good."""

    delta: RowDelta
    reason: str
    message: str
    at_ms: int

    @property
    def id(self) -> str:
        """What `retry_dead_letter` and `discard_dead_letter` ask for."""
        return self.delta.delta_id


class Touched(msgspec.Struct, frozen=True):
    """Edits of a row: how many wait, and of which columns."""

    pending: int = 0
    columns: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode_values = msgspec.json.Decoder(dict[str, Any]).decode
# Columns and clients come again and again.
_json_name = lru_cache(4_096)(_encode)
_decode_cells = msgspec.json.Decoder(list[tuple[int, str, dict[str, Any]]]).decode


def cells_text(row: Row) -> str:
    """The cells, those of one write together: most rows were written at once, and then their stamp stands once."""
    writes: dict[Stamp, dict[str, Any]] = {}
    for name, cell in row.cells.items():
        writes.setdefault(cell.stamp, {})[name] = cell.value
    return _encode([(stamp.hlc, stamp.source, values) for stamp, values in writes.items()]).decode()


def written_cells(delta: RowDelta) -> tuple[str, dict[str, Any]]:
    """The cells of a row that is one write, and their values. The values' own JSON text is kept, and read once."""
    columns = b",".join([b"%b:%b" % (_json_name(each.column), each.value) for each in delta.columns])
    try:
        values = _decode_values(b"{%b}" % columns)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"a value is not UTF-8 JSON. got={error}", reason="invalid_value") from error
    if len(values) != len(delta.columns):
        raise Invalid("a delta writes a column twice", reason="invalid_value")
    return (b"[[%d,%b,{%b}]]" % (delta.hlc, _json_name(delta.client_id), columns)).decode(), values


def row_of_text(cells: str, tombstone_hlc: int | None, tombstone_source: str | None) -> Row:
    """The row that `cells_text` and its tombstone describe."""
    kept = {}
    for hlc, source, values in _decode_cells(cells):
        stamp = Stamp(Hlc(hlc), source)
        for name, value in values.items():
            kept[name] = Cell(stamp, value)
    tombstone = None if tombstone_hlc is None else Stamp(Hlc(tombstone_hlc), tombstone_source or "")
    return Row(cells=kept, tombstone=tombstone)
