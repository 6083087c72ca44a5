"""The analyst's SELECTs in a real DuckDB, beside the merge rule in Python."""

import json
import random
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from mainstem.model import Change, Hlc, Invalid, Operation, SourceId, TableName, merge
from mainstem.query.analyst import as_of_sql, blame_sql, changes_sql, read_clock

TABLE = TableName("app", "notes")
NAMES = ["a", "q\"uo'te", "sl/ash~", "ünï", "$.x"]


def history(seed: int) -> list[Change]:
    chance = random.Random(seed)
    changes = []
    for position in range(1, 200):
        operation = chance.choice([Operation.INSERT, Operation.UPDATE, Operation.UPDATE, Operation.DELETE])
        names = chance.sample(NAMES, chance.randint(1, 3))
        values: dict[str, Any] = {name: chance.choice([None, 1, 2.5, True, "it's", [1, {"k": 2}]]) for name in names}
        changes.append(
            Change(
                table="notes",
                key=f"r{chance.randrange(8)}'",
                operation=operation,
                columns=None if operation is Operation.DELETE else values,
                hlc=Hlc(chance.randint(1, 60) * 1000 + position),
                source=SourceId(chance.choice(["ada", "bob"])),
                batch_sequence=1,
            )
        )
    return changes


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA app")
    connection.execute(
        "CREATE TABLE app.notes_history (_position BIGINT, _hlc BIGINT, _op VARCHAR, _key VARCHAR, _columns VARCHAR, "
        "_source VARCHAR, _id VARCHAR)"
    )
    return connection


def fill(connection: duckdb.DuckDBPyConnection, changes: list[Change]) -> None:
    rows = [
        (index, each.hlc, str(each.operation), each.key, each.columns and json.dumps(each.columns), each.source, None)
        for index, each in enumerate(changes, 1)
    ]
    connection.executemany("INSERT INTO app.notes_history VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


@pytest.mark.parametrize("seed", range(4))
def test_as_of_is_the_merge_of_what_was_written_until_then(connection: duckdb.DuckDBPyConnection, seed: int) -> None:
    changes = history(seed)
    fill(connection, changes)
    for clock in (0, 1_500, 30_000, 61_000):
        found = connection.execute(as_of_sql(TABLE, Hlc(clock))).fetchall()
        keys = {each.key for each in changes}
        merged = {key: merge(each for each in changes if each.key == key and (each.hlc or 0) <= clock) for key in keys}
        expected = {key: row.values() for key, row in merged.items() if row.visible}
        assert {row[0]: json.loads(row[3]) for row in found} == expected
        one = connection.execute(as_of_sql(TABLE, Hlc(clock), key="r1'")).fetchall()
        assert [json.loads(row[3]) for row in one] == [row for key, row in expected.items() if key == "r1'"]


def test_changes_and_blame(connection: duckdb.DuckDBPyConnection) -> None:
    changes = history(9)
    fill(connection, changes)
    found = connection.execute(changes_sql(TABLE, Hlc(10_000), Hlc(20_000))).fetchall()
    expected = sorted((each.hlc, each.source) for each in changes if each.hlc and 10_000 < each.hlc <= 20_000)
    assert [row[:2] for row in found] == expected
    for name in NAMES:
        blamed = connection.execute(blame_sql(TABLE, "r2'", name)).fetchall()
        writes = [
            (each.hlc, each.source, str(each.operation), (each.columns or {}).get(name))
            for each in changes
            if each.key == "r2'" and (each.operation is Operation.DELETE or name in (each.columns or {}))
        ]
        shown = [(*row[:3], None if row[3] is None else json.loads(row[3])) for row in blamed]
        assert shown == sorted(writes, key=lambda write: write[:2], reverse=True)


def test_clocks() -> None:
    assert read_clock("115605504000000007") == 115605504000000007
    moment = datetime(2026, 11, 16, 5, 0, tzinfo=UTC)
    assert read_clock("2026-11-16T05:00:00Z") == (int(moment.timestamp() * 1000) << 16) + 65_535
    for bad in ("", "-1", "yesterday", str(1 << 63), "1" * 30):
        with pytest.raises(Invalid):
            read_clock(bad)
