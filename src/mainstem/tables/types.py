"""The types a column can have, and the lattice by which inferred ones grow.

A column's **kind** is what its values have been so far; its **type** is how the table stores it. Several kinds share
a type (an `int` and a `long` are both stored as long), and what may come next depends on the kind, so the table
remembers kinds. Declared columns have a type and no kind: they never grow by themselves.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from typing import NewType

from mainstem.model.errors import Invalid
from mainstem.model.typed_text import DECIMAL_PRECISION, DECIMAL_SCALE

# An Iceberg type as its specification writes it: "long", "decimal(10,2)", "timestamptz", "variant".
ColumnType = NewType("ColumnType", str)

LONG = ColumnType("long")
DOUBLE = ColumnType("double")
STRING = ColumnType("string")
BOOLEAN = ColumnType("boolean")
VARIANT = ColumnType("variant")
TIMESTAMPTZ = ColumnType("timestamptz")
# What inferred columns of exact numbers are.
DECIMAL = ColumnType(f"decimal({DECIMAL_PRECISION},{DECIMAL_SCALE})")

DECIMAL_PRECISION_MAX = 38
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_PLAIN_TYPES = frozenset(
    ["boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "binary", "uuid"]
)
# Types that JSON has no word for. A door whose rows have types of their own says them in a segment's footer, beside the
# JSON types: the column is declared by that.
_TYPED = frozenset(["date", "timestamp", "timestamptz", "uuid", "binary"])
# What people write, and what it is called in Iceberg.
_ALIASES = {
    "bool": "boolean",
    "integer": "int",
    "bigint": "long",
    "text": "string",
    "json": "string",
    "timestamp_ntz": "timestamp",
}


class Nested(StrEnum):
    """How objects and arrays are stored. Every reader gets JSON text right; Variant is for those that can."""

    JSON = "json"
    VARIANT = "variant"


class Kind(StrEnum):
    """What the values of an inferred column have been so far.

    NULL is below everything and STRING above everything. `INT` holds whole numbers that a double keeps exactly,
    `LONG` those that only 64 bits do: so an INT column may become DOUBLE, a LONG one may not. `TIME` and `DECIMAL` are
    what JSON has no type for: only a door that knows its values' types (Mongo's) says so.
    """

    NULL = "null"
    BOOL = "bool"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TIME = "time"
    JSON = "json"
    STRING = "string"


# The JSON types that a segment's footer names. An integer beyond 64 bits keeps its digits only as text.
_KIND_BY_JSON_TYPE = {
    "null": Kind.NULL,
    "bool": Kind.BOOL,
    "int": Kind.INT,
    "long": Kind.LONG,
    "big": Kind.STRING,
    "double": Kind.DOUBLE,
    "string": Kind.STRING,
    "object": Kind.JSON,
    "array": Kind.JSON,
    "time": Kind.TIME,
    "decimal": Kind.DECIMAL,
}

_JOINS = {
    frozenset((Kind.INT, Kind.LONG)): Kind.LONG,
    frozenset((Kind.INT, Kind.DOUBLE)): Kind.DOUBLE,
    frozenset((Kind.INT, Kind.DECIMAL)): Kind.DECIMAL,
    frozenset((Kind.LONG, Kind.DECIMAL)): Kind.DECIMAL,
}

_TYPE_BY_KIND = {
    Kind.NULL: STRING,
    Kind.BOOL: BOOLEAN,
    Kind.INT: LONG,
    Kind.LONG: LONG,
    Kind.DOUBLE: DOUBLE,
    Kind.DECIMAL: DECIMAL,
    Kind.TIME: TIMESTAMPTZ,
    Kind.JSON: STRING,
    Kind.STRING: STRING,
}


def join_kinds(left: Kind, right: Kind) -> Kind:
    """The least kind that holds every value of both."""
    if left is right or right is Kind.NULL:
        return left
    if left is Kind.NULL:
        return right
    return _JOINS.get(frozenset((left, right)), Kind.STRING)


def kind_of(json_types: Iterable[str]) -> Kind:
    """The kind of a column in which values of these JSON types were seen."""
    try:
        # A value with a type of its own is written as text: that is what it is in a column of another kind.
        kinds = [Kind.STRING if is_typed(name) else _KIND_BY_JSON_TYPE[name] for name in json_types]
    except KeyError as unknown:
        raise Invalid(f"unknown JSON type. expected={sorted(_KIND_BY_JSON_TYPE)} got={unknown}") from None
    return reduce(join_kinds, kinds, Kind.NULL)


def is_typed(name: str) -> bool:
    """Whether a footer's word for a column's values is the type of a table's column, and not a JSON type."""
    return name in _TYPED or decimal_of(name) is not None


def typed_by_source(names: Iterable[str]) -> ColumnType | None:
    """The type that a column's source gave it; None where it gave none, or several that are not one.

    A value without a type (a text among instants, say) does not count: it is converted, or becomes a dead letter.
    """
    found = {ColumnType(name) for name in names if is_typed(name)}
    return next((one for one in found if all(one == each or widens_in_place(each, one) for each in found)), None)


def type_of(kind: Kind, nested: Nested) -> ColumnType:
    """How a table stores a kind."""
    if kind is Kind.JSON and nested is Nested.VARIANT:
        return VARIANT
    return _TYPE_BY_KIND[kind]


def parse_type(text: str) -> ColumnType:
    """Read a declared type."""
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _PLAIN_TYPES or name == VARIANT:
        return ColumnType(name)
    if decimal := decimal_of(name):
        precision, scale = decimal
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
            raise Invalid(f"decimal out of range. expected=decimal(1..38, 0..precision) got={text!r}")
        return ColumnType(f"decimal({precision},{scale})")
    raise Invalid(f"unknown column type. expected=one of {sorted(_PLAIN_TYPES)}, decimal(p,s), variant got={text!r}")


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale, where the type is a decimal."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def widens_in_place(old: ColumnType, new: ColumnType) -> bool:
    """Whether Iceberg can change the type without touching a file."""
    if (old, new) in ((ColumnType("int"), LONG), (ColumnType("float"), DOUBLE)):
        return True
    before, after = decimal_of(old), decimal_of(new)
    return before is not None and after is not None and before[1] == after[1] and before[0] <= after[0]


def keeps_every_value(old: ColumnType, new: ColumnType) -> bool:
    """Whether a cast of all rows to the new type loses nothing that matters. A rewrite is allowed only then."""
    if new == STRING:
        return old != ColumnType("binary")
    if new == DECIMAL:
        return old in (ColumnType("int"), LONG)
    return new == DOUBLE and old in (ColumnType("int"), LONG, ColumnType("float"))
