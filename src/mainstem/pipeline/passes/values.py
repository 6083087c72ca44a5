"""Typed columns out of the rows' JSON: a list of JSON objects in, Arrow arrays out, and which rows do not fit.

Thousands of rows are decoded in one call, into a class that is made for the table's columns. Where the footers say that
every value of a column has the column's own JSON type, it is decoded straight into that; all other values come as the
text that the producer sent, and `convert` makes values of them.
"""

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from mainstem.formats.delta.values import variant
from mainstem.tables.convert import UNFIT, converter, text_of
from mainstem.tables.evolution import Column
from mainstem.tables.types import BOOLEAN, DOUBLE, LONG, STRING, TIMESTAMPTZ, VARIANT, ColumnType, Kind, decimal_of

Mask = npt.NDArray[np.bool_]

_SHOWN_LENGTH_MAX = 80
_VARIANT = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
ARROW_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.binary(16),
    "variant": _VARIANT,
}
# By type and kind: the JSON types that need no conversion, and what they are decoded into.
_DIRECT: Mapping[tuple[ColumnType, Kind], tuple[frozenset[str], type]] = {
    (LONG, Kind.INT): (frozenset(("int", "long")), int),
    (LONG, Kind.LONG): (frozenset(("int", "long")), int),
    (DOUBLE, Kind.DOUBLE): (frozenset(("int", "double")), float),
    (BOOLEAN, Kind.BOOL): (frozenset(("bool",)), bool),
    (STRING, Kind.STRING): (frozenset(("string",)), str),
    (TIMESTAMPTZ, Kind.TIME): (frozenset(("time",)), dt.datetime),
}
# Names that a class made by msgspec cannot have for its fields.
_ODD = re.compile(r'["\\\x00-\x1f]')
_NULL = b"null"
# Rows that are decoded at once: on their way they take several times as much memory as their values.
_PORTION_ROWS = 16_384
_any = msgspec.json.Decoder().decode


class Values(NamedTuple):
    """The columns of some rows, in the order of the table's columns."""

    arrays: list[pa.Array]
    # Per column: the rows that have it. A null is there, a missing column is not.
    present: list[Mask]
    # Per row: why it does not fit its table; None where it does.
    errors: list[str | None]


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """How files keep a type."""
    size = decimal_of(column_type)
    return pa.decimal128(*size) if size else ARROW_TYPES[column_type]


def read_values(
    texts: Sequence[bytes], columns: Sequence[Column], seen: Mapping[str, Collection[str]], refused: Mapping[str, str]
) -> Values:
    """Read rows. `seen` are each column's JSON types by the footers; a row with a `refused` column does not fit."""
    kinds = tuple(_direct(column, seen.get(column.name, ())) for column in columns)
    starts = range(0, max(1, len(texts)), _PORTION_ROWS)
    read = [_read_portion(texts[start : start + _PORTION_ROWS], columns, kinds, refused) for start in starts]
    if len(read) == 1:
        return read[0]
    return Values(
        [pa.concat_arrays([portion.arrays[number] for portion in read]) for number in range(len(columns))],
        [np.concatenate([portion.present[number] for portion in read]) for number in range(len(columns))],
        [error for portion in read for error in portion.errors],
    )


def _read_portion(
    texts: Sequence[bytes], columns: Sequence[Column], kinds: tuple[type | None, ...], refused: Mapping[str, str]
) -> Values:
    try:
        return _read(texts, columns, kinds, refused)
    except (msgspec.ValidationError, OverflowError):
        # The footers said otherwise of some value: every value is looked at by itself.
        return _read(texts, columns, (None,) * len(kinds), refused)


def _read(
    texts: Sequence[bytes], columns: Sequence[Column], kinds: tuple[type | None, ...], refused: Mapping[str, str]
) -> Values:
    errors: list[str | None] = _refusals(texts, refused) if refused else [None] * len(texts)
    arrays, present = [], []
    for column, kind, values in zip(columns, kinds, _columns(texts, columns, kinds), strict=True):
        array = None if kind is None else _if_complete(values, arrow_type(column.type))
        is_there = np.ones(len(values), bool)
        if array is None:
            is_there = np.fromiter((value is not UNSET for value in values), bool, len(values))
            known = values if is_there.all() else [None if value is UNSET else value for value in values]
            made = _converted(known, column, errors) if kind is None else known
            array = pa.array(made, arrow_type(column.type))
        arrays.append(array)
        present.append(is_there)
    return Values(arrays, present, errors)


def _if_complete(values: Sequence[Any], arrow: pa.DataType) -> pa.Array | None:
    """Values as Arrow; None where one is missing. Arrow refuses UNSET, which is found out quicker than by looking."""
    try:
        return pa.array(values, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _columns(texts: Sequence[bytes], columns: Sequence[Column], kinds: tuple[type | None, ...]) -> Iterator[list[Any]]:
    """The values of each column. No class has fields with quotes in their names: those come from dictionaries."""
    content = b"[" + b",".join(texts) + b"]"
    plain = [number for number, column in enumerate(columns) if not _ODD.search(column.name)]
    rows = _decoder(tuple(columns[number].name for number in plain), tuple(kinds[number] for number in plain))(content)
    by_name: list[dict[str, Raw]] = []
    if len(plain) < len(columns):
        by_name = msgspec.json.decode(content, type=list[dict[str, Raw]])
    place_of = {number: place for place, number in enumerate(plain)}
    for number, column in enumerate(columns):
        if number in place_of:
            yield list(map(attrgetter(f"c{place_of[number]}"), rows))
        else:
            yield [row.get(column.name, UNSET) for row in by_name]


def canonical(raw: Any) -> bytes:
    """What decides between two values of one column with one stamp: the greater text. As in `model.merge`."""
    value = _any(bytes(raw)) if isinstance(raw, Raw) else raw
    return msgspec.json.encode(value, order="deterministic")


def _direct(column: Column, json_types: Collection[str]) -> type | None:
    known = None if column.kind is None or _ODD.search(column.name) else _DIRECT.get((column.type, column.kind))
    return known[1] if known is not None and set(json_types) - {"null"} <= known[0] else None


@lru_cache(256)
def _decoder(names: tuple[str, ...], kinds: tuple[type | None, ...]) -> Any:
    fields = [
        (
            f"c{number}",
            Raw | UnsetType if kind is None else kind | None | UnsetType,
            msgspec.field(default=UNSET, name=name),
        )
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    made = msgspec.defstruct("Row", fields, gc=False)
    return msgspec.json.Decoder(list[made]).decode  # type: ignore[valid-type]


def _converted(values: Sequence[Any], column: Column, errors: list[str | None]) -> list[Any]:
    """Values of the column's type; a row with one that does not fit gets an error, and a null in its place."""
    convert = text_of if column.type == VARIANT else converter(column.type)
    made: list[Any] = []
    for number, raw in enumerate(values):
        text = None if raw is None else bytes(raw)
        if text is None or text == _NULL:
            made.append(None)
            continue
        value = _to_variant(text) if column.type == VARIANT else convert(text)
        if value is UNFIT:
            shown = text_of(text)[:_SHOWN_LENGTH_MAX]
            errors[number] = errors[number] or f"{column.name}: '{shown}' is not {column.type}"
            value = None
        made.append(value)
    return made


def _to_variant(text: bytes) -> dict[str, bytes]:
    metadata, value = variant.encode(_any(text))
    return {"metadata": metadata, "value": value}


def _refusals(texts: Sequence[bytes], refused: Mapping[str, str]) -> list[str | None]:
    rows: list[dict[str, Raw]] = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[dict[str, Raw]])
    return [next((reason for name, reason in refused.items() if name in row), None) for row in rows]
