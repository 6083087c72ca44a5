"""A table in Delta's format, from a producer to readers that are not ours: acks, flush and status know of it too."""

import deltalake
import httpx
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
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        status = (await http.get("/status")).json()["tables"][f"default.{TABLE}"]
        listed = (await http.get("/v1/namespaces/default/generic-tables")).json()["identifiers"]
    assert (status["covered"], status["error"]) == (status["logged"], None)
    assert {"namespace": ["default"], "name": TABLE} in listed
