"""Which delete files apply to which data file, and what a filter of the protocol becomes."""

from typing import Any

import pyiceberg.expressions
import pytest

from mainstem.catalog.scan.filters import parse_filter
from mainstem.model import Invalid
from mainstem.tables.deletes import Content, DeleteFile, DeleteIndex

# Their constructors are not what mypy takes them for.
ex: Any = pyiceberg.expressions

A, B, NONE = (1, ("a",)), (1, ("b",)), (0, ())


def index(*deletes: tuple[Content, int, tuple[int, tuple[object, ...]], str | None, bool]) -> DeleteIndex:
    made = DeleteIndex()
    for number, (content, sequence, partition, path, is_vector) in enumerate(deletes):
        made.add(DeleteFile(number, content, sequence, partition, path, is_vector))
    return made


def test_position_deletes_reach_their_partition_and_what_is_not_newer() -> None:
    deletes = index((Content.POSITION_DELETES, 5, A, None, False))
    assert deletes.of("f", 5, A) == [0], "of the same commit too"
    assert deletes.of("f", 4, A) == [0]
    assert deletes.of("f", 6, A) == []
    assert deletes.of("f", 4, B) == []


def test_equality_deletes_reach_only_what_is_older_and_everything_without_a_partition() -> None:
    deletes = index((Content.EQUALITY_DELETES, 5, A, None, False), (Content.EQUALITY_DELETES, 7, NONE, None, False))
    assert deletes.of("f", 4, A) == [0, 1]
    assert deletes.of("f", 5, A) == [1], "rows of the same commit stay"
    assert deletes.of("f", 4, B) == [1]
    assert deletes.of("f", 7, B) == []


def test_a_vector_stands_for_every_position_delete_of_its_file() -> None:
    deletes = index(
        (Content.POSITION_DELETES, 5, A, None, False),
        (Content.POSITION_DELETES, 5, A, "f", False),
        (Content.POSITION_DELETES, 6, A, "f", True),
        (Content.EQUALITY_DELETES, 9, A, None, False),
    )
    assert deletes.of("f", 4, A) == [2, 3]
    assert deletes.of("g", 4, A) == [0, 3]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, ex.AlwaysTrue()),
        (True, ex.AlwaysTrue()),
        ({"type": "false"}, ex.AlwaysFalse()),
        ({"type": "literal", "value": False}, ex.AlwaysFalse()),
        ({"type": "eq", "term": "a", "value": 1}, ex.EqualTo("a", 1)),
        (
            {"type": "gt", "left": {"type": "reference", "name": "a"}, "right": {"type": "literal", "value": 1}},
            ex.GreaterThan("a", 1),
        ),
        ({"type": "is-null", "child": "a"}, ex.IsNull("a")),
        ({"type": "in", "term": "a", "values": [1, 2]}, ex.In("a", {1, 2})),
        ({"type": "not-starts-with", "term": "a", "value": "x"}, ex.NotStartsWith("a", "x")),
        ({"type": "not", "child": {"type": "eq", "term": "a", "value": 1}}, ex.Not(ex.EqualTo("a", 1))),
        (
            {"type": "and", "left": {"type": "is-null", "term": "a"}, "right": {"type": "eq", "term": "b", "value": 1}},
            ex.And(ex.IsNull("a"), ex.EqualTo("b", 1)),
        ),
        (
            {"type": "or", "left": {"type": "is-null", "term": "a"}, "right": {"type": "eq", "term": "b", "value": 1}},
            ex.Or(ex.IsNull("a"), ex.EqualTo("b", 1)),
        ),
        # No word for it: everything is planned, and the client filters.
        (
            {
                "type": "not",
                "child": {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "a"}, "value": 1},
            },
            ex.AlwaysTrue(),
        ),
    ],
)
def test_filters(document: Any, expected: Any) -> None:
    assert parse_filter(document) == expected


@pytest.mark.parametrize(
    "document",
    [
        1,
        "x",
        {},
        {"type": "like"},
        {"type": "eq"},
        {"type": "in", "term": "a"},
        {"type": "eq", "term": "a", "value": None},
        {"type": "and", "left": True},
    ],
)
def test_filters_that_are_none(document: Any) -> None:
    with pytest.raises(Invalid):
        parse_filter(document)


def test_a_filter_is_not_nested_without_end() -> None:
    document: Any = True
    for _ in range(500):
        document = {"type": "not", "child": document}
    with pytest.raises(Invalid, match="too deeply"):
        parse_filter(document)
