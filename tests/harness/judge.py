"""The judges: DuckDB, reading through the catalog, or Delta tables where they are; and a Spark of the test's own. None
of the product's own code.

`lake` is where the tables are: a catalog's URL, or the folder of Delta tables, or one or the other by table; and
`BySpark`, for Spark to read them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb_extensions import import_extension

from mainstem.app.demo.sample import Shop
from mainstem.client import connect_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BySpark:
    """The tables of a catalog as a Spark session reads them that has nothing to do with the pipeline's."""

    def __init__(self, spark: "SparkSession", url: str, io: Mapping[str, str] = MappingProxyType({})) -> None:
        self._spark = spark
        # Spark keeps the catalogs that it has loaded: one of this name is of this server, for its port is in it.
        self._catalog = f"judged_{url.rpartition(':')[2].strip('/')}"
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": url,
            ".warehouse": "lake",
            ".cache-enabled": "false",
            **{f".{name}": value for name, value in io.items()},
        }
        if io:
            settings |= {".io-impl": "org.apache.iceberg.aws.s3.S3FileIO", ".client.region": io["s3.region"]}
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{name}", value)

    def read(self, columns: str, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns of every row of a table."""
        found = self._spark.sql(f"SELECT {columns} FROM {self._catalog}.default.{table}")
        return found.columns, [tuple(row) for row in found.collect()]


Lake = str | Path | BySpark


def read(lake: Lake, columns: str, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns of every row of a table: their names, and the rows."""
    if isinstance(lake, BySpark):
        return lake.read(columns, table)
    if isinstance(lake, str):
        found = connect_duckdb(lake).execute(f"SELECT {columns} FROM lake.default.{table}")
    else:
        connection = duckdb.connect()
        import_extension("delta", con=connection)
        connection.load_extension("delta")
        found = connection.execute(f"SELECT {columns} FROM delta_scan('{lake / 'default' / table}')")
    return [column[0] for column in found.description or []], found.fetchall()


def read_state(lake: Lake, table: str) -> dict[str, dict[str, Any]]:
    """A state table by key. A key that stands twice is an error at once."""
    names, found = read(lake, "*", table)
    rows = [dict(zip(names, row, strict=True)) for row in found]
    by_key = {row["_key"]: row for row in rows}
    assert len(by_key) == len(rows), f"{table}: {len(rows) - len(by_key)} keys stand twice"
    return by_key


def read_history(lake: Lake, table: str) -> Sequence[tuple[Any, ...]]:
    """(source, batch sequence, event sequence) of every change in the history, repeats included."""
    return read(lake, "_source, _batch_sequence, _sequence", f"{table}_history")[1]


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
