"""Tables as an app declares them, and how JSON values are written into SQLite's columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from mainstem.model.errors import Invalid
from mainstem.wire.sync import check_name

KEY = "_key"
OWN_PREFIX = "_mainstem_"
TABLES_MAX = 1_000
# SQLite's own bound on the parameters of a statement is far above.
COLUMNS_MAX = 1_000
_INTEGER_MAX = (1 << 63) - 1
_encode = msgspec.json.Encoder().encode


class ColumnType(StrEnum):
    """What a column holds. NULL fits every type."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"
    # Anything, as JSON text: SQLite's `->>` and `json_each` look into it.
    JSON = "json"

    @property
    def sql(self) -> str:
        """The type in SQLite."""
        return _SQL_TYPES[self]

    def takes(self, value: Any) -> bool:
        """Whether the app may write this value. A number counts for what it is: true is no integer."""
        expected = _PYTHON_TYPES[self]
        if value is None or expected is object:
            return True
        return isinstance(value, expected) and (self is ColumnType.BOOLEAN or not isinstance(value, bool))


_SQL_TYPES = {
    ColumnType.TEXT: "TEXT",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.REAL: "REAL",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.JSON: "TEXT",
}
_PYTHON_TYPES: dict[ColumnType, Any] = {
    ColumnType.TEXT: str,
    ColumnType.INTEGER: int,
    ColumnType.REAL: (int, float),
    ColumnType.BOOLEAN: bool,
    ColumnType.JSON: object,
}


@dataclass(frozen=True)
class Table:
    """A table that the app wants to read by SQL.

        Table("todos", {"title": "text", "done": "boolean", "rank": "real"}, indexes=["rank"])

    In SQL it has these columns and `_key`, the row's id. Columns may be added later; a type stays as it is.
    """

    name: str
    columns: Mapping[str, str]
    indexes: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "a table's name")
        if self.name.lower().startswith((OWN_PREFIX, "sqlite_")):
            raise Invalid(f"a table's name is taken by the database itself. got={self.name}", reason="invalid_name")
        _check_apart(self.columns, f"columns of {self.name}", COLUMNS_MAX)
        for column, kind in self.columns.items():
            check_name(column, "a column's name")
            if column.lower() == KEY:
                raise Invalid(f"a column's name is taken by the row's id. got={column}", reason="invalid_name")
            if kind not in set(ColumnType):
                raise Invalid(f"a column's type. expected=one of {', '.join(ColumnType)} got={kind}")
        if unknown := set(self.indexes) - self.columns.keys():
            raise Invalid(f"an index on a column that {self.name} does not have. got={', '.join(sorted(unknown))}")

    @property
    def types(self) -> dict[str, ColumnType]:
        """The columns with their types."""
        return {name: ColumnType(kind) for name, kind in self.columns.items()}


def check_tables(tables: Iterable[Table]) -> list[Table]:
    """The tables of one database: their names differ by more than upper and lower case."""
    listed = list(tables)
    _check_apart([table.name for table in listed], "tables", TABLES_MAX)
    return listed


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def sql_value(value: Any, kind: ColumnType) -> Any:
    """A JSON value as SQLite keeps it. A value of another type than the column's is kept, not refused: others may
    know a newer schema."""
    if value is None:
        return None
    if kind is ColumnType.JSON or isinstance(value, list | dict):
        return _encode(value).decode()
    if isinstance(value, int) and not -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
        return float(value)
    return value


def _check_apart(names: Iterable[str], what: str, count_max: int) -> None:
    listed = list(names)
    if len(listed) > count_max:
        raise Invalid(f"too many {what}. expected=at most {count_max} got={len(listed)}")
    # SQLite does not tell A from a.
    if len({name.lower() for name in listed}) < len(listed):
        raise Invalid(f"{what} differ by case alone. got={', '.join(sorted(listed))}", reason="invalid_name")
