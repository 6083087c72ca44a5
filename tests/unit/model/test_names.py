"""Names of tables: what producers may write, and what becomes of it."""

import pytest

from mainstem.model import Invalid, TableName, parse_table_name


@pytest.mark.parametrize(
    ("text", "namespace", "table"),
    [
        ("orders", "default", "orders"),
        ("public.orders", "public", "orders"),
        ("eu.shop.orders", "eu.shop", "orders"),
        ("Größe 2-b", "default", "Größe 2-b"),
        ("x" * 128, "default", "x" * 128),
    ],
)
def test_the_last_dot_splits(text: str, namespace: str, table: str) -> None:
    assert parse_table_name(text) == TableName(namespace, table)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty part"),
        (".", "empty part"),
        (".orders", "empty part"),
        ("shop.", "empty part"),
        ("a..b", "empty part"),
        (" orders", "outer spaces"),
        ("x" * 129, "too long"),
        ("a/b", "not allowed"),
        ("a\x00b", "not allowed"),
        ('a"b', "not allowed"),
        ("orders_history", "reserved"),
        ("orders_dead_letters", "reserved"),
        ("a.b.c.d.e.f.g.h.i", "too deep"),
    ],
)
def test_what_cannot_name_a_table_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        parse_table_name(text)


def test_companion_tables_stand_beside_their_table() -> None:
    name = parse_table_name("shop.orders")
    assert str(name.history) == "shop.orders_history"
    assert str(name.dead_letters) == "shop.orders_dead_letters"
