"""A table in Delta's format, from a producer to readers that are not ours: acks, flush and status know of it too."""

import os
from typing import Any

import deltalake
import httpx
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update
from mainstem.client.delta import DeltaTable, create_storage
from tests.harness.judge import read_state

TABLE = "shop_in_delta"
EXPECTED = {str(n): float(n) for n in range(10) if n != 2} | {"1": 100.0, "x": 0.5}


@pytest.mark.spark
async def test_every_engine_reads_what_the_server_wrote(live_server: ServerProcess, spark: SparkSession) -> None:
    async with CdcClient(live_server.ws_url, source="in-delta") as client:
        await client.send([insert(TABLE, str(n), {"n": n, "doc": {"a": [n]}}) for n in range(10)])
        await client.flush()
        await client.send([update(TABLE, "1", {"n": 100}), delete(TABLE, "2")])
        await client.send([insert(TABLE, "x", {"n": 0.5})])
        # Answers once the table covers it.
        await client.flush()
    folder = live_server.data / "delta"
    assert {key: row["n"] for key, row in read_state(folder, TABLE).items()} == EXPECTED
    opened = deltalake.DeltaTable(str(folder / "default" / TABLE))
    by_delta_rs = pa.RecordBatchReader.from_stream(opened.scan(columns=["_key", "n"])).read_all().to_pylist()
    assert {row["_key"]: row["n"] for row in by_delta_rs} == EXPECTED
    ours = DeltaTable(create_storage(str(folder)), f"default/{TABLE}")
    by_spark = ours.to_spark(spark).select("_key", "n").collect()
    assert {row["_key"]: row["n"] for row in by_spark} == EXPECTED
    history = DeltaTable(create_storage(str(folder)), f"default/{TABLE}_history")
    assert history.to_spark(spark).count() == len(history.query()) == 13
    # Before the queries, which leave changes behind that are not in the table yet.
    await _is_shown(live_server)
    await _queries_answer(live_server)
    await _is_maintained(live_server)
    await _driver_has_no_engine(live_server)
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        status = (await http.get("/status")).json()["tables"][f"default.{TABLE}"]
        listed = (await http.get("/v1/namespaces/default/generic-tables")).json()["identifiers"]
    assert (status["covered"], status["error"]) == (status["logged"], None)
    assert {"namespace": ["default"], "name": TABLE} in listed


async def _driver_has_no_engine(server: ServerProcess) -> None:
    """Rows are read by executors, of Delta too: the driver has not even loaded what could read them in its place."""
    loaded = [{each.path for each in psutil.Process(pid).memory_maps()} for pid in (os.getpid(), await _driver(server))]
    here, there = [[path for path in paths if "duckdb" in path] for paths in loaded]
    assert here and not there


async def _driver(server: ServerProcess) -> int:
    pid: int = (await server.status())["pipeline"]["pid"]
    return pid


async def _is_shown(server: ServerProcess) -> None:
    """Operators see it as they see Iceberg's tables."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        tables = {each["table"]: each for each in (await http.get("/v1/overview?limit=1000")).json()["tables"]}
        writes = {each["table"]: each for each in (await http.get("/v1/write-stats?limit=1000")).json()["tables"]}
    shown, written = tables[f"default.{TABLE}"], writes[f"default.{TABLE}"]
    assert (shown["format"], shown["error"]) == ("delta", None)
    assert {"name": "n", "type": "double", "required": False} in shown["columns"]
    newest = shown["snapshots"][0]
    assert (newest["rows"], int(newest["snapshotId"]) + 1) == (10, shown["snapshotCount"])
    assert newest["position"] is not None and newest["dataFiles"] == written["dataFiles"] > 0
    assert written["commitsHour"] == written["snapshots"] and written["rows"] == 10


async def _queries_answer(server: ServerProcess) -> None:
    """The gateway's own queries, at a snapshot and at the latest, its plans, and Spark's."""
    sum_of = f"SELECT count(*) AS rows, sum(n) AS total FROM {TABLE}"
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:

        async def ask(path: str, **body: object) -> dict[str, Any]:
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        assert (await ask("/v1/query", sql=sum_of))["rows"] == [[10, sum(EXPECTED.values())]]
        on_spark = await ask("/v1/query", sql=sum_of, engine="spark")
        assert (on_spark["rows"], on_spark["stats"]["engine"]) == ([[10, sum(EXPECTED.values())]], "spark")
        joined = f"SELECT count(*) FROM {TABLE} t JOIN {TABLE}_history h ON t._key = h._key"
        assert (await ask("/v1/query", sql=joined))["rows"] == [[11]]
        plan = await ask("/v1/query/plan", sql=f"SELECT n FROM {TABLE} WHERE n > 1000")
        assert (plan["filesToRead"], plan["scans"][0]["files"]["selected"]) == (0, 0)
        assert plan["scans"][0]["files"]["total"] > 0
        async with CdcClient(server.ws_url, source="in-delta-later") as client:
            await (await client.send([update(TABLE, "1", {"n": 7}), delete(TABLE, "3")])).durable()
            latest = await ask("/v1/query", sql=f"SELECT n FROM {TABLE} WHERE _key IN ('1', '3')", freshness="latest")
            assert latest["rows"] == [[7.0]]


async def _is_maintained(server: ServerProcess) -> None:
    """The door of compaction knows the table, and puts its files together."""
    async with httpx.AsyncClient(base_url=server.url, timeout=200) as http:

        async def candidate() -> dict[str, Any]:
            found = await http.get(f"/v1/compaction/candidates?namespace=default&table={TABLE}")
            assert found.status_code == 200, found.text
            (only,) = found.json()["candidates"]
            return dict(only)

        # What was sent last is in the table before its files are counted.
        await server.flush()
        before = await candidate()
        assert before["dataFiles"] > 1 and before["groups"]
        asked = {"table": TABLE, "steps": ["compact", "deletes", "expire", "orphans"], "waitS": 150, "snapshotAgeS": 0}
        answer = await http.post("/v1/compaction/run", json=asked)
        (job,) = answer.json()["jobs"]
        assert job["state"] == "done", job
        assert job["progress"]["compact"]["filesRead"] == before["dataFiles"]
        assert job["progress"]["expire"]["dataFiles"] >= before["dataFiles"]
        after = await candidate()
        assert (after["dataFiles"], after["deleteFiles"]) == (1, 0)
    rows = {key: row["n"] for key, row in read_state(server.data / "delta", TABLE).items()}
    assert rows == {key: n for key, n in EXPECTED.items() if key != "3"} | {"1": 7.0}
