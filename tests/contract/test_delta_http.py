"""Delta tables over HTTP, without a pipeline: operators see their versions, and queries the values of Variants."""

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from mainstem.client.delta import DeltaTable, create_storage
from tests.harness.inprocess import gateway_on_socket

TWO = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])


def _fill(folder: Path) -> DeltaTable:
    table = DeltaTable(create_storage(str(folder)), "shop/orders")
    schema = pa.schema([("_id", pa.int64()), ("p", pa.string()), ("doc", TWO)])
    table.create(schema, variants=["doc"], partition_by=["p"], deletion_vectors=True)
    table.write([{"_id": n, "p": "ab"[n % 2], "doc": {"a": {"b": n}, "tags": [n, "x"]}} for n in range(100)])
    table.delete({"_id": {"$gte": 40}})
    return table


async def test_versions_and_variants(tmp_path: Path) -> None:
    table = _fill(tmp_path / "delta")
    async with (
        gateway_on_socket(tmp_path) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=ws_url.replace("ws://", "http://").removesuffix("/ws")) as http,
    ):

        async def ask(method: str, path: str, body: Any = None) -> Any:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        await ask("POST", "/v1/namespaces", {"namespace": ["shop"]})
        listed = {"name": "orders", "format": "delta", "base-location": table.uri}
        await ask("POST", "/v1/namespaces/shop/generic-tables", listed)

        (shown,) = (await ask("GET", "/v1/overview"))["tables"]
        assert (shown["table"], shown["format"], shown["snapshotCount"]) == ("shop.orders", "delta", 3)
        assert {"name": "doc", "type": "variant", "required": False} in shown["columns"]
        assert shown["partitioning"] == ["identity(p)"]
        newest, before, first = shown["snapshots"]
        assert [each["snapshotId"] for each in shown["snapshots"]] == ["2", "1", "0"]
        assert (newest["rows"], newest["dataFiles"], newest["deleteFiles"]) == (40, 2, 2)
        assert (before["rows"], before["dataFiles"], before["deleteFiles"]) == (100, 2, 0)
        assert (first["dataFiles"], first["operation"]) == (0, "create table")
        (written,) = (await ask("GET", "/v1/write-stats"))["tables"]
        assert (written["rows"], written["rowsAddedHour"], written["commitsHour"]) == (40, 100, 3)

        sql = "SELECT doc FROM shop.orders WHERE CAST(doc.a.b AS BIGINT) >= 38 ORDER BY _id"
        found = await ask("POST", "/v1/query", {"sql": sql})
        assert found["columns"] == [{"name": "doc", "type": "VARIANT"}]
        assert found["rows"] == [[{"a": {"b": n}, "tags": [n, "x"]}] for n in (38, 39)]


async def test_partitions_of_a_delta_table_are_told_as_icebergs_are(tmp_path: Path) -> None:
    table = _fill(tmp_path / "delta")
    async with (
        gateway_on_socket(tmp_path) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=ws_url.replace("ws://", "http://").removesuffix("/ws")) as http,
    ):
        await http.post("/v1/namespaces", json={"namespace": ["shop"]})
        listed = {"name": "orders", "format": "delta", "base-location": table.uri}
        assert (await http.post("/v1/namespaces/shop/generic-tables", json=listed)).status_code == 200
        path = "/v1/namespaces/shop/tables/orders"
        found = (await http.get(f"{path}/partitions")).json()
        assert (found["snapshot-id"], found["total"], found["waiting"]) == (2, 2, [])
        assert found["spec"]["fields"] == [{"name": "p", "transform": "identity", "source": "p"}]
        assert [(each["partition"], each["data-files"], each["records"]) for each in found["partitions"]] == [
            ("p=a", 1, 50),
            ("p=b", 1, 50),
        ]
        stats = (await http.get(f"{path}/partition-stats?partition=p%3Da")).json()
        (one,) = stats["partitions"]
        assert (one["delete-files"], one["deleted-records"], stats["totals"]["records"]) == (1, 30, 50)
        assert one["file-bytes-min"] == one["file-bytes-max"] == one["bytes"] and one["last-updated-ms"] > 0
        # A table of a format that nobody here can read has none to tell.
        foreign = {"name": "pics", "format": "lance", "base-location": str(tmp_path / "pics")}
        await http.post("/v1/namespaces/shop/generic-tables", json=foreign)
        answer = await http.get("/v1/namespaces/shop/tables/pics/partitions")
        assert answer.status_code == 404 and "lance table" in answer.text
