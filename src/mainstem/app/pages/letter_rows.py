"""A letter as its table has it, and the SQL that reads letters and nothing else.

A client that may write a namespace may put a table of dead letters there, or rows into one, of any types and with any
values. What is read of it goes into the log that all share. So every column is cast to what the pipeline writes there,
and a row that can be no letter is passed over.
"""

import hashlib
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from mainstem.model import Invalid, Operation, TableName
from mainstem.sql import duckdb_name, duckdb_text

# What varies from letter to letter stands between quotes.
_REASON = "regexp_replace(_reason, '''.*''', '''…''')"
_TYPES = {
    "_position": "BIGINT",
    "_hlc": "BIGINT",
    "_op": "VARCHAR",
    "_key": "VARCHAR",
    "_columns": "VARCHAR",
    "_before": "VARCHAR",
    "_source": "VARCHAR",
    "_sequence": "BIGINT",
    "_id": "VARCHAR",
    "_time": "TIMESTAMPTZ",
    "_source_time": "TIMESTAMPTZ",
    "_metadata": "VARCHAR",
    "_reason": "VARCHAR",
}
_NEVER_NULL = ("_hlc", "_key", "_source", "_reason")
_json = msgspec.json.Decoder()


class LetterRow(NamedTuple):
    """The columns of a letter, in their order."""

    position: int
    hlc: int
    op: str
    key: str
    columns: str | None
    before: str | None
    source: str
    sequence: int | None
    id: str | None
    time_ms: int | None
    source_time_ms: int | None
    metadata: str | None
    reason: str

    @property
    def number(self) -> int:
        """What dedup knows the letter by: of its whole content, since positions of another log may be the same."""
        told = msgspec.json.encode([*self[:9], self.reason])
        return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big") >> 2

    @property
    def letter_id(self) -> str:
        """As clients name it."""
        return f"{self.position}-{self.number:x}"


def select_letters(table: TableName, where: str = "", order: str = "") -> str:
    """The letters of a table, as `LetterRow` has them. `where` is one condition, or several joined by AND."""
    columns = ", ".join(f"epoch_ms({name})" if kind == "TIMESTAMPTZ" else name for name, kind in _TYPES.items())
    return f"SELECT {columns} FROM {_letters(table)}{_where(where)}{f' ORDER BY {order}' if order else ''}"


def count_letters(table: TableName) -> str:
    """How many letters there are by reason, the commonest first."""
    return f"SELECT {_REASON} AS reason, count(*) FROM {_letters(table)} GROUP BY 1 ORDER BY 2 DESC, 1"


def has_reason(reason: str) -> str:
    """The condition that a letter's reason is this one, as they are counted."""
    return f"{_REASON} = {duckdb_text(reason)}"


def value_of(text: str | None) -> Any:
    """What a JSON text says; the text itself where that cannot be told."""
    try:
        return None if text is None else _json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def raw_object(text: str) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, each as it was written. Of anything else, which may be why it did not fit, nothing
    is kept."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}


def exact_value(name: str, raw: msgspec.Raw) -> Any:
    """A value, where reading it loses nothing. Raises Invalid."""

    def exact_float(text: str) -> float:
        value = float(text)
        if Decimal(text) != Decimal(repr(value)):
            raise ValueError(text)
        return value

    try:
        return msgspec.json.Decoder(float_hook=exact_float).decode(raw)
    except RecursionError:
        raise Invalid(f"a value is too deep: give the column in `columns`. column={name[:100]!r}") from None
    except (msgspec.DecodeError, ValueError, ArithmeticError) as error:
        raise Invalid(
            f"a number is finer than 64 bits: give the column as text in `columns`. column={name[:100]!r} got={error}"
        ) from error


def _letters(table: TableName) -> str:
    name = f"{duckdb_name(table.namespace)}.{duckdb_name(table.dead_letters.table)}"
    cast = ", ".join(f"try_cast({column} AS {kind}) AS {column}" for column, kind in _TYPES.items())
    wanted = [f"_op IN ({', '.join(duckdb_text(operation) for operation in Operation)})", "_position >= 0"]
    wanted += [f"{column} IS NOT NULL" for column in _NEVER_NULL]
    return f"(SELECT * FROM (SELECT {cast} FROM {name}) AS rows WHERE {' AND '.join(wanted)}) AS letters"


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""
