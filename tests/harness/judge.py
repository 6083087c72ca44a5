"""The judge: DuckDB, reading through the catalog, or Delta tables where they are. None of the product's own code.

`lake` is where the tables are: a catalog's URL, or the folder of Delta tables, or one or the other by table.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
from duckdb_extensions import import_extension

from mainstem.app.demo.sample import Shop
from mainstem.client import connect_duckdb

Lake = str | Path


def read(lake: Lake, columns: str, table: str) -> duckdb.DuckDBPyConnection:
    """Columns of every row of a table."""
    if isinstance(lake, str):
        return connect_duckdb(lake).execute(f"SELECT {columns} FROM lake.default.{table}")
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.load_extension("delta")
    return connection.execute(f"SELECT {columns} FROM delta_scan('{lake / 'default' / table}')")


def read_state(lake: Lake, table: str) -> dict[str, dict[str, Any]]:
    """A state table by key. A key that stands twice is an error at once."""
    cursor = read(lake, "*", table)
    names = [column[0] for column in cursor.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    by_key = {row["_key"]: row for row in rows}
    assert len(by_key) == len(rows), f"{table}: {len(rows) - len(by_key)} keys stand twice"
    return by_key


def read_history(lake: Lake, table: str) -> list[tuple[str, int, int]]:
    """(source, batch sequence, event sequence) of every change in the history, repeats included."""
    return read(lake, "_source, _batch_sequence, _sequence", f"{table}_history").fetchall()


def assert_tables_hold(lake: Lake | Mapping[str, Lake], shop: Shop) -> None:
    """Every change of the shop is in the histories once, and every row of the state is as the shop has it."""
    seen: list[int] = []
    for table, expected in shop.tables.items():
        place = lake[table] if isinstance(lake, Mapping) else lake
        seen += [sequence for _, _, sequence in read_history(place, table)]
        rows = read_state(place, table)
        assert rows.keys() == expected.keys(), _keys(table, rows.keys(), expected.keys())
        for key, row in expected.items():
            for name, value in row.items():
                found = rows[key][name]
                sent = json.loads(found) if isinstance(value, list | dict) else found
                assert sent == value, f"{table} {key} {name}: sent {value!r}, found {found!r}"
    missing = set(range(1, shop.sequence + 1)) - set(seen)
    assert not missing, f"lost: {sorted(missing)[:20]} of {shop.sequence}"
    assert len(seen) == shop.sequence, f"counted twice: {len(seen) - shop.sequence} changes"


def _keys(table: str, found: Any, expected: Any) -> str:
    return f"{table}: missing {sorted(expected - found)[:10]}, too many {sorted(found - expected)[:10]}"
