"""Spark, DuckDB and pyiceberg return the same rows, after hundreds of thousands of updates and deletes over many files.

Small tables do not show it: DuckDB 1.5.5 reads a table wrongly, without a word, where one Puffin file holds several
deletion vectors, and only with thousands of deletes over many files. The layout we write must not be such a one.
"""

import random
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, connect_duckdb, delete, update
from mainstem.wire.cdc import CdcEvent

ROUNDS = 10
CHANGES_PER_ROUND = 20_000
KEYS = 40_000
TABLE = "much_changed"
COLUMNS = ("_key", "n", "text")
ICEBERG = "org.apache.iceberg.spark.SparkCatalog"

Rows = dict[str, tuple[int, str]]


def _changes(rng: random.Random, expected: Rows, round_: int) -> Iterator[CdcEvent]:
    for index in range(CHANGES_PER_ROUND):
        key = f"k{rng.randrange(KEYS)}"
        if rng.random() < 0.2:
            expected.pop(key, None)
            yield delete(TABLE, key)
        else:
            n = round_ * CHANGES_PER_ROUND + index
            expected[key] = (n, f"text {n % 1000}")
            yield update(TABLE, key, {"n": n, "text": f"text {n % 1000}"})


async def _fill(server: ServerProcess) -> Rows:
    rng = random.Random(11)
    expected: Rows = {}
    async with CdcClient(server.ws_url, source="readers") as client:
        for round_ in range(ROUNDS):
            changes = list(_changes(rng, expected, round_))
            for start in range(0, len(changes), 1000):
                await client.send(changes[start : start + 1000])
            await client.flush()
    return expected


def _by_key(rows: list[tuple[str, int, str]], reader: str) -> Rows:
    found = {key: (n, text) for key, n, text in rows}
    assert len(found) == len(rows), f"{reader}: {len(rows) - len(found)} keys stand twice"
    return found


@pytest.mark.timeout(900)
async def test_three_readers_see_the_same_rows(live_server: ServerProcess, spark: SparkSession) -> None:
    expected = await _fill(live_server)
    columns = ", ".join(COLUMNS)
    by_duckdb = connect_duckdb(live_server.url).execute(f"SELECT {columns} FROM lake.default.{TABLE}").fetchall()
    assert _by_key(by_duckdb, "DuckDB") == expected
    table = RestCatalog("lake", uri=live_server.url).load_table(f"default.{TABLE}")
    by_pyiceberg = table.scan(selected_fields=COLUMNS).to_arrow().select(list(COLUMNS)).to_pylist()
    assert _by_key([tuple(row.values()) for row in by_pyiceberg], "pyiceberg") == expected
    for name, value in {"": ICEBERG, ".type": "rest", ".uri": live_server.url, ".warehouse": "lake"}.items():
        spark.conf.set(f"spark.sql.catalog.live{name}", value)
    by_spark = spark.sql(f"SELECT {columns} FROM live.default.{TABLE}").toArrow().to_pylist()
    assert _by_key([tuple(row.values()) for row in by_spark], "Spark") == expected
    # The test is of the right size: many files, and thousands of deletes that readers have to apply.
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    summary = snapshot.summary
    assert int(summary["total-data-files"]) >= ROUNDS
    assert int(summary.get("total-position-deletes", 0)) > 50_000
