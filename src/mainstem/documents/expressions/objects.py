"""The object operators, and those of the accumulators that also work on the values of one document."""

from collections.abc import Callable
from typing import Any

from bson import encode
from bson.dbref import DBRef

from mainstem.documents import accumulators
from mainstem.documents.errors import Refused
from mainstem.documents.expressions.arrays import array_of
from mainstem.documents.expressions.registry import ARGUMENTS_MAX, absent, named, operator, wrong_type
from mainstem.documents.values import MISSING, Rank, binary_parts, is_array, is_document, rank_of

_GROUP = "object"


def fields_of(value: Any, name: str, code: int) -> Any:
    """A document, or an error."""
    if isinstance(value, DBRef):
        return value.as_doc()
    if not is_document(value):
        raise wrong_type(name, "a document", value, code)
    return value


@operator("$objectToArray", _GROUP, 1)
def _to_array(value: Any) -> Any:
    if absent(value):
        return None
    return [{"k": name, "v": item} for name, item in fields_of(value, "$objectToArray", 40390).items()]


@operator("$arrayToObject", _GROUP, 1)
def _to_object(array: Any) -> Any:
    if absent(array):
        return None
    return dict(_pair(item) for item in array_of(array, "$arrayToObject", 40386))


def _pair(item: Any) -> tuple[str, Any]:
    if is_document(item):
        if len(item) != 2 or "k" not in item or "v" not in item:
            raise Refused(f"$arrayToObject takes documents of k and v. got={list(item)[:5]}", code=40392)
        name, value, code = item["k"], item["v"], 40394
    elif is_array(item):
        if len(item) != 2:
            raise Refused(f"$arrayToObject takes pairs. got={len(item)} elements", code=40397)
        (name, value), code = item, 40395
    else:
        raise wrong_type("$arrayToObject", "pairs or documents of k and v", item, 40398)
    if rank_of(name) is not Rank.STRING:
        raise wrong_type("$arrayToObject", "text as a field's name", name, code)
    if "\0" in name:
        raise Refused("$arrayToObject: a field's name has a null character", code=4940400)
    return str(name), value


@operator("$mergeObjects", _GROUP, 0, ARGUMENTS_MAX)
def _merge(*values: Any) -> Any:
    items = values[0] if len(values) == 1 and is_array(values[0]) else values
    state = accumulators.Merge()
    for value in items:
        state.add(value)
    return state.result()


@named("$getField", _GROUP, "field", "input?")
def _get_field(name: Any, value: Any) -> Any:
    if rank_of(name) is not Rank.STRING:
        raise wrong_type("$getField", "text as field", name, 3041704)
    if value is None:
        return None
    return value.get(name, MISSING) if is_document(value) else MISSING


def _with_field(value: Any, name: Any, new: Any, operator_name: str) -> Any:
    if rank_of(name) is not Rank.STRING:
        raise wrong_type(operator_name, "text as field", name, 4161107)
    if absent(value):
        return None
    changed = dict(fields_of(value, operator_name, 4161105))
    if new is MISSING:
        changed.pop(name, None)
    else:
        changed[name] = new
    return changed


@named("$setField", _GROUP, "field", "input", "value")
def _set_field(field: Any, value: Any, new: Any) -> Any:
    return _with_field(value, field, new, "$setField")


@named("$unsetField", _GROUP, "field", "input")
def _unset_field(field: Any, value: Any) -> Any:
    return _with_field(value, field, MISSING, "$unsetField")


@operator("$bsonSize", "data size", 1)
def _bson_size(value: Any) -> Any:
    return None if absent(value) else len(encode(fields_of(value, "$bsonSize", 31393)))


@operator("$binarySize", "data size", 1)
def _binary_size(value: Any) -> Any:
    if absent(value):
        return None
    match rank_of(value):
        case Rank.STRING:
            return len(str(value).encode())
        case Rank.BINARY:
            return len(binary_parts(value)[0])
    raise wrong_type("$binarySize", "text or a binary", value, 51276)


def _folded(name: str, make: Callable[[], accumulators.State]) -> None:
    """`{$sum: [a, b]}` over its arguments, `{$sum: array}` over the array's elements."""

    @operator(name, "accumulator", 0, ARGUMENTS_MAX)
    def fold(*values: Any) -> Any:
        state = make()
        for value in values[0] if len(values) == 1 and is_array(values[0]) else values:
            state.add(value)
        return state.result()


_folded("$sum", accumulators.Sum)
_folded("$avg", accumulators.Average)
_folded("$min", accumulators.Least)
_folded("$max", accumulators.Greatest)
_folded("$stdDevPop", lambda: accumulators.Deviation(sample=False))
_folded("$stdDevSamp", lambda: accumulators.Deviation(sample=True))


@named("$percentile", "accumulator", "input", "p", "method")
def _percentile(value: Any, points: Any, method: Any) -> Any:
    return _percentiles(value, accumulators.check_points(points, method), several=True)


@named("$median", "accumulator", "input", "method")
def _median(value: Any, method: Any) -> Any:
    return _percentiles(value, accumulators.check_points([0.5], method), several=False)


def _percentiles(value: Any, points: list[float], *, several: bool) -> Any:
    state = accumulators.Percentile(points, several=several)
    for item in value if is_array(value) else [value]:
        state.add(item)
    return state.result()
