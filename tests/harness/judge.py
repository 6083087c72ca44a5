"""The judge: DuckDB, reading through the catalog. None of the product's own merge or pipeline code."""

import json
from typing import Any

from mainstem.app.sample import Shop
from mainstem.client import connect_duckdb


def read_state(url: str, table: str) -> dict[str, dict[str, Any]]:
    """A state table by key. A key that stands twice is an error at once."""
    cursor = connect_duckdb(url).execute(f"SELECT * FROM lake.default.{table}")
    names = [column[0] for column in cursor.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    by_key = {row["_key"]: row for row in rows}
    assert len(by_key) == len(rows), f"{table}: {len(rows) - len(by_key)} keys stand twice"
    return by_key


def read_history(url: str, table: str) -> list[tuple[str, int, int]]:
    """(source, batch sequence, event sequence) of every change in the history, repeats included."""
    query = f"SELECT _source, _batch_sequence, _sequence FROM lake.default.{table}_history"
    return connect_duckdb(url).execute(query).fetchall()


def assert_tables_hold(url: str, shop: Shop) -> None:
    """Every change of the shop is in the histories once, and every row of the state is as the shop has it."""
    seen: list[int] = []
    for table, expected in shop.tables.items():
        seen += [sequence for _, _, sequence in read_history(url, table)]
        rows = read_state(url, table)
        assert rows.keys() == expected.keys(), _keys(table, rows.keys(), expected.keys())
        for key, row in expected.items():
            for name, value in row.items():
                read = rows[key][name]
                sent = json.loads(read) if isinstance(value, list | dict) else read
                assert sent == value, f"{table} {key} {name}: sent {value!r}, found {read!r}"
    missing = set(range(1, shop.sequence + 1)) - set(seen)
    assert not missing, f"lost: {sorted(missing)[:20]} of {shop.sequence}"
    assert len(seen) == shop.sequence, f"counted twice: {len(seen) - shop.sequence} changes"


def _keys(table: str, found: Any, expected: Any) -> str:
    return f"{table}: missing {sorted(expected - found)[:10]}, too many {sorted(found - expected)[:10]}"
