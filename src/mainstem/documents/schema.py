"""`$jsonSchema`: MongoDB's dialect of JSON schema (draft 4 with `bsonType`), checked once and run as closures.

What a schema may say and this does not know is refused, so that no validator is quietly weaker than it reads.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from mainstem.documents.errors import Refused
from mainstem.documents.filters.patterns import compiled, pattern_of
from mainstem.documents.values import (
    DEPTH_MAX,
    NUMBER_CODES,
    TYPE_CODES,
    is_array,
    is_document,
    is_number,
    number_of,
    order_key,
    type_code,
)

Check = Callable[[Any], bool]
_JSON_TYPES = {
    "object": frozenset({3}),
    "array": frozenset({4}),
    "string": frozenset({2}),
    "boolean": frozenset({8}),
    "null": frozenset({10}),
    "number": NUMBER_CODES,
}
_ANNOTATIONS = frozenset({"title", "description"})


def _refused(message: str, code: int = 9) -> Refused:
    return Refused(f"$jsonSchema: {message}", code=code, reason="bad_filter")


def check_schema(source: Any) -> None:
    """Raise where a schema is not one."""
    validator(source)


def validator(source: Any) -> Check:
    """The schema as a predicate over documents."""
    return _schema(source, 0)


def _schema(source: Any, depth: int) -> Check:
    if not is_document(source):
        raise _refused("a schema is a document", 14)
    if depth > DEPTH_MAX:
        raise _refused(f"nested too deep. expected=at most {DEPTH_MAX} levels", 15)
    checks: list[Check] = []
    for name, value in source.items():
        if name in _ANNOTATIONS or name in _TOGETHER:
            continue
        build = _KEYWORDS.get(name)
        if build is None:
            raise _refused(f"unknown keyword. got={name}")
        checks.append(build(value, source, depth + 1))
    if "additionalProperties" in source or "patternProperties" in source:
        checks.append(_further(source, depth + 1))
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        if name in source and name.replace("exclusiveM", "m") not in source:
            raise _refused(f"{name} needs the bound that it excludes")
    return lambda value: all(check(value) for check in checks)


# Read with the keyword that they belong to.
_TOGETHER = frozenset(
    {"exclusiveMinimum", "exclusiveMaximum", "additionalProperties", "patternProperties", "additionalItems"}
)


def _types(value: Any, names: Mapping[str, frozenset[int]], what: str) -> Check:
    items = value if is_array(value) else [value]
    if not items:
        raise _refused(f"{what} takes at least one type")
    codes: set[int] = set()
    for item in items:
        if not isinstance(item, str):
            raise _refused(f"{what} takes names of types", 14)
        if item not in names:
            raise _refused(f"unknown type. got={item!r}", 2)
        codes |= names[item]
    return lambda found: type_code(found) in codes


_BSON_TYPES = {**{name: frozenset({code}) for name, code in TYPE_CODES.items()}, "number": NUMBER_CODES}


def _whole(value: Any, what: str) -> int:
    number = number_of(value) if is_number(value) else -1
    if number != int(number) or number < 0:
        raise _refused(f"{what} takes a whole number from 0 up. got={value!r}")
    return int(number)


def _bound(value: Any, exclusive: Any, *, minimum: bool) -> Check:
    if not is_number(value):
        raise _refused("a bound is a number", 14)
    if exclusive is not None and not isinstance(exclusive, bool):
        raise _refused("exclusiveMinimum and exclusiveMaximum are booleans", 14)
    key = order_key(value)

    def check(found: Any) -> bool:
        if type_code(found) not in NUMBER_CODES:
            return True
        own = order_key(found)
        if own == key:
            return not exclusive
        return own > key if minimum else own < key

    return check


def _multiple(value: Any) -> Check:
    if not is_number(value) or not number_of(value) > 0:
        raise _refused("multipleOf takes a number above 0")
    step = number_of(value)

    def check(found: Any) -> bool:
        if type_code(found) not in NUMBER_CODES:
            return True
        number = number_of(found)
        # Exactly: a double is the fraction that it stands for.
        return math.isfinite(number) and Fraction(number) % Fraction(step) == 0

    return check


def _pattern(value: Any) -> Check:
    if not isinstance(value, str):
        raise _refused("pattern is text", 14)
    find = compiled(pattern_of(value)).search
    return lambda found: not isinstance(found, str) or find(found) is not None


def _length(value: Any, what: str, is_kind: Check, *, least: bool) -> Check:
    bound = _whole(value, what)
    return lambda found: not is_kind(found) or (len(found) >= bound if least else len(found) <= bound)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _choice(value: Any) -> Check:
    if not is_array(value) or not value:
        raise _refused("enum takes a nonempty array")
    keys = {order_key(item) for item in value}
    return lambda found: order_key(found) in keys


def _several(value: Any, what: str, depth: int) -> list[Check]:
    if not is_array(value) or not value:
        raise _refused(f"{what} takes a nonempty array of schemas")
    return [_schema(item, depth) for item in value]


def _all_of(value: Any, source: Any, depth: int) -> Check:
    checks = _several(value, "allOf", depth)
    return lambda found: all(check(found) for check in checks)


def _any_of(value: Any, source: Any, depth: int) -> Check:
    checks = _several(value, "anyOf", depth)
    return lambda found: any(check(found) for check in checks)


def _one_of(value: Any, source: Any, depth: int) -> Check:
    checks = _several(value, "oneOf", depth)
    return lambda found: sum(check(found) for check in checks) == 1


def _not(value: Any, source: Any, depth: int) -> Check:
    check = _schema(value, depth)
    return lambda found: not check(found)


def _required(value: Any, source: Any, depth: int) -> Check:
    if not is_array(value) or not value or not all(isinstance(item, str) for item in value):
        raise _refused("required takes a nonempty array of names")
    names = list(value)
    return lambda found: not is_document(found) or all(name in found for name in names)


def _properties(value: Any, source: Any, depth: int) -> Check:
    if not is_document(value):
        raise _refused("properties is a document", 14)
    checks = {name: _schema(item, depth) for name, item in value.items()}
    return lambda found: (
        not is_document(found) or all(check(found[name]) for name, check in checks.items() if name in found)
    )


def _further(source: Any, depth: int) -> Check:
    """patternProperties and additionalProperties, which are about what the others do not name."""
    patterns = []
    for text, item in (source.get("patternProperties") or {}).items():
        patterns.append((compiled(pattern_of(text)).search, _schema(item, depth)))
    extra = source.get("additionalProperties", True)
    if not isinstance(extra, bool) and not is_document(extra):
        raise _refused("additionalProperties is a boolean or a schema", 14)
    other: Check = (lambda found: bool(extra)) if isinstance(extra, bool) else _schema(extra, depth)
    named = frozenset(source.get("properties") or ())

    def field(name: str, found: Any) -> bool:
        hits = [check for find, check in patterns if find(name)]
        if hits:
            return all(check(found) for check in hits)
        return name in named or other(found)

    return lambda found: not is_document(found) or all(field(name, item) for name, item in found.items())


def _items(value: Any, source: Any, depth: int) -> Check:
    if is_document(value):
        check = _schema(value, depth)
        return lambda found: not is_array(found) or all(check(item) for item in found)
    if not is_array(value):
        raise _refused("items is a schema or an array of schemas", 14)
    checks = [_schema(item, depth) for item in value]
    extra = source.get("additionalItems", True)
    rest: Check = (lambda found: bool(extra)) if isinstance(extra, bool) else _schema(extra, depth)
    return lambda found: (
        not is_array(found)
        or (
            all(check(item) for check, item in zip(checks, found, strict=False))
            and all(rest(item) for item in found[len(checks) :])
        )
    )


def _unique(value: Any, source: Any, depth: int) -> Check:
    if not isinstance(value, bool):
        raise _refused("uniqueItems is a boolean", 14)
    return lambda found: not value or not is_array(found) or len({order_key(item) for item in found}) == len(found)


def _dependencies(value: Any, source: Any, depth: int) -> Check:
    if not is_document(value):
        raise _refused("dependencies is a document", 14)
    checks = {
        name: _required(item, source, depth) if is_array(item) else _schema(item, depth) for name, item in value.items()
    }
    return lambda found: not is_document(found) or all(check(found) for name, check in checks.items() if name in found)


_Build = Callable[[Any, Any, int], Check]
_KEYWORDS: dict[str, _Build] = {
    "bsonType": lambda value, source, depth: _types(value, _BSON_TYPES, "bsonType"),
    "type": lambda value, source, depth: _types(value, _JSON_TYPES, "type"),
    "enum": lambda value, source, depth: _choice(value),
    "minimum": lambda value, source, depth: _bound(value, source.get("exclusiveMinimum"), minimum=True),
    "maximum": lambda value, source, depth: _bound(value, source.get("exclusiveMaximum"), minimum=False),
    "multipleOf": lambda value, source, depth: _multiple(value),
    "pattern": lambda value, source, depth: _pattern(value),
    "minLength": lambda value, source, depth: _length(value, "minLength", _is_text, least=True),
    "maxLength": lambda value, source, depth: _length(value, "maxLength", _is_text, least=False),
    "minItems": lambda value, source, depth: _length(value, "minItems", is_array, least=True),
    "maxItems": lambda value, source, depth: _length(value, "maxItems", is_array, least=False),
    "minProperties": lambda value, source, depth: _length(value, "minProperties", is_document, least=True),
    "maxProperties": lambda value, source, depth: _length(value, "maxProperties", is_document, least=False),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "required": _required,
    "properties": _properties,
    "items": _items,
    "uniqueItems": _unique,
    "dependencies": _dependencies,
}
KEYWORDS = frozenset(_KEYWORDS) | _TOGETHER | _ANNOTATIONS
