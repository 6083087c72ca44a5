"""Declared schemas of a gateway's tables: which columns a delta may write, and with what kind of value.

A gateway without schemas takes any table. One with schemas takes the tables that it knows, and no other. Schemas are
kept in one small file, written anew whenever one is registered.
"""

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from mainstem.log.seal.shapes import names_error
from mainstem.model.errors import Corrupt, Invalid
from mainstem.wire.sync import BadDelta, RowDelta, table_name

TABLES_MAX = 1_000
COLUMNS_MAX = 1_000


class ColumnKind(StrEnum):
    """What a column may hold. `null` is always a value."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"


class SchemaColumn(msgspec.Struct, frozen=True):
    """One column of a table."""

    name: str
    type: ColumnKind


class TableSchema(msgspec.Struct, frozen=True):
    """What one table takes."""

    table: str
    columns: tuple[SchemaColumn, ...]


_FIRST_BYTES: dict[ColumnKind, bytes] = {
    ColumnKind.STRING: b'"n',
    ColumnKind.NUMBER: b"-0123456789n",
    ColumnKind.BOOLEAN: b"tfn",
}


class Schemas:
    """Every gateway's schemas."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schemas: dict[str, dict[str, TableSchema]] = {}
        if path.exists():
            try:
                self._schemas = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, TableSchema]])
            except msgspec.MsgspecError as error:
                raise Corrupt(f"schemas cannot be read. got={error}", place=str(path)) from error
        self._kinds = {gateway: _kinds(tables) for gateway, tables in self._schemas.items()}

    def of(self, gateway: str) -> dict[str, TableSchema]:
        """A gateway's schemas by table."""
        return dict(self._schemas.get(gateway, {}))

    def check_schema(self, gateway: str, schema: TableSchema) -> None:
        """Refuse a schema that cannot be. Raises Invalid."""
        table_name(gateway, schema.table)
        if not 1 <= len(schema.columns) <= COLUMNS_MAX:
            raise Invalid(f"a schema's columns. expected=1..{COLUMNS_MAX} got={len(schema.columns)}")
        if len({column.name for column in schema.columns}) != len(schema.columns):
            raise Invalid("a schema names a column twice")
        error = names_error([column.name for column in schema.columns])
        if error is not None:
            raise Invalid(error, reason="invalid_name")
        if sum(map(len, self._schemas.values())) >= TABLES_MAX and schema.table not in self.of(gateway):
            raise Invalid(f"too many schemas. expected=at most {TABLES_MAX}")

    def register(self, gateway: str, schema: TableSchema) -> None:
        """Declare a table, durably. What came before stays as it is."""
        self.check_schema(gateway, schema)
        tables = self.of(gateway) | {schema.table: schema}
        changed = self._schemas | {gateway: tables}
        self._store(msgspec.json.encode(changed))
        self._schemas = changed
        self._kinds[gateway] = _kinds(tables)

    def check(self, gateway: str, deltas: Iterable[RowDelta]) -> None:
        """Refuse a delta that its table does not take. Raises BadDelta (`schema_mismatch`)."""
        kinds = self._kinds.get(gateway)
        if not kinds:
            return
        for delta in deltas:
            table = kinds.get(delta.table)
            if table is None:
                raise BadDelta(
                    f"a table is unknown. expected=one with a schema got={delta.table}",
                    reason="schema_mismatch",
                    delta_id=delta.delta_id,
                )
            for each in delta.columns:
                kind = table.get(each.column)
                if kind is None or not _fits(kind, each.value):
                    expected = "a column of the schema" if kind is None else kind
                    raise BadDelta(
                        f"a column does not fit its table. table={delta.table} column={each.column} "
                        f"expected={expected} got={each.value[:64]!r}",
                        reason="schema_mismatch",
                        delta_id=delta.delta_id,
                    )

    def _store(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".new")
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)


def _kinds(tables: dict[str, TableSchema]) -> dict[str, dict[str, ColumnKind]]:
    return {name: {column.name: column.type for column in schema.columns} for name, schema in tables.items()}


def _fits(kind: ColumnKind, value: bytes) -> bool:
    # The text is valid JSON already, so its first character tells what it is.
    return kind is ColumnKind.JSON or value.lstrip()[:1] in _FIRST_BYTES[kind]
