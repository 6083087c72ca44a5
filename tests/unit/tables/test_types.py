"""Kinds form a lattice; types are read, widened and rewritten by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model.errors import Invalid
from mainstem.tables.types import (
    ColumnType,
    Kind,
    Nested,
    join_kinds,
    keeps_every_value,
    kind_of,
    parse_type,
    type_of,
    widens_in_place,
)

kinds = st.sampled_from(Kind)


@given(kinds, kinds)
def test_join_is_commutative(left: Kind, right: Kind) -> None:
    assert join_kinds(left, right) is join_kinds(right, left)


@given(kinds, kinds, kinds)
def test_join_is_associative(a: Kind, b: Kind, c: Kind) -> None:
    assert join_kinds(join_kinds(a, b), c) is join_kinds(a, join_kinds(b, c))


@given(kinds)
def test_null_is_the_bottom_and_text_the_top(kind: Kind) -> None:
    assert join_kinds(kind, kind) is kind
    assert join_kinds(kind, Kind.NULL) is kind
    assert join_kinds(kind, Kind.STRING) is Kind.STRING


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([], Kind.NULL),
        (["null"], Kind.NULL),
        (["null", "bool"], Kind.BOOL),
        (["int"], Kind.INT),
        (["int", "long"], Kind.LONG),
        (["int", "double"], Kind.DOUBLE),
        (["long", "double"], Kind.STRING),
        (["int", "long", "double"], Kind.STRING),
        (["big"], Kind.STRING),
        (["int", "big"], Kind.STRING),
        (["object", "array", "null"], Kind.JSON),
        (["object", "string"], Kind.STRING),
        (["bool", "int"], Kind.STRING),
        (["array", "double"], Kind.STRING),
        (["time", "null"], Kind.TIME),
        (["time", "string"], Kind.STRING),
        (["decimal", "int", "long"], Kind.DECIMAL),
        (["decimal", "double"], Kind.STRING),
    ],
)
def test_kind_of_what_was_seen(seen: list[str], kind: Kind) -> None:
    assert kind_of(seen) is kind


def test_an_unknown_json_type_is_refused() -> None:
    with pytest.raises(Invalid, match="blob"):
        kind_of(["blob"])


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (Kind.NULL, "string"),
        (Kind.BOOL, "boolean"),
        (Kind.INT, "long"),
        (Kind.LONG, "long"),
        (Kind.DOUBLE, "double"),
        (Kind.JSON, "string"),
        (Kind.STRING, "string"),
    ],
)
def test_how_a_kind_is_stored(kind: Kind, stored: str) -> None:
    assert type_of(kind, Nested.JSON) == stored
    assert type_of(kind, Nested.VARIANT) == ("variant" if kind is Kind.JSON else stored)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("INT", "int"),
        ("bigint", "long"),
        (" Decimal( 10 , 2 ) ", "decimal(10,2)"),
        ("json", "string"),
        ("timestamp_ntz", "timestamp"),
        ("variant", "variant"),
    ],
)
def test_declared_types_are_read(text: str, parsed: str) -> None:
    assert parse_type(text) == parsed


@pytest.mark.parametrize("text", ["", "money", "decimal(39,0)", "decimal(5,6)", "decimal(0,0)", "list<int>"])
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_type(text)


@pytest.mark.parametrize(
    ("old", "new", "in_place", "by_rewrite"),
    [
        ("int", "long", True, False),
        ("float", "double", True, True),
        ("decimal(9,2)", "decimal(12,2)", True, False),
        ("decimal(9,2)", "decimal(12,3)", False, False),
        ("long", "double", False, True),
        ("long", "string", False, True),
        ("boolean", "string", False, True),
        ("variant", "string", False, True),
        ("binary", "string", False, False),
        ("string", "long", False, False),
        ("double", "long", False, False),
    ],
)
def test_how_a_type_may_change(old: str, new: str, in_place: bool, by_rewrite: bool) -> None:
    assert widens_in_place(ColumnType(old), ColumnType(new)) is in_place
    assert keeps_every_value(ColumnType(old), ColumnType(new)) is by_rewrite
