"""Which type a column takes when a value comes that it cannot hold: by the table's own setting, kept in its log.

Owns the setting and the choice, and nothing else: `widening` writes the rows that are there anew. A choice is only ever
of a type that holds what is stored and what comes, each as it is. Where there is none, the value stays refused.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from mainstem.documents.columns import Kind
from mainstem.formats.delta.constraints import CONSTRAINT
from mainstem.formats.delta.log import Metadata
from mainstem.formats.delta.schema import KIND, VARIANT, WIDENED, Field, retyped, schema_of
from mainstem.formats.delta.values import json_cells
from mainstem.formats.delta.values.exact import UNFIT, refused
from mainstem.formats.delta.values.rows import TIMESTAMP, Values, decimal_type, is_exact_double, kind_of, values_of
from mainstem.model.errors import Invalid

EVOLUTION = "mainstem.evolution"
# Every integer up to here is a double, in either direction.
_DOUBLE_MAX = 2**53
# Arrow turns integers of 64 bits into decimals that have room for 19 digits before the point.
_SCALE_MAX_OF_INTEGERS = 38 - 19
_NUMBERS = frozenset([Kind.INTEGER, Kind.DOUBLE, Kind.DECIMAL])
_PLAIN = frozenset([Kind.INTEGER, Kind.DOUBLE, Kind.STRING, Kind.BOOLEAN])


class Evolution(enum.Enum):
    """What a table does with a value that its column cannot hold."""

    REFUSE = "refuse"
    # The column becomes the narrowest that holds everything, JSON text at the last.
    WIDEN = "widen"
    VARIANT = "variant"


def evolution_of(configuration: Mapping[str, str | None]) -> Evolution:
    """The table's setting."""
    said = configuration.get(EVOLUTION) or Evolution.REFUSE.value
    try:
        return Evolution(said)
    except ValueError:
        raise Invalid(f"{EVOLUTION}. expected={'|'.join(each.value for each in Evolution)} got={said!r}") from None


def with_evolution(properties: Mapping[str, str] | None, evolution: str | None) -> dict[str, str]:
    """A table's properties with the setting, checked."""
    settings = dict(properties or {}) | ({} if evolution is None else {EVOLUTION: evolution})
    evolution_of(settings)
    return settings


class Stored(Protocol):
    """What the choice depends on, of the values that are there."""

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """The least and the largest value of a column; None where it has none."""

    def is_finite(self, name: str) -> bool:
        """Whether a column of doubles has neither NaN nor infinities."""


class Widening:
    """The changed columns of one write: called for each that does not hold what came."""

    def __init__(self, metadata: Metadata, stored: Stored, keys: Iterable[str] = ()) -> None:
        """`keys` are the columns by which an upsert finds rows."""
        self._evolution = evolution_of(metadata.configuration)
        self._stored = stored
        self._keys = frozenset(keys)
        # What the table will be.
        self.metadata = metadata

    def __call__(self, known: Field, values: Values, error: Invalid) -> Field:
        """The column that holds what is stored and what came. Raises `error` where there is none, or may be none."""
        name = known.name
        if self._evolution is Evolution.REFUSE or known.is_variant:
            raise error
        for columns, what in ((self._keys, "a key of the upsert"), (self.metadata.partitionColumns, "a partition")):
            if name in columns:
                raise Invalid(f"{error}. it is {what}, and keeps its type", reason="schema") from error
        rule = _rule_about(self.metadata, name)
        if rule is not None:
            raise Invalid(f"{error}. a constraint names it, so it keeps its type. constraint={rule}", reason="schema")
        if has_map(known.type) or (isinstance(values, pa.ChunkedArray) and has_map(values.type)):
            raise Invalid(f"{error}. a map does not become JSON or a Variant", reason="schema") from error
        target = self._target(known, _Seen(values, known))
        if target is None:
            raise error
        self.metadata = retyped(self.metadata, target)
        return schema_of(self.metadata).fields[name]

    def _target(self, known: Field, seen: "_Seen") -> pa.Field | None:
        if self._evolution is Evolution.VARIANT:
            return _column(known, VARIANT, "variant")
        if known.column.kind is Kind.EXTENDED_JSON:
            return None
        typed = self._typed(known, seen)
        if typed is not None:
            return _column(known, typed)
        is_plain = (
            seen.is_plain
            and known.column.kind in _PLAIN
            and (known.column.kind is not Kind.DOUBLE or self._stored.is_finite(known.name))
        )
        return _column(known, pa.string(), (Kind.JSON if is_plain else Kind.EXTENDED_JSON).value)

    def _typed(self, known: Field, seen: "_Seen") -> pa.DataType | None:
        kind, kinds = known.column.kind, seen.kinds
        if kind is Kind.INTEGER and kinds <= {Kind.INTEGER}:
            return pa.int64()
        if kind is Kind.DOUBLE and kinds <= {Kind.INTEGER, Kind.DOUBLE}:
            return pa.float64() if seen.is_exact_double and pa.types.is_float32(known.type) else None
        if kind is Kind.DATE and kinds <= {Kind.DATE, Kind.TIMESTAMP_TZ}:
            return TIMESTAMP
        if kind not in (Kind.INTEGER, Kind.DECIMAL) or not kinds <= _NUMBERS:
            return None
        bounds = self._stored.bounds(known.name) or (0, 0)
        are_doubles = seen.is_exact_double and bounds[0] >= -_DOUBLE_MAX and bounds[1] <= _DOUBLE_MAX
        if kind is Kind.INTEGER and Kind.DECIMAL not in kinds and are_doubles:
            return pa.float64()
        return _decimals(known, bounds, seen)


def has_map(type_: pa.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    if pa.types.is_map(type_):
        return True
    return pa.types.is_nested(type_) and any(has_map(type_.field(at).type) for at in range(type_.num_fields))


class _Seen:
    """What came for a column, in short."""

    def __init__(self, values: Values, known: Field) -> None:
        self.kinds: set[Kind] = set()
        self.is_exact_double = self.is_plain = True
        # Of the numbers: the widest, for the digits of a decimal.
        self.decimals: pa.DataType | None = pa.decimal128(38, 0)
        self.whole = 0
        try:
            for part in values_of(values):
                self._add([value for value in part if value is not None])
        except UNFIT as error:
            raise refused(known.name, known.type, error) from None

    def _add(self, values: list[Any]) -> None:
        kinds = {kind_of(value) for value in values}
        self.kinds |= kinds
        self.is_plain = self.is_plain and all(map(json_cells.is_plain, values))
        if not values or not kinds <= _NUMBERS:
            return
        self.is_exact_double = self.is_exact_double and Kind.DECIMAL not in kinds and all(map(is_exact_double, values))
        type_ = None if self.decimals is None else decimal_type(values)
        if type_ is None or self.decimals is None:
            self.decimals = None
            return
        self.decimals = max(self.decimals, type_, key=lambda each: each.scale)
        # A decimal's exponent is the same whichever number of a sign it is.
        self.whole = max(self.whole, *(_whole_digits(value) for value in values))


def _decimals(known: Field, bounds: tuple[Any, Any], seen: _Seen) -> pa.DataType | None:
    """The decimals that hold what is stored and what came; None where no decimals do."""
    if seen.decimals is None:
        return None
    scale = max(seen.decimals.scale, known.column.scale)
    if known.column.kind is Kind.INTEGER and scale > _SCALE_MAX_OF_INTEGERS:
        return None
    whole = max(seen.whole, *map(_whole_digits, bounds))
    return pa.decimal128(38, scale) if whole + scale <= 38 else None


def _whole_digits(value: Any) -> int:
    """How many digits a number has before its point."""
    return len(str(abs(int(value.to_decimal() if hasattr(value, "to_decimal") else value))))


def _column(known: Field, type_: pa.DataType, kind: str | None = None) -> pa.Field:
    # Text that other engines write into a column of theirs stays text in it: only the mark tells it from JSON.
    said = {KIND: kind, WIDENED: "true"} if kind else None
    return pa.field(known.name, type_, known.nullable, said)


def _rule_about(metadata: Metadata, name: str) -> str | None:
    """A constraint or an invariant that names a column, in which case its meaning hangs on the type."""
    word = re.compile(rf"(?<!\w){re.escape(name.replace('`', '``'))}(?!\w)", re.IGNORECASE)
    for rule, text in metadata.configuration.items():
        if rule.startswith(CONSTRAINT) and text and word.search(text):
            return rule.removeprefix(CONSTRAINT)
    for field in msgspec.json.decode(metadata.schemaString)["fields"]:
        invariant = (field.get("metadata") or {}).get("delta.invariants")
        if invariant and (field["name"] == name or word.search(str(invariant))):
            return str(invariant)
    return None
