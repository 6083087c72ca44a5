"""The SQLite file: its tables, its transactions, and the records in them. Knows no rule of the sync.

All access goes through one connection under one lock, so that a reader never sees half of a transaction; other
processes may have the same file open.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.sync.records import (
    FORMAT,
    SCHEMA,
    DeadLetter,
    MergedMark,
    RowRecord,
    State,
    Touched,
    cells_text,
    row_of_text,
    written_cells,
)
from mainstem.client.sync.schema import KEY, ColumnType, Table, quoted, sql_value
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.merge import Row
from mainstem.wire.sync import ColumnDelta, RowDelta

APPLICATION_ID = 0x4D61696E  # "Main", in the file's header
_BUSY_TIMEOUT_S = 60.0
_DELTA_COLUMNS = "hlc, table_name, row_id, op, columns, client_id, delta_id"

_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(State).decode
_decode_mark = msgspec.json.Decoder(MergedMark).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_columns = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]]).decode


class Store:
    """One database file. `path` may be ":memory:"."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.lock = threading.RLock()
        self.connection = sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self.tables: dict[str, TableWriter] = {}
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise Corrupt(f"the local database cannot be opened. got={error}", place=self.path) from error
        except BaseException:
            self.connection.close()
            raise

    def _open(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        with self.transaction(strict=True):
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in filter(str.strip, SCHEMA.split(";")):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self.connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise Corrupt(f"the local database's format. expected={FORMAT} got={version}", place=self.path)

    def close(self) -> None:
        """Close the file. What is committed stays."""
        with self.lock:
            self.connection.close()

    def migrate(self, declared: Iterable[Table]) -> None:
        """Make the declared tables and columns, and fill them from the rows that are here. Only ever adds."""
        with self.transaction(strict=True) as transaction:
            known = transaction.declared()
            for table in declared:
                transaction.declare(table, known.get(table.name, {}))
            self.tables = {name: TableWriter(name, columns) for name, columns in transaction.declared().items()}

    @contextmanager
    def transaction(self, *, strict: bool) -> "Iterator[Transaction]":
        """All or nothing. A strict one is on the disk when it ends; another one may be lost with the power, together
        with all that followed it, which only costs asking the server again."""
        with self.lock:
            self.connection.execute(f"PRAGMA synchronous = {'FULL' if strict else 'NORMAL'}")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self.connection, self.tables)
            except BaseException:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> "Iterator[Transaction]":
        """What is committed, as of one moment."""
        with self.lock:
            self.connection.execute("BEGIN")
            try:
                yield Transaction(self.connection, self.tables)
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("COMMIT")

    def query(self, sql: str, parameters: Any) -> list[dict[str, Any]]:
        """The rows that a SELECT gives. Whatever would write is refused."""
        with self.lock:
            self.connection.execute("PRAGMA query_only = ON")
            try:
                cursor = self.connection.execute(sql, parameters)
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise Invalid(f"the query failed. got={error}", reason="invalid_query") from error
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                self.connection.execute("PRAGMA query_only = OFF")

    def tables_read(self, sql: str, parameters: Any) -> frozenset[str]:
        """The tables that a query reads, as SQLite itself says while it compiles it."""
        names: set[str] = set()

        def note(action: int, first: str | None, *_: str | None) -> int:
            if action == sqlite3.SQLITE_READ and first is not None:
                names.add(first)
            return sqlite3.SQLITE_OK

        with self.lock:
            self.connection.set_authorizer(note)
            try:
                self.query(f"EXPLAIN {sql}", parameters)
            finally:
                self.connection.set_authorizer(None)
        return frozenset(names)


class TableWriter:
    """Writes the rows of one declared table as its SQL columns."""

    def __init__(self, name: str, columns: dict[str, ColumnType]) -> None:
        self.name = name
        self.columns = columns
        self._columns = tuple(columns.items())
        self._has_json = ColumnType.JSON in columns.values()
        names = [quoted(KEY), *map(quoted, columns)]
        marks = ", ".join("?" * len(names))
        self.upsert = f"INSERT OR REPLACE INTO {quoted(name)} ({', '.join(names)}) VALUES ({marks})"
        self.delete = f"DELETE FROM {quoted(name)} WHERE {quoted(KEY)} = ?"

    def plain_parameters(self, row_id: str, values: dict[str, Any]) -> list[Any]:
        """The row for `upsert`, if its values are such as SQLite takes as they are."""
        if self._has_json:
            return self.parameters(row_id, values)
        return [row_id, *map(values.get, self.columns)]

    def parameters(self, row_id: str, values: dict[str, Any]) -> list[Any]:
        """The row for `upsert`. A column that was never written is NULL, like one that was set to null."""
        return [row_id, *(sql_value(values.get(name), kind) for name, kind in self._columns)]


class Transaction:
    """The records, within one transaction of the store."""

    def __init__(self, connection: sqlite3.Connection, tables: dict[str, TableWriter]) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._tables = tables

    # The state.

    def state(self) -> State | None:
        """None in a new database."""
        found = self._run("SELECT value FROM _mainstem_state WHERE name = 'state'").fetchone()
        return found and _decode_state(found[0])

    def put_state(self, state: State) -> None:
        self._run("INSERT OR REPLACE INTO _mainstem_state VALUES ('state', ?)", (_encode(state).decode(),))

    # Rows.

    def row(self, table: str, row_id: str) -> RowRecord | None:
        sql = (
            "SELECT cells, tombstone_hlc, tombstone_source, merged FROM _mainstem_rows "
            "WHERE table_name = ? AND row_id = ?"
        )
        found = self._run(sql, (table, row_id)).fetchone()
        return found and RowRecord(row_of_text(*found[:3]), found[3] and _decode_mark(found[3]))

    def rows(self, table: str) -> Iterator[tuple[str, RowRecord]]:
        """All rows of a table, those that were deleted too, by id."""
        sql = (
            "SELECT row_id, cells, tombstone_hlc, tombstone_source, merged FROM _mainstem_rows "
            "WHERE table_name = ? ORDER BY row_id"
        )
        for found in self._run(sql, (table,)):
            yield found[0], RowRecord(row_of_text(*found[1:4]), found[4] and _decode_mark(found[4]))

    def row_keys(self) -> set[tuple[str, str]]:
        return set(self._run("SELECT table_name, row_id FROM _mainstem_rows"))

    def put_row(self, table: str, row_id: str, row: Row, merged: MergedMark | None = None) -> None:
        self.put_rows([(table, row_id, row, merged)])

    def put_rows(self, records: Iterable[tuple[str, str, Row, MergedMark | None]]) -> None:
        """Store merged rows, and show in SQL what a reader sees of them."""
        stored = []
        shown: dict[str, list[list[Any]]] = {}
        for table, row_id, row, merged in records:
            tombstone = row.tombstone or (None, None)
            mark = None if merged is None else _encode(merged).decode()
            stored.append((table, row_id, cells_text(row), *tombstone, mark))
            if table not in self._tables:
                continue
            if row.cells:
                shown.setdefault(table, []).append(self._tables[table].parameters(row_id, row.values()))
            else:
                self._run(self._tables[table].delete, (row_id,))
        self._run_many("INSERT OR REPLACE INTO _mainstem_rows VALUES (?, ?, ?, ?, ?, ?)", stored)
        for table, rows in shown.items():
            self._run_many(self._tables[table].upsert, rows)

    def put_written(self, deltas: Iterable[RowDelta]) -> None:
        """Store rows of which each is one write and nothing else, as `put_rows` would, at a third of its cost: a
        first sync is made of these."""
        stored = []
        shown: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for delta in deltas:
            cells, values = written_cells(delta)
            stored.append((delta.table, delta.row_id, cells, None, None, None))
            if delta.table in self._tables:
                shown.setdefault(delta.table, []).append((delta.row_id, values))
        self._run_many("INSERT OR REPLACE INTO _mainstem_rows VALUES (?, ?, ?, ?, ?, ?)", stored)
        for table, rows in shown.items():
            writer = self._tables[table]
            try:
                self._run_many(writer.upsert, (writer.plain_parameters(*row) for row in rows))
            except (sqlite3.Error, OverflowError):
                # Some value is not of its column's type: each has to be looked at. Rows that went in go in again.
                self._run_many(writer.upsert, (writer.parameters(*row) for row in rows))

    def remove_row(self, table: str, row_id: str) -> None:
        self._run("DELETE FROM _mainstem_rows WHERE table_name = ? AND row_id = ?", (table, row_id))
        if table in self._tables:
            self._run(self._tables[table].delete, (row_id,))

    # The queue and the dead letters.

    def queued(self, limit: int = -1) -> list[RowDelta]:
        """The oldest deltas that wait."""
        return list(
            map(_delta, self._run(f"SELECT {_DELTA_COLUMNS} FROM _mainstem_queue ORDER BY hlc LIMIT ?", (limit,)))
        )

    def queued_delta(self, hlc: int) -> RowDelta | None:
        found = self._run(f"SELECT {_DELTA_COLUMNS} FROM _mainstem_queue WHERE hlc = ?", (hlc,)).fetchone()
        return found and _delta(found)

    def enqueue(self, delta: RowDelta) -> None:
        self._run(f"INSERT INTO _mainstem_queue ({_DELTA_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", _stored(delta))

    def dequeue(self, hlc: int) -> None:
        self._run("DELETE FROM _mainstem_queue WHERE hlc = ?", (hlc,))

    def dead_letters(self) -> list[DeadLetter]:
        rows = self._run(f"SELECT {_DELTA_COLUMNS}, reason, message, at_ms FROM _mainstem_dead ORDER BY hlc")
        return [DeadLetter(_delta(row[:7]), *row[7:]) for row in rows]

    def put_dead_letter(self, letter: DeadLetter) -> None:
        values = (*_stored(letter.delta), letter.reason, letter.message, letter.at_ms)
        marks = ", ".join("?" * len(values))
        self._run(f"INSERT INTO _mainstem_dead ({_DELTA_COLUMNS}, reason, message, at_ms) VALUES ({marks})", values)

    def remove_dead_letter(self, hlc: int) -> None:
        self._run("DELETE FROM _mainstem_dead WHERE hlc = ?", (hlc,))

    def own_deltas(self, table: str, row_id: str) -> list[RowDelta]:
        """Our waiting and refused edits of a row."""
        found: list[RowDelta] = []
        for place in ("_mainstem_queue", "_mainstem_dead"):
            sql = f"SELECT {_DELTA_COLUMNS} FROM {place} WHERE table_name = ? AND row_id = ?"
            found += map(_delta, self._run(sql, (table, row_id)))
        return found

    # Rows with edits of ours.

    def touched(self, table: str, row_id: str) -> Touched | None:
        sql = "SELECT pending, columns FROM _mainstem_touched WHERE table_name = ? AND row_id = ?"
        found = self._run(sql, (table, row_id)).fetchone()
        return found and Touched(found[0], _decode_names(found[1]))

    def touched_pending(self, table: str) -> dict[str, int]:
        """How many edits of each row wait, for those rows that were edited here."""
        return dict(self._run("SELECT row_id, pending FROM _mainstem_touched WHERE table_name = ?", (table,)))

    def touched_keys(self) -> set[tuple[str, str]]:
        return set(self._run("SELECT table_name, row_id FROM _mainstem_touched"))

    def put_touched(self, table: str, row_id: str, touched: Touched) -> None:
        columns = _encode(touched.columns).decode()
        sql = "INSERT OR REPLACE INTO _mainstem_touched VALUES (?, ?, ?, ?)"
        self._run(sql, (table, row_id, touched.pending, columns))

    def settle(self) -> list[tuple[str, str]]:
        """Forget the rows whose edits were all sent; which they were."""
        return self._run("DELETE FROM _mainstem_touched WHERE pending = 0 RETURNING table_name, row_id").fetchall()

    # Declared tables.

    def declared(self) -> dict[str, dict[str, ColumnType]]:
        """The tables that some version of the app declared, with their columns in the order of their making."""
        tables: dict[str, dict[str, ColumnType]] = {}
        for table, column, kind in self._run("SELECT * FROM _mainstem_columns ORDER BY rowid"):
            columns = tables.setdefault(table, {})
            if column:
                columns[column] = ColumnType(kind)
        return tables

    def declare(self, table: Table, known: dict[str, ColumnType]) -> None:
        """Make a table, or add the columns that it does not have."""
        types = table.types
        for name in types.keys() & known.keys():
            if types[name] is not known[name]:
                raise Invalid(
                    f"a column's type cannot change. table={table.name} column={name} "
                    f"expected={known[name]} got={types[name]}",
                    reason="migration",
                )
        added = {name: kind for name, kind in types.items() if name not in known}
        exists = self._run("SELECT 1 FROM _mainstem_columns WHERE table_name = ? LIMIT 1", (table.name,)).fetchone()
        if not exists:
            self._run(f"CREATE TABLE {quoted(table.name)} ({quoted(KEY)} TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID")
            # A table without columns is declared too.
            self._run("INSERT INTO _mainstem_columns VALUES (?, '', '')", (table.name,))
        for name, kind in added.items():
            self._run(f"ALTER TABLE {quoted(table.name)} ADD COLUMN {quoted(name)} {kind.sql}")
            self._run("INSERT INTO _mainstem_columns VALUES (?, ?, ?)", (table.name, name, kind.value))
        if added or not exists:
            self._fill(TableWriter(table.name, {**known, **added}))
        for name in table.indexes:
            index = quoted(f"{table.name}.{name}")
            self._run(f"CREATE INDEX IF NOT EXISTS {index} ON {quoted(table.name)} ({quoted(name)})")

    def _fill(self, writer: TableWriter) -> None:
        visible = ((row_id, record.row) for row_id, record in self.rows(writer.name) if record.row.visible)
        self._run_many(writer.upsert, (writer.parameters(row_id, row.values()) for row_id, row in visible))


def _stored(delta: RowDelta) -> tuple[Any, ...]:
    columns = _encode([(each.column, msgspec.Raw(each.value)) for each in delta.columns]).decode()
    return delta.hlc, delta.table, delta.row_id, delta.op, columns, delta.client_id, delta.delta_id


def _delta(found: Sequence[Any]) -> RowDelta:
    hlc, table, row_id, op, columns, client_id, delta_id = found
    return RowDelta(
        op=op,
        table=table,
        row_id=row_id,
        columns=tuple([ColumnDelta(name, bytes(value)) for name, value in _decode_columns(columns)]),
        hlc=hlc,
        client_id=client_id,
        delta_id=delta_id,
    )
