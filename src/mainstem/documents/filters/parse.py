"""From the filter language to the tree. Refuses what it does not know, so that nothing is quietly ignored.

Owns the syntax of filters and its bounds. The expression language inside `$expr` is in `expressions`.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from bson.code import Code
from bson.regex import Regex

from mainstem.documents.errors import Refused
from mainstem.documents.expressions import NO_NAMES, Names, Scope, bound, parse_expression
from mainstem.documents.filters.ast import (
    NOTHING,
    And,
    AnyElement,
    Bits,
    Compare,
    Exists,
    Expr,
    Field,
    Length,
    Modulo,
    Node,
    Not,
    OfType,
    OneOf,
    Op,
    Or,
    Pattern,
    Schema,
)
from mainstem.documents.filters.patterns import pattern_of
from mainstem.documents.paths import Path, parse_path
from mainstem.documents.schema import check_schema
from mainstem.documents.values import (
    DEPTH_MAX,
    INT64_MAX,
    INT64_MIN,
    NUMBER_CODES,
    TYPE_CODES,
    Rank,
    binary_parts,
    is_array,
    is_number,
    number_of,
    order_key,
    rank_of,
)
from mainstem.model.errors import Invalid

# A filter arrives in one message; these bound the work that a message can ask for per document.
NODES_MAX = 10_000
OPERANDS_MAX = 100_000


def parse_filter(source: Mapping[str, Any], names: Names = NO_NAMES, scope: Scope | None = None) -> Node:
    """Read a filter document. Raises Invalid for an unknown operator, a bad operand or one of the bounds.

    `names` are the variables that its `$expr` may use, whose values come later; those of `scope` have theirs now.
    """
    return _Parser(names, scope or {}).document(source, 0, top=True)


def parse_at(path: Path, condition: Any) -> Node:
    """Read what stands at a field in a filter, for a path that is already split."""
    return _Parser().condition(path, condition, 0)


def is_operators(value: Any) -> bool:
    """Whether a value is a document of operators rather than a value to be equal to. A DBRef is a value."""
    if not isinstance(value, Mapping) or not value:
        return False
    first = next(iter(value))
    return isinstance(first, str) and first.startswith("$") and first not in ("$ref", "$id", "$db")


def _invalid(message: str) -> Invalid:
    return Invalid(message, reason="bad_filter")


# Known, and not answered here: name, why, and the code.
_NO_GEOMETRY = "geometry is not supported"
NOT_ANSWERED: dict[str, tuple[str, int]] = {
    "$where": ("server-side JavaScript is not run", 115),
    "$text": ("there is no text index", 27),
    "$sampleRate": ("use the stage $sample", 115),
    "$uniqueDocs": (_NO_GEOMETRY, 115),
    **dict.fromkeys(
        ("$geoWithin", "$geoIntersects", "$near", "$nearSphere", "$within", "$geoNear", "$maxDistance", "$minDistance"),
        (_NO_GEOMETRY, 115),
    ),
}


def _refusal(name: str) -> Refused | None:
    if name not in NOT_ANSWERED:
        return None
    why, code = NOT_ANSWERED[name]
    return Refused(f"{name} is not supported: {why}", code=code, reason="bad_filter")


class _Parser:
    """Counts what it builds; one per filter."""

    def __init__(self, names: Names = NO_NAMES, scope: Scope | None = None) -> None:
        self.nodes = 0
        self.scope = scope or {}
        self.names = names.union(self.scope)

    def document(self, source: Any, depth: int, *, top: bool) -> Node:
        if not isinstance(source, Mapping):
            raise _invalid(f"a filter is a document. got={type(source).__name__}")
        self._count(depth)
        children: list[Node] = []
        for name, value in source.items():
            if not isinstance(name, str):
                raise _invalid(f"a field's name is text. got={type(name).__name__}")
            if name.startswith("$"):
                node = self._logical(name, value, depth, top=top)
                if node is not None:
                    children.append(node)
            else:
                children.append(self.condition(parse_path(name), value, depth + 1))
        return children[0] if len(children) == 1 else And(tuple(children))

    def _logical(self, name: str, value: Any, depth: int, *, top: bool) -> Node | None:
        match name:
            case "$and" | "$or" | "$nor":
                if not is_array(value) or not value:
                    raise _invalid(f"{name} takes a nonempty array. got={type(value).__name__}")
                children = tuple(self.document(item, depth + 1, top=top) for item in value)
                if name == "$and":
                    return And(children)
                return Or(children) if name == "$or" else Not(Or(children))
            case "$expr":
                if not top:
                    raise _invalid("$expr stands at the top of a filter. got=$expr inside $elemMatch")
                self._count(depth)
                expression = parse_expression(value, self.names)
                return Expr(bound(expression, self.scope) if self.scope else expression)
            case "$jsonSchema":
                self._count(depth)
                check_schema(value)
                return Schema(value)
            case "$comment":
                return None
            case _:
                raise _refusal(name) or _invalid(f"unknown top level operator. got={name}")

    def condition(self, path: Path, value: Any, depth: int) -> Node:
        self._count(depth)
        if is_operators(value):
            return self._operators(path, value, depth)
        if isinstance(value, Regex | re.Pattern):
            return Field(path, pattern_of(value))
        return Field(path, self._compare(Op.EQ, value))

    def _operators(self, path: Path, source: Mapping[str, Any], depth: int) -> Node:
        if "$options" in source and "$regex" not in source:
            raise _invalid("$options needs a $regex")
        children: list[Node] = []
        for name, operand in source.items():
            if name == "$options":
                continue
            if name == "$regex":
                children.append(Field(path, pattern_of(operand, source.get("$options"))))
                continue
            build = _OPERATORS.get(name)
            if build is None:
                raise _refusal(name) or _invalid(f"unknown operator. got={name}")
            self._count(depth)
            children.append(build(self, path, operand, depth))
        return children[0] if len(children) == 1 else And(tuple(children))

    def _count(self, depth: int) -> None:
        self.nodes += 1
        if depth > DEPTH_MAX:
            raise _invalid(f"filter is nested too deep. expected=at most {DEPTH_MAX} levels")
        if self.nodes > NODES_MAX:
            raise _invalid(f"filter is too large. expected=at most {NODES_MAX} conditions")

    def _compare(self, op: Op, operand: Any) -> Compare:
        # Building the key proves that the operand is a value, and not too deep, before any document is looked at.
        order_key(operand)
        return Compare(op, operand)

    def relation(self, path: Path, operand: Any, depth: int, *, op: Op) -> Node:
        if op is not Op.EQ and isinstance(operand, Regex | re.Pattern):
            raise _invalid(f"{op.value} does not take a regex")
        if isinstance(operand, re.Pattern):
            operand = Regex.from_native(operand)
        return Field(path, self._compare(op, operand))

    def differs(self, path: Path, operand: Any, depth: int) -> Node:
        if isinstance(operand, Regex | re.Pattern):
            raise _invalid("$ne does not take a regex. expected=$not with the regex")
        return Not(Field(path, self._compare(Op.EQ, operand)))

    def among(self, path: Path, operand: Any, depth: int, *, name: str) -> Node:
        if not is_array(operand):
            raise _invalid(f"{name} takes an array. got={type(operand).__name__}")
        if len(operand) > OPERANDS_MAX:
            raise _invalid(f"{name} is too long. expected=at most {OPERANDS_MAX} got={len(operand)}")
        values: list[Any] = []
        patterns: list[Pattern] = []
        for item in operand:
            if is_operators(item):
                raise _invalid(f"{name} takes values, not operators. got={next(iter(item))}")
            if isinstance(item, Regex | re.Pattern):
                patterns.append(pattern_of(item))
            else:
                order_key(item)
                values.append(item)
        node = Field(path, OneOf(tuple(values), tuple(patterns)))
        return Not(node) if name == "$nin" else node

    def negation(self, path: Path, operand: Any, depth: int) -> Node:
        if isinstance(operand, Regex | re.Pattern):
            return Not(Field(path, pattern_of(operand)))
        if not is_operators(operand):
            raise _invalid(f"$not takes a regex or a nonempty document of operators. got={type(operand).__name__}")
        return Not(self._operators(path, operand, depth + 1))

    def every(self, path: Path, operand: Any, depth: int) -> Node:
        if not is_array(operand):
            raise _invalid(f"$all takes an array. got={type(operand).__name__}")
        if not operand:
            return NOTHING
        forms = {is_operators(item) and next(iter(item)) for item in operand}
        if forms == {"$elemMatch"}:
            return And(tuple(self.condition(path, item, depth + 1) for item in operand))
        if forms != {False}:
            raise _invalid("$all takes values, or $elemMatch throughout. got=another operator")
        return And(tuple(self.condition(path, item, depth + 1) for item in operand))

    def exists(self, path: Path, operand: Any, depth: int) -> Node:
        wanted = bool(number_of(operand)) if is_number(operand) else operand is not None and operand is not False
        node = Field(path, Exists())
        return node if wanted else Not(node)

    def of_type(self, path: Path, operand: Any, depth: int) -> Node:
        items = operand if is_array(operand) else [operand]
        if not items:
            raise _invalid("$type takes at least one type. got=[]")
        return Field(path, OfType(frozenset().union(*map(_type_codes, items))))

    def length(self, path: Path, operand: Any, depth: int) -> Node:
        count = _whole(operand)
        if count is None or count < 0:
            raise _invalid(f"$size takes a whole number from 0 up. got={operand!r}")
        return Field(path, Length(count))

    def modulo(self, path: Path, operand: Any, depth: int) -> Node:
        if not is_array(operand) or len(operand) != 2:
            raise _invalid("$mod takes [divisor, remainder]")
        divisor, remainder = (_truncated(item, "$mod") for item in operand)
        if divisor == 0:
            raise _invalid("$mod has a divisor of 0")
        return Field(path, Modulo(divisor, remainder))

    def bits(self, path: Path, operand: Any, depth: int, name: str) -> Node:
        return Field(path, Bits(bit_places(name, operand), every="All" in name, set=name.endswith("Set")))

    def element(self, path: Path, operand: Any, depth: int) -> Node:
        if not isinstance(operand, Mapping):
            raise _invalid(f"$elemMatch takes a document. got={type(operand).__name__}")
        if is_operators(operand) and next(iter(operand)) not in _WHOLE_DOCUMENT:
            return Field(path, AnyElement(self._operators((), operand, depth + 1), as_document=False))
        return Field(path, AnyElement(self.document(operand, depth + 1, top=False), as_document=True))


def _type_codes(item: Any) -> frozenset[int]:
    # JavaScript code is a str to Python, and no type's name to MongoDB.
    if isinstance(item, str) and not isinstance(item, Code):
        if item == "number":
            return NUMBER_CODES
        if item in TYPE_CODES:
            return frozenset({TYPE_CODES[item]})
    else:
        code = _whole(item)
        if code is not None and code in TYPE_CODES.values():
            return frozenset({code})
    raise _invalid(f"unknown type. got={item!r}")


def _whole(value: Any) -> int | None:
    """A number without a fraction, as an int."""
    if not is_number(value):
        return None
    number = number_of(value)
    if isinstance(number, int):
        return int(number)
    return int(number) if math.isfinite(number) and number == int(number) else None


def bit_places(name: str, operand: Any) -> tuple[int, ...]:
    """The places of bits: as a list, or those that are set in a number or in a binary."""
    if is_array(operand):
        places = [_whole(item) for item in operand]
        if any(place is None or place < 0 for place in places):
            raise _invalid(f"{name} takes places from 0 up. got={operand!r}")
        return tuple(place for place in places if place is not None)
    if rank_of(operand) is Rank.BINARY:
        data, _ = binary_parts(operand)
        return tuple(at for at in range(8 * len(data)) if data[at // 8] >> at % 8 & 1)
    mask = _whole(operand)
    if mask is None or not 0 <= mask <= INT64_MAX:
        raise _invalid(f"{name} takes a number from 0 up, a binary or an array of places. got={operand!r}")
    return tuple(at for at in range(64) if mask >> at & 1)


def _truncated(value: Any, name: str) -> int:
    if not is_number(value):
        raise _invalid(f"{name} takes numbers. got={type(value).__name__}")
    number = number_of(value)
    if not math.isfinite(number) or not INT64_MIN <= int(number) <= INT64_MAX:
        raise _invalid(f"{name} takes numbers of at most 64 bits. got={number}")
    return int(number)


# What stands for a document where other operators stand for a value.
_WHOLE_DOCUMENT = frozenset({"$and", "$or", "$nor", "$expr", "$comment", "$jsonSchema"})
_Build = Callable[[_Parser, Path, Any, int], Node]
_OPERATORS: dict[str, _Build] = {
    **{op.value: functools.partial(_Parser.relation, op=op) for op in Op},
    "$ne": _Parser.differs,
    "$in": functools.partial(_Parser.among, name="$in"),
    "$nin": functools.partial(_Parser.among, name="$nin"),
    "$not": _Parser.negation,
    "$all": _Parser.every,
    "$exists": _Parser.exists,
    "$type": _Parser.of_type,
    "$size": _Parser.length,
    "$mod": _Parser.modulo,
    "$elemMatch": _Parser.element,
    **{
        name: functools.partial(_Parser.bits, name=name)
        for name in ("$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear")
    },
}
# For the guide: all that a filter may say.
FILTER_OPERATORS = frozenset(_OPERATORS) | {
    "$and", "$or", "$nor", "$expr", "$jsonSchema", "$comment", "$regex", "$options",
}  # fmt: skip
