"""Tables are dropped through the catalog while a whole server runs: flushes complete, and nobody else notices."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, connect_duckdb
from tests.harness.seeds import soak_seeds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DROPS = (("dropped",), ("dropped_history",), ("dropped", "dropped_history"))
TABLES = ("dropped", "dropped_history", "kept")


async def write(server: ServerProcess, number: int) -> None:
    """One change to each table, carried into it."""
    events = [
        {"table": table, "operation": "INSERT", "rowId": f"r{number}", "sequence": 2 * number + at, "timestamp": 1,
         "after": {"n": number}}
        for at, table in enumerate(("dropped", "kept"))
    ]  # fmt: skip
    async with CdcClient(server.ws_url, source="dropper") as client:
        await (await client.send(events)).durable()
    flushed = await server.flush()
    assert flushed["complete"], flushed


def keys(server: ServerProcess, table: str) -> set[str]:
    with connect_duckdb(server.url) as lake:
        rows: list[Any] = lake.execute(f"SELECT _key FROM lake.default.{table}").fetchall()
    return {key for (key,) in rows}


async def drop(server: ServerProcess, tables: Sequence[str], *, purge: bool) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for table in tables:
            path = f"/v1/namespaces/default/tables/{table}"
            answer = await http.delete(path, params={"purgeRequested": str(purge).lower()})
            assert answer.status_code == 204, answer.text


async def live_through(server: ServerProcess, drops: Sequence[tuple[tuple[str, ...], bool]]) -> None:
    """Drop tables again and again: each is made anew by the next change, and holds what came since."""
    await write(server, 0)
    there: dict[str, set[str]] = {table: {"r0"} for table in TABLES}
    for number, (tables, purge) in enumerate(drops, 1):
        await drop(server, tables, purge=purge)
        await write(server, number)
        there = {table: ({f"r{number}"} if table in tables else there[table] | {f"r{number}"}) for table in TABLES}
        assert {table: keys(server, table) for table in TABLES} == there
        table = (await server.status())["tables"]["default.dropped"]
        assert table["error"] is None


async def test_every_drop_is_followed_by_a_flush_that_completes(live_server: ServerProcess) -> None:
    await live_through(live_server, [(tables, True) for tables in DROPS])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", soak_seeds(0, 3))
async def test_tables_that_are_dropped_for_long(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    chosen = [((), False), *((tables, purge) for tables in DROPS for purge in (True, False))]
    async with ServerProcess(tmp_path, Config(server=ServerConfig(port=0))) as server:
        await live_through(server, [draw.choice(chosen) for _ in range(40)])
