"""A table in Delta is put back to an earlier version, over HTTP and by the command; what it had does not come again."""

from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mainstem.app.cli.main import main
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update
from mainstem.client.delta import DeltaTable, create_storage
from tests.harness.judge import read_state

TABLE = "put_back"
FIRST = {str(n): n for n in range(1, 6)}


async def send(server: ServerProcess, *changes: Any) -> None:
    async with CdcClient(server.ws_url, source="put-back") as client:
        await (await client.send(list(changes))).durable()
    assert (await server.flush(timeout_s=240))["complete"]


def by_duckdb(server: ServerProcess) -> dict[str, Any]:
    return {key: row["n"] for key, row in read_state(server.data / "delta", TABLE).items()}


async def newest(server: ServerProcess) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        found: dict[str, Any] = (await http.get(f"/v1/tables/{TABLE}")).json()
        return found


async def roll_back(server: ServerProcess, table: str, version: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        return await http.post(f"/v1/tables/{table}/rollback", json={"snapshotId": version})


@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_a_table_in_delta_is_put_back(live_server: ServerProcess, spark: SparkSession) -> None:
    await send(live_server, *(insert(TABLE, str(n), {"n": n}) for n in range(1, 6)))
    whole = (await newest(live_server))["view"]["current"]["snapshotId"]
    await send(
        live_server, update(TABLE, "1", {"n": 100, "more": "x"}), delete(TABLE, "2"), insert(TABLE, "6", {"n": 6})
    )
    later = (await newest(live_server))["view"]["current"]["snapshotId"]
    after = {**FIRST, "1": 100, "6": 6}
    del after["2"]
    assert by_duckdb(live_server) == after

    done = await roll_back(live_server, TABLE, whole)
    assert (done.status_code, done.json()) == (200, {"snapshotId": whole, "was": later})
    assert by_duckdb(live_server) == FIRST
    ours = DeltaTable(create_storage(str(live_server.data / "delta")), f"default/{TABLE}")
    assert {row["_key"]: row["n"] for row in ours.to_spark(spark).select("_key", "n").collect()} == FIRST
    shown = await newest(live_server)
    assert (shown["view"]["current"]["operation"], shown["view"]["current"]["rows"]) == ("restore", 5)
    assert (
        "more" not in {column["name"] for column in shown["view"]["columns"]} and shown["freshness"]["lagChanges"] == 0
    )
    # What came since goes on from there, and brings nothing else back.
    await send(live_server, update(TABLE, "3", {"n": 33}))
    assert by_duckdb(live_server) == {**FIRST, "3": 33}
    status = (await live_server.status())["tables"][f"default.{TABLE}"]
    assert status["covered"] == status["logged"]

    words = ["catalog", "--url", live_server.url]
    told = CliRunner().invoke(main, [*words, "history", TABLE], env={"COLUMNS": "160"})
    assert told.exit_code == 0 and "restore" in told.output, told.output
    forward = CliRunner().invoke(main, [*words, "rollback", TABLE, later, "--yes"])
    assert forward.exit_code == 0 and "To undo: mainstem catalog rollback" in forward.output, forward.output
    assert by_duckdb(live_server) == after
    assert "already" not in CliRunner().invoke(main, [*words, "rollback", TABLE, later, "--yes"]).output

    # Feeds read histories: what one lost would not come again.
    assert shown["mayRollBack"] is True
    refused = await roll_back(live_server, f"{TABLE}_history", "1")
    assert refused.status_code == 400 and "only the rows of a table can be put back" in refused.text
    assert (await roll_back(live_server, TABLE, "9999")).status_code == 404
    assert by_duckdb(live_server) == after
