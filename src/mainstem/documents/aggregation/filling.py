"""Stages that fill gaps: `$densify` adds the documents that a series lacks, `$fill` the values."""

import math
from collections.abc import Iterator
from typing import Any

from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.rows import plain_value, with_value
from mainstem.documents.aggregation.running import Document, Documents, Ledger, Reading, Run, Stage
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import field_path
from mainstem.documents.expressions.dates import add_units, unit_of
from mainstem.documents.expressions.numbers import combine
from mainstem.documents.paths import Path
from mainstem.documents.values import (
    MISSING,
    Rank,
    date_ms,
    date_value,
    is_array,
    is_document,
    is_number,
    number_of,
    order_key,
    rank_of,
)

GENERATED_MAX = 500_000


@stage("$densify")
def densify(source: Any, reading: Reading) -> Stage:
    if not is_document(source) or not isinstance(source.get("field"), str) or not is_document(source.get("range")):
        raise Refused("$densify takes field and range", code=40414)
    if unknown := set(source) - {"field", "range", "partitionByFields"}:
        raise Refused(f"unknown argument of $densify. got={sorted(unknown)}", code=40415)
    path = field_path(source["field"])
    parts = [field_path(item) for item in source.get("partitionByFields", [])]
    span = source["range"]
    step, unit, bounds = span.get("step"), span.get("unit"), span.get("bounds")
    if not is_number(step) or not 0 < number_of(step) < math.inf:
        raise Refused("$densify takes a step above 0", code=5733401)
    if unit is not None and number_of(step) != int(number_of(step)):
        raise Refused("$densify takes whole steps of a unit", code=6586400)
    if bounds not in ("full", "partition") and not (is_array(bounds) and len(bounds) == 2):
        raise Refused("$densify takes full, partition or two bounds", code=5946802)
    if bounds == "full" and not parts:
        bounds = "partition"
    kind = unit_of(unit, "$densify") if unit is not None else None

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        ledger = Ledger("$densify", given.memory_bytes_max)
        groups: dict[Any, list[Document]] = {}
        loose: list[Document] = []
        low: Any = None
        high: Any = None
        for document in documents:
            ledger.add(document)
            value = plain_value(document, path)
            if value is MISSING or value is None:
                loose.append(document)
                continue
            if rank_of(value) is not (Rank.DATE if kind else Rank.NUMBER):
                raise Refused(f"$densify takes {'dates' if kind else 'numbers'}", code=5733201)
            low = value if low is None or order_key(value) < order_key(low) else low
            high = value if high is None or order_key(value) > order_key(high) else high
            groups.setdefault(tuple(order_key(plain_value(document, item)) for item in parts), []).append(document)
        yield from loose
        made = 0
        for group in groups.values():
            group.sort(key=lambda item: order_key(plain_value(item, path)))
            edges = _edges(bounds, group, path, low, high)
            base = _partition(group[0], parts)
            for document in _dense(group, path, step, kind, edges, base, inclusive=bounds == "full"):
                made += 1
                if made > GENERATED_MAX:
                    raise Refused(f"$densify makes too many documents. expected=at most {GENERATED_MAX}", code=5897900)
                yield document

    return run


def _edges(bounds: Any, group: list[Document], path: Path, low: Any, high: Any) -> tuple[Any, Any]:
    if bounds == "partition":
        return plain_value(group[0], path), plain_value(group[-1], path)
    return (low, high) if bounds == "full" else (bounds[0], bounds[1])


def _partition(document: Document, parts: list[Path]) -> dict[str, Any]:
    base: dict[str, Any] = {}
    for item in parts:
        value = plain_value(document, item)
        base = base if value is MISSING else with_value(base, item, value)
    return base


def _dense(
    group: list[Document],
    path: Path,
    step: Any,
    kind: str | None,
    edges: tuple[Any, Any],
    base: Document,
    *,
    inclusive: bool,
) -> Iterator[Document]:
    at, times = 0, 0
    stop = order_key(edges[1])
    while True:
        value = _stepped(edges[0], step, times, kind)
        key = order_key(value)
        while at < len(group) and order_key(plain_value(group[at], path)) <= key:
            yield group[at]
            at += 1
        if key > stop or (key == stop and not inclusive):
            break
        if at == 0 or order_key(plain_value(group[at - 1], path)) != key:
            yield with_value(base, path, value)
        times += 1
        if times > GENERATED_MAX:
            # A step may be too small to move a double at all.
            raise Refused(f"$densify takes too many steps. expected=at most {GENERATED_MAX}", code=5897900)
    yield from group[at:]


def _stepped(start: Any, step: Any, times: int, kind: str | None) -> Any:
    if kind is None:
        shift = combine("$densify", step, times, lambda one, other: one * other)
        return combine("$densify", start, shift, lambda one, other: one + other)
    return date_value(add_units(date_ms(start), kind, int(number_of(step)) * times))


@stage("$fill")
def fill(source: Any, reading: Reading) -> Stage:
    if not is_document(source) or not is_document(source.get("output")) or not source["output"]:
        raise Refused("$fill takes a nonempty output", code=40414)
    if unknown := set(source) - {"partitionBy", "partitionByFields", "sortBy", "output"}:
        raise Refused(f"unknown argument of $fill. got={sorted(unknown)}", code=40415)
    values: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    for name, how in source["output"].items():
        if is_document(how) and set(how) == {"value"}:
            values[name] = {"$ifNull": [f"${name}", how["value"]]}
        elif is_document(how) and how.get("method") in ("linear", "locf"):
            methods[name] = {"$linearFill" if how["method"] == "linear" else "$locf": f"${name}"}
        else:
            raise Refused(f"$fill takes a value, or a method of linear or locf. got={name}", code=6050202)
    stages: list[dict[str, Any]] = []
    if methods:
        partition = source.get("partitionBy")
        if "partitionByFields" in source:
            partition = {item.replace(".", "_"): f"${item}" for item in source["partitionByFields"]}
        window = {"partitionBy": partition, "sortBy": source.get("sortBy"), "output": methods}
        stages.append({"$setWindowFields": {name: item for name, item in window.items() if item is not None}})
    if values:
        stages.append({"$addFields": values})
    return reading.pipeline(stages)
