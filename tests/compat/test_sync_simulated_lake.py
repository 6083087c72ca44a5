"""One simulated world, carried on into the lake: the tables that Spark wrote are what every replica holds."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import HttpTransport, LocalDB, SyncCoordinator, connect_duckdb
from mainstem.wire.sync import RowDelta, SyncPush
from tests.harness.sync_judge import judge
from tests.harness.sync_server import RealServer, merged
from tests.harness.sync_world import TABLES, World

SEED = 20_26
STEPS = 600
GATEWAY = "simulated"


async def _history(folder: Path) -> list[RowDelta]:
    world = World(SEED, folder)
    server = await RealServer.start(folder / "server", world.clock, world.chance)
    try:
        await world.run(server, STEPS)
        return await judge(world, server)
    finally:
        await world.stop()
        await server.close()


def _state(url: str, table: str) -> dict[str, dict[str, Any]]:
    with connect_duckdb(url) as connection:
        cursor = connection.execute(f"SELECT * FROM lake.{GATEWAY}.{table}")
        names = [column[0] for column in cursor.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {row["_key"]: {name: row[name] for name in names if not name.startswith("_")} for row in rows}


@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_the_tables_are_what_every_replica_holds(live_server: ServerProcess, tmp_path: Path) -> None:
    history = await _history(tmp_path)
    transport = HttpTransport(live_server.url, GATEWAY, timeout_s=120.0)
    # In the order of arrival, in two commits at least, with late clocks and deletes on both sides of the cut.
    for part in (history[: len(history) // 2], history[len(history) // 2 :]):
        for client, deltas in groupby(part, key=lambda delta: delta.client_id):
            await transport.push(SyncPush(client_id=client, deltas=tuple(deltas)))
        assert (await live_server.flush())["complete"]
    expected = merged(history)
    for table in TABLES:
        rows = {key[1]: row.values() for key, row in expected.items() if key[0] == table and row.visible}
        state = _state(live_server.url, table)
        assert state.keys() == rows.keys()
        for key, values in rows.items():
            assert state[key] == {name: values.get(name) for name in state[key]}, (table, key)
    # And a client that comes new gets the same rows, deleted ones too.
    db = LocalDB.open(":memory:")
    sync = SyncCoordinator(db, transport)
    await sync.sync_once()
    with db._store.reading() as reading:
        found = {(table, key): record.row for table in TABLES for key, record in reading.rows(table)}
    assert found == expected
    await sync.close()
