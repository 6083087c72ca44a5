"""Values of Arrow's columns as JSON, as the log keeps them: column by column, row by row only where they are nested."""

import math
from typing import Any

import msgspec
import pyarrow as pa

_NESTED_ROWS = 4_096


def column_types(batch: pa.RecordBatch) -> dict[str, set[str]]:
    """What each column's values are, in the words of a segment's footer: JSON types, or the type that the column should
    have where JSON has none."""
    return {field.name: _types(field.type, column) for field, column in zip(batch.schema, batch.columns, strict=True)}


def json_texts(batch: pa.RecordBatch) -> pa.StringArray:
    """Each row as a JSON object."""
    import pyarrow.compute as pc

    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        lead = b"{" if number == 0 else b","
        parts.append(lead.decode() + msgspec.json.encode(name).decode() + ":")
        parts.append(json_values(column))
    if not parts:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def key_texts(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.StringArray:
    """Each row's key, by the rule of `model.keys`."""
    if len(key) > 1:
        return json_texts(batch.select(sorted(key)))
    column = _plain(batch.column(key[0]))
    if pa.types.is_string(column.type):
        return column
    texts = json_values(column)
    if _is_quoted(column.type):
        import pyarrow.compute as pc

        return pc.utf8_slice_codeunits(texts, 1, -1)
    return texts


def not_finite(batch: pa.RecordBatch) -> dict[int, str]:
    """The rows with a number that JSON cannot hold, and which column it is."""
    import pyarrow.compute as pc

    found: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_floating(column.type):
            continue
        bad = pc.invert(pc.is_finite(column.cast(pa.float64())))
        for index in pc.indices_nonzero(bad.fill_null(False)).to_pylist():
            found.setdefault(index, f"column {name!r} is not a number that JSON can hold. got={column[index].as_py()}")
    return found


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, however they are stored."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes, however they are stored."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_view(kind: pa.DataType) -> bool:
    """Whether values lie elsewhere than one behind the other."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_quoted(kind: pa.DataType) -> bool:
    """Whether JSON has such a value as a string without anything to escape."""
    types = pa.types
    return bool(types.is_temporal(kind) or types.is_decimal(kind) or is_binary(kind))


def _plain(column: pa.Array) -> pa.Array:
    """Texts as plain strings, instants in UTC."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if is_text(kind):
        return column if pa.types.is_string(kind) else column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", None if kind.tz is None else "UTC"), safe=False)
    if pa.types.is_date64(kind):
        return column.cast(pa.date32(), safe=False)
    return column


def _types(kind: pa.DataType, column: pa.Array) -> set[str]:
    types = pa.types
    found = {"null"} if column.null_count else set()
    if types.is_boolean(kind):
        found.add("bool")
    elif types.is_integer(kind):
        found |= _integer_types(column)
    elif types.is_floating(kind):
        found.add("double")
    elif types.is_decimal(kind):
        found.add(f"decimal({kind.precision},{kind.scale})")
    elif types.is_date(kind):
        found.add("date")
    elif types.is_timestamp(kind):
        found.add("timestamp" if kind.tz is None else "timestamptz")
    elif is_binary(kind):
        found.add("binary")
    elif types.is_struct(kind):
        found.add("object")
    elif types.is_nested(kind) and not types.is_dictionary(kind):
        found.add("array")
    elif not types.is_null(kind):
        found.add("string")
    return found


def _integer_types(column: pa.Array) -> set[str]:
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return {"int"}
    found = set()
    for value in bounds.values():
        safe = -(1 << 53) <= value <= 1 << 53
        found.add("int" if safe else "long" if value < 1 << 63 else "big")
    return found


def json_values(column: pa.Array) -> pa.StringArray:
    """Each value as JSON text; a null as null."""
    import pyarrow.compute as pc

    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(column), pa.string())
    if pa.types.is_string(kind):
        texts = _quoted(_escaped(column))
    elif pa.types.is_nested(kind):
        texts = _nested(column)
    elif is_binary(kind):
        values = column.cast(pa.binary()).to_pylist()
        texts = pa.array([None if value is None else _base64(value) for value in values], pa.string())
    elif _is_quoted(kind):
        texts = _quoted(column.cast(pa.string()))
    elif pa.types.is_floating(kind):
        numbers = column.cast(pa.float64())
        # What JSON cannot hold is null here; `not_finite` tells which rows these are.
        finite = pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))
        texts = finite.cast(pa.string())
    else:
        texts = column.cast(pa.string())
    return texts.fill_null("null") if texts.null_count else texts


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring_regex(texts, r'["\\\x00-\x1f]')).as_py():
        return texts
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        encode = msgspec.json.encode
        return pa.array(
            [None if text is None else encode(text).decode()[1:-1] for text in texts.to_pylist()], pa.string()
        )
    return pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')


def _nested(column: pa.Array) -> pa.StringArray:
    """Value by value: nested values are few, and Arrow has no JSON."""
    texts: list[str | None] = []
    for start in range(0, len(column), _NESTED_ROWS):
        for value in column.slice(start, _NESTED_ROWS).to_pylist():
            texts.append(None if value is None else msgspec.json.encode(_json_value(value), order=None).decode())
    return pa.array(texts, pa.string())


def _json_value(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [_json_value(each) for each in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _base64(value: bytes) -> str:
    import binascii

    return '"' + binascii.b2a_base64(value, newline=False).decode() + '"'
