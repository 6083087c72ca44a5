"""Freshness `latest`: what is durable in the log but not yet in the table, laid over the snapshot.

The rule is `mainstem.model.merge`'s own `join`, run on the rows that have pending changes and on no others. The rows
of the snapshot keep their typed values: here it is only decided, column by column, whether the row's value or the
pending one is the later. Values that do not fit their column widen it for this query, by the rule by which the
pipeline will for good (`mainstem.tables.types`).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.model import Hlc, Row, Stamp, join
from mainstem.model.merge import Cell
from mainstem.query.ports import LoadedTable, PendingRow
from mainstem.query.sandbox.encode import VARIANT
from mainstem.query.sandbox.session import Session
from mainstem.query.tables import column_kinds, columns, columns_since, empty_sql, hlc_max, scan_sql, sql_type
from mainstem.sql import duckdb_name
from mainstem.tables.layout import STATE_COLUMNS, column_name, stored_name
from mainstem.tables.types import Kind, Nested, join_kinds, kind_of, type_of

RESERVED = {name: sql_type(kind) for name, kind in STATE_COLUMNS}

_INT_MAX = 1 << 53
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1


class _Base(msgspec.Struct, frozen=True):
    """Stands for the value that the snapshot has."""


_BASE = _Base()


def overlay_sql(
    session: Session,
    table: LoadedTable | None,
    history: LoadedTable | None,
    pending: Mapping[str, PendingRow],
    label: str,
) -> str:
    """SQL that reads the table with `pending` merged in. Runs in a worker thread; leaves its parts in the session."""
    base_types = columns(table.metadata) if table else {}
    if not pending:
        return scan_sql(session, table) if table else empty_sql(base_types or RESERVED)
    base_sql = scan_sql(session, table) if table else empty_sql(RESERVED)
    keys = session.arrow(f"{label}_keys", pa.table({"k": pa.array(list(pending), pa.string())}))
    hits = f"temp.{duckdb_name(label + '_hits')}"
    session.scratch(hits, f"SELECT * FROM ({base_sql}) WHERE _key IN (SELECT k FROM {keys})")
    rows = _rows_of_snapshot(session, hits, table)
    tombstones = _late_tombstones(session, history, keys, table, pending)
    merged = {
        key: join(join(rows.get(key, Row()), tombstones.get(key, Row())), waiting.row)
        for key, waiting in pending.items()
    }
    layer = _Layer(merged, pending, base_types, column_kinds(table.metadata) if table else {})
    winners = session.arrow(f"{label}_rows", layer.arrow())
    types = {name: layer.type_of(name, session, winners) for name in layer.user_columns}
    return _union(base_sql, keys=keys, hits=hits, winners=winners, base_types=base_types, types=types, layer=layer)


class _Layer:
    """The merged rows as columns: for each, its pending text, and who won."""

    def __init__(
        self,
        merged: Mapping[str, Row],
        pending: Mapping[str, PendingRow],
        base_types: Mapping[str, str],
        kinds: Mapping[str, Kind],
    ) -> None:
        self.merged = {key: row for key, row in merged.items() if row.visible}
        self.pending = pending
        self.base_types = base_types
        self.kinds = kinds
        # The same few names come with every row.
        stored = lru_cache(maxsize=None)(stored_name)
        self._cells = [{stored(name): cell for name, cell in row.cells.items()} for row in self.merged.values()]
        seen = dict.fromkeys(name for name in base_types if name not in RESERVED)
        for cells in self._cells:
            seen.update(dict.fromkeys(cells))
        self.user_columns = tuple(seen)
        self.index = {name: number for number, name in enumerate(self.user_columns)}

    def arrow(self) -> pa.Table:
        """One row per visible key: its stamps, and per column v{i} (pending text), p{i} and b{i} (who won)."""
        data: dict[str, Any] = {"k": pa.array(list(self.merged), pa.string())}
        tops = [max(cell.stamp for cell in row.cells.values()) for row in self.merged.values()]
        data["_hlc"] = pa.array([top.hlc for top in tops], pa.int64())
        data["_source"] = pa.array([top.source for top in tops], pa.string())
        data["_position"] = pa.array([self.pending[key].position for key in self.merged], pa.int64())
        clocks = [clocks_text(row, self.user_columns) for row in self.merged.values()]
        data["_clocks"] = pa.array(clocks, pa.string())
        for name, number in self.index.items():
            cells = [cells.get(name) for cells in self._cells]
            ours = [cell is not None and cell.value is not _BASE for cell in cells]
            text = json_of if self.base_types.get(name) == VARIANT else text_of
            data[f"v{number}"] = pa.array(
                [text(cell.value) if cell and won else None for cell, won in zip(cells, ours, strict=True)],
                pa.string(),
            )
            data[f"p{number}"] = pa.array(ours, pa.bool_())
            data[f"b{number}"] = pa.array([cell is not None and cell.value is _BASE for cell in cells], pa.bool_())
        return pa.table(data)

    def type_of(self, name: str, session: Session, winners: str) -> str:
        """The column's SQL type once the pending values are in it."""
        found = [cells[name].value for cells in self._cells if name in cells]
        values = [value for value in found if value is not _BASE and value is not None]
        base = self.base_types.get(name)
        given = column_name(name)
        if base == VARIANT:
            # It takes every value as it is.
            return base
        kind = self.kinds.get(given)
        if base is None or (kind is not None and kind not in (Kind.TIME, Kind.DECIMAL)):
            return widened(kind or Kind.NULL, values)
        # A declared type, or one that JSON does not have: its own parser decides whether every text fits.
        column = f"v{self.index[name]}"
        misfit = session.connection.execute(
            f"SELECT count(*) FROM {winners} WHERE {column} IS NOT NULL AND TRY_CAST({column} AS {base}) IS NULL"
        ).fetchone()
        return base if misfit == (0,) else "VARCHAR"


def widened(kind: Kind, values: Iterable[Any]) -> str:
    """The SQL type of an inferred column once these values are in it."""
    grown = join_kinds(kind, kind_of({_json_type(value) for value in values}))
    return sql_type(type_of(grown, Nested.JSON))


def _json_type(value: Any) -> str:
    match value:
        case bool():
            name = "bool"
        case int():
            name = "int" if abs(value) <= _INT_MAX else "long" if _LONG_MIN <= value <= _LONG_MAX else "big"
        case float():
            name = "double"
        case str():
            name = "string"
        case dict():
            name = "object"
        case _:
            name = "array"
    return name


def text_of(value: Any) -> str | None:
    """A pending value as text that DuckDB casts back: strings as they are, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # msgspec encodes no integer beyond 64 bits.
        return str(value)
    return msgspec.json.encode(value).decode()


def json_of(value: Any) -> str | None:
    """A pending value as JSON; None for a null."""
    return None if value is None else json.dumps(value, separators=(",", ":"))


def clocks_text(row: Row, names: Collection[str]) -> str | None:
    """What `_clocks` says of a row: nothing where it has all these columns, and one stamp holds for them."""
    if len({cell.stamp for cell in row.cells.values()}) == 1 and len(row.cells) == len(names):
        return None
    return msgspec.json.encode({name: list(cell.stamp) for name, cell in row.cells.items()}).decode()


def _rows_of_snapshot(session: Session, hits: str, table: LoadedTable | None) -> dict[str, Row]:
    if table is None:
        return {}
    types = columns(table.metadata)
    clocks = "_clocks" if "_clocks" in types else "CAST(NULL AS VARCHAR)"
    found = session.connection.execute(f"SELECT _key, _hlc, _source, _position, {clocks} FROM {hits}").fetchall()
    since = columns_since(table.metadata)
    names = [column_name(name) for name in types if name not in RESERVED]
    rows = {}
    for key, hlc, source, position, text in found:
        if text:
            stamps = msgspec.json.decode(text, type=dict[str, tuple[int, str]])
            cells = {name: Cell(Stamp(Hlc(at), by), _BASE) for name, (at, by) in stamps.items()}
        else:
            stamp = Stamp(Hlc(hlc), source)
            cells = {name: Cell(stamp, _BASE) for name in names if not since.lacks(name, position or 0, hlc)}
        rows[key] = Row(cells=cells)
    return rows


def _late_tombstones(
    session: Session,
    history: LoadedTable | None,
    keys: str,
    table: LoadedTable | None,
    pending: Mapping[str, PendingRow],
) -> dict[str, Row]:
    # A state table holds no deleted rows. A change whose clock is older than the table's newest may have been
    # overtaken by a delete that only the history still knows.
    if history is None or table is None:
        return {}
    oldest = min((cell.stamp.hlc for each in pending.values() for cell in each.row.cells.values()), default=None)
    if oldest is None or oldest > (hlc_max(table.metadata) or oldest):
        return {}
    found = session.connection.execute(
        f"SELECT _key, _hlc, _source FROM ({scan_sql(session, history)}) "
        f"WHERE _op = 'delete' AND _hlc >= {oldest} AND _key IN (SELECT k FROM {keys})"
    ).fetchall()
    rows: dict[str, Row] = {}
    for key, hlc, source in found:
        rows[key] = join(rows.get(key, Row()), Row(tombstone=Stamp(Hlc(hlc), source)))
    return rows


def _union(
    base_sql: str,
    *,
    keys: str,
    hits: str,
    winners: str,
    base_types: Mapping[str, str],
    types: Mapping[str, str],
    layer: _Layer,
) -> str:
    own = base_types if base_types else RESERVED
    untouched, touched = [], []
    for name in (*types, *(name for name in RESERVED if name in own)):
        column = duckdb_name(name)
        if name in RESERVED:
            untouched.append(f"b.{column} AS {column}")
            source = "w.k" if name == "_key" else f"w.{column}"
            touched.append(f"CAST({source} AS {RESERVED[name]}) AS {column}")
            continue
        number, kind = layer.index[name], types[name]
        given = f"CAST(w.v{number} AS JSON)" if kind == VARIANT else f"w.v{number}"
        # A null stays one: its JSON would be a Variant that holds a null.
        value = f"CASE WHEN w.p{number} AND w.v{number} IS NULL THEN NULL WHEN w.p{number} THEN CAST({given} AS {kind})"
        if name in base_types:
            untouched.append(f"CAST(b.{column} AS {kind}) AS {column}")
            touched.append(f"{value} WHEN w.b{number} THEN CAST(h.{column} AS {kind}) END AS {column}")
        else:
            untouched.append(f"CAST(NULL AS {kind}) AS {column}")
            touched.append(f"{value} END AS {column}")
    return (
        f"SELECT {', '.join(untouched)} FROM ({base_sql}) b WHERE b._key NOT IN (SELECT k FROM {keys}) "
        f"UNION ALL SELECT {', '.join(touched)} FROM {winners} w LEFT JOIN {hits} h ON h._key = w.k"
    )
