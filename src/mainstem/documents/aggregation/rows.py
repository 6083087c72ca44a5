"""Stages that choose, order and multiply documents, and leave what is in them alone."""

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from bson.int64 import Int64

from mainstem.documents.aggregation.ordering import RUN_DOCUMENTS, in_order
from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.running import Document, Documents, Ledger, Reading, Run, Stage
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import field_path
from mainstem.documents.filters.match import matcher
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import Path
from mainstem.documents.sort import sort_key
from mainstem.documents.values import INT64_MAX, MISSING, is_array, is_document, is_number, is_text, number_of


def count_of(value: Any, name: str, code: int, low: int) -> int:
    """A whole number from `low` up."""
    found = number_of(value) if is_number(value) else None
    if found is None or not math.isfinite(found) or found != int(found) or not low <= found <= INT64_MAX:
        raise Refused(f"{name} takes a whole number from {low} up. got={value!r}", code=code)
    return int(found)


@stage("$match")
def match(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$match takes a filter", code=15959)
    node = parse_filter(source, reading.names)

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        return filter(matcher(node, given.scope), documents)

    return run


@stage("$limit")
def limit(source: Any, reading: Reading) -> Stage:
    count = count_of(source, "$limit", 15958 if is_number(source) else 5107201, 1)
    return lambda documents, given: islice(documents, count)


@stage("$skip")
def skip(source: Any, reading: Reading) -> Stage:
    count = count_of(source, "$skip", 5107200, 0)
    return lambda documents, given: islice(documents, count, None)


def check_sort(source: Any, name: str = "$sort") -> None:
    """Refuse what no sort is, with the stage's codes."""
    if not is_document(source):
        raise Refused(f"{name} takes a document of fields", code=15973)
    if not source:
        raise Refused(f"{name} takes at least one field", code=15976)
    for path, direction in source.items():
        if is_document(direction):
            raise Refused(f"{name} by $meta is not supported: there is no score", code=115)
        if not is_number(direction):
            raise Refused(f"{name} takes 1 or -1. got={path}: {direction!r}", code=15974)
        if number_of(direction) not in (1, -1):
            raise Refused(f"{name} takes 1 or -1. got={path}: {direction!r}", code=15975)


@stage("$sort")
def sort(source: Any, reading: Reading) -> Stage:
    return sort_and_limit(source, None)


def sort_and_limit(source: Any, first: int | None) -> Stage:
    """Sorted documents; where only the first are wanted, no more than these are held."""
    check_sort(source)
    key = sort_key(source)

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        if first is None or first > RUN_DOCUMENTS:
            yield from islice(in_order(documents, key, "$sort", given), first)
        else:
            yield from _least(documents, key, first, Ledger("$sort", given.memory_bytes_max))

    return run


def _least(documents: Documents, key: Any, first: int, ledger: Ledger) -> list[Document]:
    found = heapq.nsmallest(first, documents, key=key)
    for document in found:
        ledger.add(document)
    return found


@stage("$count")
def count(source: Any, reading: Reading) -> Stage:
    if not is_text(source):
        raise Refused("$count takes a field's name", code=40156)
    if not source:
        raise Refused("$count takes a field's name. got=''", code=40157)
    if source.startswith("$"):
        raise Refused(f"$count takes a name without $. got={source!r}", code=40158)
    if "." in source or "\0" in source:
        raise Refused(f"$count takes a name without dots. got={source!r}", code=40160)

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        number = sum(1 for _ in documents)
        if number:
            yield {source: number if number < 1 << 31 else Int64(number)}

    return run


@stage("$sample")
def sample(source: Any, reading: Reading) -> Stage:
    if not is_document(source) or set(source) != {"size"}:
        raise Refused("$sample takes a document of size", code=28745)
    size = count_of(source["size"], "$sample (size)", 28747 if is_number(source["size"]) else 28746, 1)

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        # Each place in the sample is as likely for each document, in one pass.
        held: list[Document] = []
        ledger = Ledger("$sample", given.memory_bytes_max)
        for seen, document in enumerate(documents):
            if len(held) < size:
                ledger.add(document)
                held.append(document)
            else:
                place = given.chance.randrange(seen + 1)
                if place < size:
                    held[place] = document
        given.chance.shuffle(held)
        yield from held

    return run


@stage("$unwind")
def unwind(source: Any, reading: Reading) -> Stage:
    fields = source if is_document(source) else {"path": source}
    if unknown := set(fields) - {"path", "includeArrayIndex", "preserveNullAndEmptyArrays"}:
        raise Refused(f"unknown argument of $unwind. got={sorted(unknown)}", code=28811)
    path_text = fields.get("path")
    if not isinstance(path_text, str):
        raise Refused("$unwind takes a path", code=28808 if "path" in fields else 28812)
    if not path_text.startswith("$"):
        raise Refused(f"a path of $unwind starts with $. got={path_text!r}", code=28818)
    path = field_path(path_text[1:])
    keeps = fields.get("preserveNullAndEmptyArrays", False)
    if not isinstance(keeps, bool):
        raise Refused("preserveNullAndEmptyArrays is a boolean", code=28809)
    index = fields.get("includeArrayIndex")
    if index is not None and (not isinstance(index, str) or not index or index.startswith("$")):
        raise Refused(f"includeArrayIndex is a path without $. got={index!r}", code=28822 if index else 28810)
    place = field_path(index) if index else None

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        for document in documents:
            yield from _unwound(document, path, keeps, place)

    return run


def _unwound(document: Document, path: Path, keeps: bool, place: Path | None) -> Iterator[Document]:
    value = plain_value(document, path)
    if is_array(value) and value:
        for at, element in enumerate(value):
            changed = with_value(document, path, element)
            yield changed if place is None else with_value(changed, place, Int64(at))
        return
    nothing = value is None or value is MISSING or is_array(value)
    if nothing and not keeps:
        return
    kept = with_value(document, path, MISSING) if is_array(value) else document
    yield kept if place is None else with_value(kept, place, None)


def plain_value(document: Any, path: Path) -> Any:
    """What a path finds through documents alone."""
    for part in path:
        if not is_document(document):
            return MISSING
        document = document.get(part, MISSING)
    return document


def with_value(document: Any, path: Path, value: Any) -> dict[str, Any]:
    """The document with a value at a path; what is no document on the way is replaced by one. MISSING removes."""
    changed = dict(document) if is_document(document) else {}
    name = path[0]
    if len(path) > 1:
        if value is MISSING and not is_document(changed.get(name)):
            return changed
        changed[name] = with_value(changed.get(name), path[1:], value)
    elif value is MISSING:
        changed.pop(name, None)
    else:
        changed[name] = value
    return changed
