"""Rows of one table as they are posted: JSON, JSON lines. Checked whole, or refused with the number of the bad row.

What a batch keeps (`Encoding.ROWS_JSON`, `ROWS_ARROW`) is a head and then the body:

    u32 length of the head | head, JSON: the table, what the rows mean, the key columns | body

The body is a JSON array of objects, or an Arrow stream (`wire/rows_arrow.py`, which also reads CSV).
"""

import struct
from enum import StrEnum
from typing import Any

import msgspec

from mainstem.model.errors import Invalid
from mainstem.model.keys import key_text

_LENGTH = struct.Struct("<I")
_SHOWN = 80
_objects = msgspec.json.Decoder(list[dict[str, Any]])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, Any])


class Mode(StrEnum):
    """What posted rows do to their table."""

    # By key: a new row, or new values of the columns that the row has.
    UPSERT = "upsert"
    # Every row is a new one.
    APPEND = "append"
    # By key; other columns are not looked at.
    DELETE = "delete"


class RowsHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all rows of a request."""

    table: str
    mode: Mode
    key: tuple[str, ...] = ()
    # What the history says of each of them besides.
    metadata: dict[str, Any] | None = None


class Checked(msgspec.Struct, frozen=True, gc=False):
    """A body that was found to be right: how many rows, and what the log keeps of it."""

    count: int
    body: bytes


def pack(head: RowsHead, body: bytes) -> bytes:
    """The payload of a batch."""
    encoded = msgspec.json.encode(head)
    return _LENGTH.pack(len(encoded)) + encoded + body


def unpack(payload: bytes | memoryview) -> tuple[RowsHead, memoryview]:
    """Head and body. Raises ValueError where this is no such payload."""
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise ValueError(f"rows. expected=at least {_LENGTH.size} bytes got={len(view)}")
    (size,) = _LENGTH.unpack_from(view)
    try:
        head = msgspec.json.decode(view[_LENGTH.size : _LENGTH.size + size], type=RowsHead)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the head of the rows cannot be read. got={error}") from error
    return head, view[_LENGTH.size + size :]


def check_json(body: bytes, key: tuple[str, ...], event_bytes_max: int) -> Checked:
    """An object, or an array of objects, each with its key columns. Raises Invalid, with the row's number from 1 on."""
    text = body.strip()
    if text[:1] == b"{":
        text = b"[" + text + b"]"
    try:
        rows = _objects.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_rows(text, error) from None
    _check_rows(rows, key, "row")
    if len(text) > event_bytes_max:
        _check_sizes([len(raw) for raw in _raws.decode(text)], event_bytes_max, "row")
    return Checked(len(rows), text)


def check_lines(body: bytes, key: tuple[str, ...], event_bytes_max: int) -> Checked:
    """One object per line; empty lines are passed over. Raises Invalid, with the line's number from 1 on."""
    numbered = [(number, line) for number, line in enumerate(body.split(b"\n"), start=1) if line.strip()]
    lines = [line for _, line in numbered]
    _check_sizes([len(line) for line in lines], event_bytes_max, "line", [number for number, _ in numbered])
    rows = []
    for number, line in numbered:
        try:
            rows.append(_object.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"line {number} is not a JSON object. got={_shown(line)} reason={error}") from None
    _check_rows(rows, key, "line", [number for number, _ in numbered])
    return Checked(len(rows), b"[" + b",".join(lines) + b"]")


def key_of_row(row: dict[str, Any], key: tuple[str, ...]) -> str:
    """The row's key by its key columns, which it has."""
    return key_text({name: row[name] for name in key})


def _check_rows(rows: list[dict[str, Any]], key: tuple[str, ...], unit: str, numbers: list[int] | None = None) -> None:
    if not rows:
        raise Invalid("there are no rows. expected=at least 1 got=0", reason="no_rows")
    for index, row in enumerate(rows):
        for name in key:
            if row.get(name) is None:
                number = index + 1 if numbers is None else numbers[index]
                got = "null" if name in row else "nothing"
                raise Invalid(
                    f"{unit} {number} lacks its key. expected=a value in column {name!r} got={got}", reason="no_key"
                )


def _check_sizes(sizes: list[int], size_max: int, unit: str, numbers: list[int] | None = None) -> None:
    for index, size in enumerate(sizes):
        if size > size_max:
            number = index + 1 if numbers is None else numbers[index]
            raise Invalid(
                f"{unit} {number} is too large. expected=at most {size_max} bytes got={size}", reason="event_too_large"
            )


def _bad_rows(text: bytes, error: Exception) -> Invalid:
    """Which row it is that cannot be read; where not even rows can be told apart, what the parser says."""
    try:
        raws = _raws.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as whole:
        return Invalid(f"the body is not JSON. expected=an object or an array of objects got={whole}")
    for number, raw in enumerate(raws, start=1):
        try:
            _object.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
            return Invalid(f"row {number} is not a JSON object. got={_shown(bytes(raw))} reason={why}")
    return Invalid(f"the body cannot be read. got={error}")


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN].decode("utf-8", "replace"))
