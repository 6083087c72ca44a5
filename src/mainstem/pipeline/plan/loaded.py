"""From files that are loaded without the log to the columns of a state table: as Spark expressions, and no rows.

A value becomes what it would have become through the log. Where Spark's own cast is just that, it is used; everything
else goes through the JSON text of the value, as in the log, and the same converters. A value that does not fit its
column ends the load with the column's name: there are no dead letters here.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mainstem.model.errors import Invalid
from mainstem.sql import spark_name, spark_text
from mainstem.tables.convert import UNFIT, converter
from mainstem.tables.evolution import Column
from mainstem.tables.types import ColumnType, decimal_of
from mainstem.wire.rows_arrow_values import json_values
from mainstem.wire.rows_csv import BOOLEAN, MOMENT, NUMBER, WHOLE

# Whole numbers up to here are the same as doubles.
_EXACT_MAX = 1 << 53
_WHOLE_TYPES = (ByteType, ShortType, IntegerType, LongType)
# What a segment's footer would call values of a type. Whole numbers may turn out to be `long`: see `Loading`.
_SEEN: tuple[tuple[tuple[type[DataType], ...], str], ...] = (
    (_WHOLE_TYPES, "int"),
    ((BooleanType,), "bool"),
    ((FloatType, DoubleType), "double"),
    ((DateType,), "date"),
    ((TimestampType,), "timestamptz"),
    ((TimestampNTZType,), "timestamp"),
    ((StringType,), "string"),
    ((BinaryType,), "binary"),
    ((StructType,), "object"),
    ((ArrayType, MapType), "array"),
    ((NullType,), "null"),
)
# Casts that change no value, by what a footer calls it.
_CASTS = {
    ("int", "long"),
    ("int", "int"),
    # What a double does not keep is found by the bounds of what was written: see `Load`.
    ("int", "double"),
    ("bool", "boolean"),
    ("double", "double"),
    ("date", "date"),
    ("timestamptz", "timestamptz"),
    ("timestamp", "timestamp"),
    ("string", "string"),
    ("binary", "binary"),
}
_SPARK_TYPES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz", "uuid": "string"}
# Keys whose text Spark writes as the log does.
_KEYS = ("int", "string", "bool", "date")
# Times that every reader can show.
_FIRST, _LAST = "0001-01-01", "9999-12-31"
_LAST_MOMENT = f"{_LAST} 23:59:59.999999"


def seen_types(schema: StructType) -> dict[str, str]:
    """What a segment's footer would call each column's values. Raises Invalid for a type that the log knows no more."""
    found: dict[str, str] = {}
    for field in schema.fields:
        kind = field.dataType
        if isinstance(kind, DecimalType):
            found[field.name] = f"decimal({kind.precision},{kind.scale})"
            continue
        name = next((name for types, name in _SEEN if isinstance(kind, types)), None)
        if name is None:
            raise Invalid(f"a column's type cannot be kept. column={field.name!r} got={kind.simpleString()}")
        found[field.name] = name
    return found


def typed_csv(rows: DataFrame, known: Iterable[str], *, infers_times: bool) -> DataFrame:
    """CSV's texts as what they are, by the rule of `wire/rows_csv`, over all rows; `known` columns keep their texts."""
    names = [name for name in rows.columns if name not in set(known)]
    kinds = [("bigint", WHOLE), ("double", NUMBER), ("boolean", BOOLEAN)]
    if infers_times:
        kinds.append(("timestamp", MOMENT))
    tests = [
        sf.expr(f"bool_and({spark_name(name)} RLIKE {spark_text(pattern)})") for name in names for _, pattern in kinds
    ]
    if not tests:
        return rows
    told = rows.agg(*(test.alias(f"t{number}") for number, test in enumerate(tests))).first()
    assert told is not None
    casts = {}
    for place, name in enumerate(names):
        are = told[place * len(kinds) : (place + 1) * len(kinds)]
        # No value at all: a text, until one comes.
        kind = next((kind for (kind, _), fits in zip(kinds, are, strict=True) if fits), "string")
        casts[name] = f"CAST({spark_name(name)} AS {kind})"
    return rows.selectExpr(*(f"{casts.get(name, spark_name(name))} AS {spark_name(name)}" for name in rows.columns))


def key_column(key: tuple[str, ...], seen: Mapping[str, str]) -> str:
    """The text of each row's key by the rule of `model.keys`, in SQL. Raises Invalid where Spark cannot write it."""
    if missing := [name for name in key if name not in seen]:
        raise Invalid(f"the key columns are not there. expected={missing} got={sorted(seen)[:20]}", reason="no_key")
    for name in key:
        if seen[name] not in _KEYS:
            raise Invalid(
                f"a key of this type is loaded through the log. column={name!r} expected=whole numbers, text, date or "
                f"boolean got={seen[name]}",
                reason="no_key",
            )
    if len(key) == 1:
        return _present(key[0], f"CAST({spark_name(key[0])} AS string)")
    parts = ["'{'"]
    for number, name in enumerate(sorted(key)):
        lead = "," if number else ""
        parts += [f"concat({spark_text(lead)}, {_json_text(spark_text(name))}, ':')", _json_value(name, seen[name])]
    return f"concat({', '.join(parts)}, '}}')"


def _present(name: str, text: str) -> str:
    return f"coalesce({text}, raise_error({spark_text(f'a row lacks its key. column={name} got=null')}))"


def _json_value(name: str, seen: str) -> str:
    text = _present(name, f"CAST({spark_name(name)} AS string)")
    if seen in ("int", "bool"):
        return text
    return f"concat('\"', {text}, '\"')" if seen == "date" else _json_text(text)


def _json_text(text: str) -> str:
    escaped = f"replace(replace({text}, '\\\\', '\\\\\\\\'), '\"', '\\\\\"')"
    refusal = "raise_error('a key with control characters is loaded through the log')"
    return f"if({text} RLIKE '[\\\\x00-\\\\x1f]', {refusal}, concat('\"', {escaped}, '\"'))"


def as_column(column: Column, seen: str) -> SparkColumn:
    """A column of the files as the table has it."""
    name, wanted = spark_name(column.name), str(column.type)
    spark_type = _spark_type(column.type)
    if seen == "null":
        return sf.expr(f"CAST(NULL AS {spark_type})")
    if (seen, wanted) in _CASTS or _widens(seen, wanted):
        return sf.expr(f"CAST({_checked(column.name, name, seen)} AS {spark_type})")
    # It is there, though its stubs say otherwise.
    arrow_udf: Any = sf.arrow_udf  # type: ignore[attr-defined]

    def convert(values: pa.Array) -> pa.Array:
        return _convert(column.type, column.name, values)

    converted: SparkColumn = arrow_udf(convert, spark_type)(sf.col(name))
    return converted


def no_column(column: Column) -> SparkColumn:
    """A column that the files do not have."""
    return sf.expr(f"CAST(NULL AS {_spark_type(column.type)})")


def check_type(kind: ColumnType) -> None:
    """Raise Invalid for a column that no load writes."""
    if kind in ("variant", "uuid"):
        raise Invalid(f"a table with {kind} columns is loaded through the log")


def _spark_type(kind: ColumnType) -> str:
    check_type(kind)
    return _SPARK_TYPES.get(kind, str(kind))


def _widens(seen: str, wanted: str) -> bool:
    before, after = decimal_of(seen), decimal_of(wanted)
    return before is not None and after is not None and before[1] == after[1] and before[0] <= after[0]


def _checked(column: str, name: str, seen: str) -> str:
    """Values that JSON, or a reader, cannot show would stop a later merge: they are refused, as they are by the log."""
    if seen == "double":
        bad = f"isnan({name}) OR abs({name}) = double('infinity')"
        return _unless(bad, name, f"a value is no number that JSON can hold. column={column}")
    if seen in ("date", "timestamp", "timestamptz"):
        kind = _SPARK_TYPES.get(seen, seen)
        last = _LAST if seen == "date" else _LAST_MOMENT
        bad = f"{name} < CAST('{_FIRST}' AS {kind}) OR {name} > CAST('{last}' AS {kind})"
        return _unless(bad, name, f"a time is out of range. column={column} expected={_FIRST} to {_LAST}")
    return name


def _unless(bad: str, name: str, message: str) -> str:
    return f"if({bad}, raise_error({spark_text(message)}), {name})"


def _convert(kind: ColumnType, column: str, values: pa.Array) -> pa.Array:
    """On the executors: from values to JSON texts, as in the log, to values of the column's type."""
    from mainstem.pipeline.passes.values import arrow_type

    convert = converter(kind)
    found: list[Any] = []
    for text, is_null in zip(json_values(values).to_pylist(), values.is_null().to_pylist(), strict=True):
        value = None if is_null else convert(text.encode())
        if value is UNFIT:
            raise ValueError(f"a value does not fit its column. column={column} expected={kind} got={text:.80}")
        found.append(value)
    return pa.array(found, arrow_type(kind))


def is_long(file: Mapping[str, Any], field_id: int, kind: str) -> bool:
    """Whether a file has whole numbers that a double does not keep, by its bounds."""
    if kind not in ("long", "double"):
        return False
    for bounds in filter(None, (file.get("lower-bounds"), file.get("upper-bounds"))):
        found = dict(zip(bounds["keys"], bounds["values"], strict=True)).get(field_id)
        if found is not None:
            (value,) = struct.unpack("<q" if kind == "long" else "<d", bytes.fromhex(found))
            if abs(value) > _EXACT_MAX:
                return True
    return not file.get("lower-bounds")  # Without bounds nothing is known of it.
