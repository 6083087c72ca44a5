"""Keys that differ in a few bytes, as people make them, written again and again: one row per key, the newest.

An index of keys with a weak hash lost hundreds of 38,100 such keys, and showed old rows beside new ones.
"""

import json
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.query.sandbox.session import extension_file

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COUNT = 38_100
ROUNDS = 3
SHAPES: dict[str, Callable[[int], str]] = {
    "tenants": lambda number: f"tenant{number // 381:02d}:item{number % 381:03d}",
    "days": lambda number: f"202601{number % 31 + 1:02d}-{number // 31:08d}",
    "digits": lambda number: f"{number % 195:08d}{number // 195:08d}",
}


def seal_all(bench: Any, tables: dict[str, list[str]], number: int) -> None:
    """A segment that sets every key of every table to a number, written column by column."""
    parts, footers, position = [], {}, bench.position
    for table, keys in sorted(tables.items()):
        count = len(keys)
        positions = np.arange(position + 1, position + count + 1)
        none = pa.nulls(count, pa.string())
        parts.append(
            pa.table(
                {
                    "position": positions, "hlc": positions, "namespace": pa.repeat(bench.namespace, count),
                    "table": pa.repeat(table, count), "op": pa.repeat("update", count), "key": pa.array(keys),
                    "columns": pa.repeat(json.dumps({"n": number}), count), "before": none,
                    "source": pa.repeat("s", count), "batch_sequence": positions, "sequence": positions, "id": none,
                    "source_time_ms": positions, "arrival_ms": positions, "metadata": none, "error": none,
                }
            )
        )  # fmt: skip
        bounds = {"first": position + 1, "last": position + count}
        footers[f"{bench.namespace}.{table}"] = bounds | {
            "count": count, "hlc_min": position + 1, "hlc_max": position + count, "columns": {"n": ["int"]},
            "always": ["n"], "ordered": True,
        }  # fmt: skip
        position += count
    footer = {"version": 1, "first": bench.position + 1, "last": position, "tables": footers}
    rows = pa.concat_tables(parts).replace_schema_metadata({b"mainstem": json.dumps(footer).encode()})
    bench.folder.mkdir(exist_ok=True)
    pq.write_table(rows, bench.folder / f"{bench.position + 1:020d}-{position:020d}.parquet")
    bench.position = position


def judge(bench: Any, table: str) -> tuple[int, int, int, int]:
    """Rows, keys, and the least and the greatest number; by DuckDB."""
    location = bench.lake.load(bench.name(table)).java.operations().current().metadataFileLocation()
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{extension_file(name)}'")
    found: Any = connection.execute(
        "SELECT count(*), count(DISTINCT _key), min(n), max(n) "
        f"FROM iceberg_scan('{str(location).removeprefix('file:')}')"
    ).fetchone()
    return tuple(found)


def _write_thrice(bench: Any, shapes: list[str], count: int) -> None:
    tables = {shape: [SHAPES[shape](number) for number in range(count)] for shape in shapes}
    carrier = bench.carrier()
    for number in range(ROUNDS):
        seal_all(bench, tables, number)
        if number == 1:
            # Once with the index that was moved along, and once with one that is read from the table.
            for shape in shapes:
                bench.finder.forget(bench.name(shape))
        carrier.carry(None, (), str(number))
    for shape in shapes:
        assert len(set(tables[shape])) == count
        assert judge(bench, shape) == (count, count, ROUNDS - 1, ROUNDS - 1), shape
        history = bench.spark.table(bench.lake.identifier(bench.name(f"{shape}_history")))
        assert history.count() == ROUNDS * count


def test_one_row_per_key(bench: Any) -> None:
    _write_thrice(bench, ["tenants"], COUNT)


@pytest.mark.soak
def test_one_row_per_key_of_every_shape_and_many_of_them(bench: Any) -> None:
    _write_thrice(bench, list(SHAPES), 10 * COUNT)
