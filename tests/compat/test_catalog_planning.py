"""Scan planning on the server, asked by pyiceberg's own client, beside the same client's planning by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from tests.compat.catalog_server import Server

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "day", DateType(), required=False),
    NestedField(3, "place", StringType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "day"),
    PartitionField(3, 1001, IdentityTransform(), "place"),
)
COMMITS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("planning")
    with Server(folder, str(folder / "warehouse")) as running:
        catalog = running.pyiceberg()
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", SCHEMA, partition_spec=SPEC)
        for number in range(COMMITS):
            table.append(rows(number))
        yield running


def rows(number: int) -> pa.Table:
    day = 19_675 + number
    return pa.table(
        {"id": [number * 2, number * 2 + 1], "day": [day, day], "place": ["x", "z" if number % 2 else "y"]},
        schema=pa.schema([("id", pa.int64()), ("day", pa.date32()), ("place", pa.string())]),
    )


def planned_by(server: Server, mode: str) -> Table:
    catalog = RestCatalog("lake", uri=server.url, warehouse="lake", **{"scan-planning-mode": mode})
    table: Table = catalog.load_table("db.t")
    return table


@pytest.mark.parametrize(
    "row_filter",
    [
        None,
        "id = 7",
        "id >= 10 and id < 14",
        "place in ('y', 'z')",
        "not (place = 'x')",
        "day >= '2023-11-20'",
        "place = 'nowhere'",
    ],
)
def test_the_server_plans_what_the_client_plans(server: Server, row_filter: str | None) -> None:
    def files(mode: str) -> set[str]:
        table = planned_by(server, mode)
        scan = table.scan() if row_filter is None else table.scan(row_filter=row_filter)
        return {task.file.file_path for task in scan.plan_files()}

    assert files("server") == files("client")


def test_rows_come_through_the_servers_plan(server: Server) -> None:
    found = planned_by(server, "server").scan(row_filter="id < 5").to_arrow()
    assert sorted(found["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert len(planned_by(server, "server").scan().to_arrow()) == 2 * COMMITS


def post(server: Server, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/namespaces/db/tables/t/{path}", json=body, timeout=30)


def test_a_large_plan_comes_in_tasks_that_know_themselves(server: Server) -> None:
    plan = post(server, "plan", {"filter": {"type": "lt", "term": "id", "value": 4}}).json()
    assert plan["status"] == "completed"
    assert plan["file-scan-tasks"] == []
    assert len(plan["plan-tasks"]) == 2, "20 manifests in tasks of 16"
    tasks = [post(server, "tasks", {"plan-task": task}).json() for task in plan["plan-tasks"]]
    found = [task for part in tasks for task in part["file-scan-tasks"]]
    assert sum(task["data-file"]["record-count"] for task in found) == 4
    assert found[0]["data-file"]["partition"][0].startswith("2023-11-")
    again = httpx.get(f"{server.url}/v1/namespaces/db/tables/t/plan/{plan['plan-id']}", timeout=30).json()
    assert again["plan-tasks"] == plan["plan-tasks"]
    url = f"{server.url}/v1/namespaces/db/tables/t/plan/{plan['plan-id']}"
    assert httpx.delete(url, timeout=60).status_code == 204
    assert httpx.delete(url, timeout=60).json()["error"]["type"] == "NoSuchPlanIdException"
    assert post(server, "tasks", {"plan-task": "bm8="}).json()["error"]["type"] == "NoSuchPlanTaskException"


def test_incremental_scans_show_what_was_appended_in_between(server: Server) -> None:
    snapshots = planned_by(server, "client").metadata.snapshots
    body = {"start-snapshot-id": snapshots[3].snapshot_id, "end-snapshot-id": snapshots[5].snapshot_id}
    plan = post(server, "plan", body).json()
    assert sum(task["data-file"]["record-count"] for task in plan["file-scan-tasks"]) == 4
    backwards = {"start-snapshot-id": snapshots[5].snapshot_id, "end-snapshot-id": snapshots[3].snapshot_id}
    assert "is not a parent ancestor" in post(server, "plan", backwards).json()["error"]["message"]
    assert post(server, "plan", {**body, "snapshot-id": snapshots[1].snapshot_id}).status_code == 400


def test_statistics_come_for_the_columns_that_were_asked_for(server: Server) -> None:
    first = planned_by(server, "client").metadata.snapshots[0].snapshot_id
    plan = post(server, "plan", {"snapshot-id": first, "stats-fields": ["id"]}).json()
    lows = [task["data-file"]["lower-bounds"] for task in plan["file-scan-tasks"]]
    assert {"keys": [1], "values": ["0000000000000000"]} in lows
    assert post(server, "plan", {"stats-fields": ["none"]}).status_code == 400
    assert post(server, "plan", {"filter": {"type": "eq", "term": "none", "value": 1}}).status_code == 400
