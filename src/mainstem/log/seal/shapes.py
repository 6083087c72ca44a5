"""The shape of a table's rows within one segment: the JSON types of each column, and the columns every row has.

Most rows of a table look alike. So the shape is learnt from the first rows, and turned into a pattern of their text and
into a decoder, which both accept just what was learnt; rows that one of them accepts have nothing new to tell. Only the
others are looked at value by value. The pattern is the quicker one, and wants the columns in the order it knows.
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from mainstem.model.typed_text import DecimalText, TimeText

NAME_LENGTH_MAX = 255
COLUMNS_MAX = 1_000
DEPTH_MAX = 64

INT_MAX = 1 << 53
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

# A decoder is worth its making for tables that are not too wide, and whose shape does not change all the time.
_DECODER_COLUMNS_MAX = 256
_DECODERS_MAX = 16
_MISSES_MAX = 16

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NESTED = (dict, list)
# Types of which every value can be kept.
_SOUND = frozenset({str, int, bool, type(None), TimeText, DecimalText})
_JSON_TYPES: Mapping[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "double",
    str: "string",
    dict: "object",
    list: "array",
    TimeText: "time",
    DecimalText: "decimal",
}
_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX, le=INT_MAX)]
# The types that a decoder can tell as sharply as a look at the value does.
_DECODER_TYPES: Mapping[str, Any] = {"null": None, "bool": bool, "int": _Int, "double": float, "string": str}

# The same as text: no more than the decoder would take, and of what it takes whatever is usual. Numbers that come near
# the bounds of their type, and halves of surrogate pairs, are left to it.
_INT = "-?(?:0|[1-9][0-9]{0,14})"
_EXPONENT = "[eE][-+]?[0-9]{1,2}"
_ESCAPE = r"\\(?:[\"\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2})"
_PATTERNS: Mapping[str, str] = {
    "null": "null",
    "bool": "true|false",
    "int": _INT,
    "double": rf"-?(?:0|[1-9][0-9]{{0,16}})(?:\.[0-9]{{1,20}}(?:{_EXPONENT})?|{_EXPONENT})",
    "string": rf'"(?:[^\"\\\x00-\x1f]|{_ESCAPE})*"',
}
# ISO times with a zone, to the microsecond: a column of instants would not keep more digits than that. The 29th of
# February is left to a look at the value.
_LONG_MONTH, _SHORT_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_MONTH_DAY = f"(?:{_LONG_MONTH}|{_SHORT_MONTH}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[-+](?:0[0-9]|1[0-4]):[0-5][0-9])"
_YEAR = "(?:19|20|21)[0-9]{2}"
_TIME_PATTERN = f'"{_YEAR}-{_MONTH_DAY}T{_CLOCK}{_ZONE}"'
_TIME = re.compile(f"{_YEAR}-[0-1][0-9]-[0-3][0-9]T{_CLOCK}{_ZONE}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .:/-]+")

Row = dict[str, Any]
# What is wrong with the names of rows, None for nothing.
KnownNames = dict[tuple[str, ...], str | None]


def names_error(names: Sequence[str]) -> str | None:
    """Why a row with these columns cannot go into a table, or None."""
    if len(names) > COLUMNS_MAX:
        return f"too many columns. expected=at most {COLUMNS_MAX} got={len(names)}"
    for name in names:
        if not name:
            return "a column has an empty name"
        if len(name) > NAME_LENGTH_MAX:
            return f"column name is too long. expected=at most {NAME_LENGTH_MAX} got={len(name)} characters"
        if _CONTROL.search(name):
            return f"column name has a control character. got={name!r}"
    return None


def values_error(row: Row) -> str | None:
    """Why a value of this row cannot be kept, or None."""
    for name, value in row.items():
        if type(value) in _SOUND:
            continue
        if isinstance(value, _NESTED) and _is_deeper_than(value, DEPTH_MAX):
            return f"column {name!r} is nested too deep. expected=at most {DEPTH_MAX} levels"
        if isinstance(value, float) and not math.isfinite(value):
            return f"column {name!r} is not a number that JSON can hold. got={value}"
    return None


def row_error(row: Any, known: KnownNames) -> str | None:
    """Why this row cannot go into a table, or None. `known` is the batch's to keep: most of its rows
    have the same names."""
    if not isinstance(row, dict):
        return f"columns are not an object. expected=an object got={'nothing' if row is None else type(row).__name__}"
    names = tuple(row)
    if names not in known:
        known[names] = names_error(names)
    return known[names] or values_error(row)


def _is_deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _NESTED)
        ]
        if not layer:
            return False
    return True


def _types_of(values: Iterable[Any]) -> set[str]:
    kinds = set(map(type, values))
    # MessagePack brings dates and binaries, which JSON writes as text.
    found = {_JSON_TYPES.get(kind, "string") for kind in kinds if kind is not int}
    if int in kinds:
        integers = [value for value in values if type(value) is int] if len(kinds) > 1 else values
        low, high = min(integers), max(integers)
        if low >= -INT_MAX and high <= INT_MAX:
            found.add("int")
        else:
            found.update(map(_integer_type, integers))
    return found


def _integer_type(value: int) -> str:
    if -INT_MAX <= value <= INT_MAX:
        return "int"
    return "long" if LONG_MIN <= value <= LONG_MAX else "big"


def _is_time(text: Any) -> bool:
    if type(text) is not str or not _TIME.fullmatch(text):
        return False
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class Shape:
    """What is known of one table's rows. Only rows without an error are taken note of.

    With `infers_times`, a text that is an ISO time with a zone has the type that Mongo's dates have.
    """

    def __init__(self, *, infers_times: bool = False) -> None:
        self._infers_times = infers_times
        self._patterns = {**_PATTERNS, "time": _TIME_PATTERN} if infers_times else _PATTERNS
        self._types: dict[str, set[str]] = {}
        self._always: set[str] | None = None
        self._accepts: Callable[[bytes], bool] | None = None
        self._decoders_made = 0
        self._misses = 0
        # The columns as all rows that were looked at had them, in order; None once two differ.
        self._order: tuple[str, ...] | None = ()
        self._pattern: str | None = None
        self._pattern_misses = 0

    @property
    def columns(self) -> dict[str, list[str]]:
        """The JSON types seen in each column; the columns in the order in which they were first seen."""
        return {name: sorted(types) for name, types in self._types.items()}

    @property
    def always(self) -> list[str]:
        """The columns that every row had."""
        return sorted(self._always or ())

    def knows(self, rows_json: bytes) -> bool:
        """Whether every row of this JSON array is of the shape that is known, and so is free of errors too."""
        if self._accepts is None:
            return False
        if self._accepts(rows_json):
            self._misses = 0
            return True
        self._misses += 1
        if self._misses > _MISSES_MAX:
            self._accepts = None
        return False

    @property
    def is_new(self) -> bool:
        """Whether no row was looked at yet."""
        return not self._types

    def unknown(self, rows: pa.StringArray) -> Sequence[int]:
        """Which of these rows, JSON objects or null, have a text that is not of the known pattern. Nulls have none."""
        if self._pattern is None:
            return range(len(rows))
        # Not above: it takes a tenth of a second, which the gateway's start can do without.
        import pyarrow.compute as pc

        # Of a null, neither is true.
        strange = pc.invert(pc.match_substring_regex(rows, self._pattern))
        count = pc.sum(strange).as_py() or 0
        if count == 0:
            self._pattern_misses = 0
            return ()
        if count * 2 > len(rows):
            self._pattern_misses += 1
            if self._pattern_misses > _MISSES_MAX:
                self._pattern = None
        found: list[int] = pc.indices_nonzero(strange).to_pylist()
        return found

    def learn(self, rows: Sequence[Row]) -> None:
        """Look at rows value by value."""
        by_names: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_names.setdefault(tuple(row), []).append(row)
        changed = False
        for names, alike in by_names.items():
            for name, values in zip(names, zip(*[row.values() for row in alike], strict=True), strict=True):
                known = self._types.setdefault(name, set())
                types = self._types_of(values)
                changed = changed or not types <= known
                known |= types
            always = set(names) if self._always is None else self._always.intersection(names)
            changed = changed or always != self._always
            self._always = always
            self._order = names if self._order in ((), names) else None
        if changed and self._types:
            self._accepts = self._make_decoder()
            self._pattern = self._make_pattern()

    def _types_of(self, values: Sequence[Any]) -> set[str]:
        found = _types_of(values)
        if self._infers_times and "string" in found:
            texts = [value for value in values if type(value) is str]
            times = sum(map(_is_time, texts))
            found |= {"time"} if times else set()
            found -= {"string"} if times == len(texts) else set()
        return found

    def note(self, types: Mapping[str, set[str]]) -> None:
        """Take note of rows whose columns are known without a look at their values: each of them has all of these.

        A type may also be that of a table's column, where JSON has none for it (`tables.types.TYPED`).
        """
        for name, found in types.items():
            self._types.setdefault(name, set()).update(found)
        self._always = set(types) if self._always is None else self._always.intersection(types)
        self._order = None
        self._accepts = self._pattern = None

    def declare(self, types: Mapping[str, str]) -> None:
        """Take note of the types that the source gives these columns, beside the JSON types of their values."""
        for name, kind in types.items():
            known = self._types.setdefault(name, set())
            if kind not in known:
                known.add(kind)
                self._accepts = self._pattern = None

    def _make_pattern(self) -> str | None:
        """The text of a row that adds nothing to what is known; None where rows differ in more than their values."""
        if not self._order or self._decoders_made >= _DECODERS_MAX or len(self._types) > _DECODER_COLUMNS_MAX:
            return None
        fields = []
        for name in self._order:
            types = self._types[name]
            if not types <= self._patterns.keys() or not _PLAIN_NAME.fullmatch(name):
                return None
            value = "|".join(self._patterns[kind] for kind in sorted(types))
            fields.append(f'"{re.escape(name)}": ?(?:{value})')
        return "^\\{" + ", ?".join(fields) + "\\}$"

    def _make_decoder(self) -> Callable[[bytes], bool] | None:
        """A test for rows that adds nothing to what is known; None where it would not be sharp or not pay."""
        if self._decoders_made >= _DECODERS_MAX or len(self._types) > _DECODER_COLUMNS_MAX:
            return None
        fields: list[Any] = []
        doubles: list[str] = []
        for index, (name, types) in enumerate(self._types.items()):
            if not types <= _DECODER_TYPES.keys() or '"' in name or "\\" in name:
                return None
            kinds = {_DECODER_TYPES[kind] for kind in types}
            if "double" in types and "int" not in types:
                # A float field takes an integer without a word: let it show, and look.
                kinds.add(_Int)
                doubles.append(f"f{index}")
            union: Any = None
            for position, kind in enumerate(kinds):
                union = kind if position == 0 else union | kind
            required = name in (self._always or ())
            fields.append((f"f{index}", union) if required else (f"f{index}", union, msgspec.UNSET))
        self._decoders_made += 1
        # Required fields come first in a struct; keyword-only spares us the order.
        row = msgspec.defstruct(
            "_Row",
            fields,
            rename={f"f{index}": name for index, name in enumerate(self._types)},
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,
        )
        return _acceptor(msgspec.json.Decoder(list[row]), doubles)  # type: ignore[valid-type]


def _acceptor(decoder: msgspec.json.Decoder[Any], doubles: list[str]) -> Callable[[bytes], bool]:
    def accepts(rows_json: bytes) -> bool:
        try:
            rows = decoder.decode(rows_json)
        except (msgspec.MsgspecError, RecursionError):
            return False
        return not any(int in {type(getattr(row, name)) for row in rows} for name in doubles)

    return accepts
