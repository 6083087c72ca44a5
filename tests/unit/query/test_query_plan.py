"""Plans and routes over real tables: pruning is checked against what DuckDB really reads."""

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestampType

from mainstem.model import Denied, Invalid, NotFound
from mainstem.query.binding import Binder
from mainstem.query.engine import QueryEngine, QueryRequest
from mainstem.query.plan import Plan, Planner, PlanRequest, ScanPlan, TableRef
from mainstem.query.route import EngineName, Reason, Router, RouteSettings, decide
from mainstem.query.sandbox.processes import Sandboxes
from mainstem.query.statements.questions import Statements
from tests.unit.query.folder_lake import FolderCatalog, FolderLake, append_partitioned

DAYS = 10


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> FolderCatalog:
    """default.events: ten days, one partition each; default.buckets by bucket(4, id); small row groups."""
    catalog = FolderCatalog(tmp_path_factory.mktemp("events"))
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "timestamp", TimestampType()),
        NestedField(3, "kind", StringType()),
        NestedField(4, "price", DecimalType(10, 2)),
    )
    count = DAYS * 24
    start = dt.datetime(2024, 1, 1)
    rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([start + dt.timedelta(hours=hour) for hour in range(count)], pa.timestamp("us")),
            "kind": [f"k{hour % 24:02d}" for hour in range(count)],
            "price": pa.array(list(range(count)), pa.decimal128(10, 2)),
        }
    )
    by_day = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
    append_partitioned(catalog.create_table(("default", "events"), schema, partition_spec=by_day), rows, 6)
    by_bucket = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    append_partitioned(catalog.create_table(("default", "buckets"), schema, partition_spec=by_bucket), rows, 1000)
    return catalog


@pytest.fixture
def planner(events: FolderCatalog, sandboxes: Sandboxes) -> Planner:
    return Planner(Binder(FolderLake(events), None), Statements(sandboxes))


@pytest.mark.parametrize(
    ("where", "files", "groups"),
    [
        (None, 10, 40),
        ("timestamp >= '2024-01-03' AND timestamp < '2024-01-05'", 2, 8),
        ("timestamp = '2024-01-03 07:00:00'", 1, 1),
        ("timestamp BETWEEN '2024-01-01' AND '2024-01-01 05:00:00'", 1, 1),
        ("date_trunc('day', timestamp) = DATE '2024-01-10'", 1, 4),
        ("id IN (3, 100)", 2, 2),
        ("id = 3 OR id = 239", 2, 2),
        ("id < 0", 0, 0),
        ("id > 102 AND id < 105", 1, 1),
        ("price < 6.00", 1, 1),
        ("kind = 'k01'", 10, 10),
        ("kind LIKE 'k0%'", 10, 20),
        ("kind IS NULL", 0, 0),
        ("NOT (id >= 24)", 1, 4),
        ("id + 1 = 4", 1, 1),
        ("id % 2 = 1", 10, 40),
        ("upper(kind) = 'K01'", 10, 40),
        ("id = 3 OR upper(kind) = 'K01'", 10, 40),
        ("kind <> 'k01'", 10, 40),
    ],
)
async def test_pruning(planner: Planner, where: str | None, files: int, groups: int) -> None:
    request = PlanRequest(table=TableRef("events", ("default",)), where=where)
    (scan,) = (await planner.plan(request)).scans
    assert (scan.files.total, scan.row_groups.total, scan.partitions.total) == (10, 40, 10)
    assert (scan.files.selected, scan.row_groups.selected) == (files, groups)
    assert scan.partitions.selected == files
    assert scan.row_groups.exact
    assert (scan.bytes_to_read > 0) is (files > 0)


@pytest.mark.parametrize(
    "where",
    ["id IN (3, 100)", "timestamp >= '2024-01-03' AND timestamp < '2024-01-05'", "price < 6", "id > 100 AND id < 103"],
)
async def test_duckdb_reads_the_files_that_the_plan_says(planner: Planner, events: FolderCatalog, where: str) -> None:
    engine = QueryEngine(FolderLake(events), _settings(events.folder))
    sql = f"SELECT * FROM events WHERE {where}"
    async with engine.open(QueryRequest(sql=f"EXPLAIN ANALYZE {sql}")) as running:
        text = "".join([str(batch.to_pylist()) async for batch in running.batches()])
    await engine.close()
    read = int(re.findall(r"Total Files Read:\s*│?\s*\D*(\d+)", text)[0])
    assert (await planner.plan(PlanRequest(sql=sql))).files_to_read == read


async def test_buckets_are_pruned_by_equality(planner: Planner) -> None:
    (scan,) = (await planner.plan(PlanRequest(sql="SELECT * FROM buckets WHERE id = 5"))).scans
    assert (scan.partitions.total, scan.partitions.selected) == (4, 1)


async def test_plan_and_route_name_the_partitions(planner: Planner) -> None:
    request = PlanRequest(
        table=TableRef("events", ("default",)), where="timestamp >= '2024-01-03' AND timestamp < '2024-01-05'"
    )
    (scan,) = (await planner.plan(request)).scans
    assert scan.partition_names == ("day=2024-01-03", "day=2024-01-04")
    route = await Router(planner, RouteSettings()).route(request)
    (table,) = route.tables
    assert (table.table, table.partitions) == ("default.events", ("day=2024-01-03", "day=2024-01-04"))
    assert (table.partitions_selected, table.partitions_total) == (2, 10)
    (bucket,) = (await planner.plan(PlanRequest(sql="SELECT * FROM buckets WHERE id = 5"))).scans
    assert len(bucket.partition_names) == 1
    assert re.fullmatch(r"bucket=[0-3]", bucket.partition_names[0])


async def test_fewer_columns_are_fewer_bytes(planner: Planner) -> None:
    whole = await planner.plan(PlanRequest(sql="SELECT * FROM events"))
    one = await planner.plan(PlanRequest(sql="SELECT id FROM events"))
    none = await planner.plan(PlanRequest(sql="SELECT count(*) FROM events"))
    assert whole.bytes_to_read > one.bytes_to_read > none.bytes_to_read == 0
    assert whole.rows_to_read == DAYS * 24


async def test_each_scan_of_a_join_has_its_own_filters(planner: Planner) -> None:
    few = "WITH few AS (SELECT * FROM events WHERE id < 24)"
    sql = f"{few} SELECT * FROM few JOIN buckets b USING (id) WHERE b.price > 200"
    plan = await planner.plan(PlanRequest(sql=sql))
    by_table = {scan.table: scan for scan in plan.scans}
    assert by_table["default.events"].files.selected == 1
    assert by_table["default.buckets"].files.total == 4
    assert any("price" in text for text in by_table["default.buckets"].filters)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (PlanRequest(), Invalid),
        (PlanRequest(sql="SELECT 1", table=TableRef("events")), Invalid),
        (PlanRequest(sql="SELECT * FROM nope"), NotFound),
        (PlanRequest(sql="SELECT nope FROM events"), Invalid),
        (PlanRequest(sql="DROP TABLE events"), Denied),
        (PlanRequest(table=TableRef("events"), where="id = 1) UNION (FROM read_text('/etc/passwd')"), Denied),
        (PlanRequest(table=TableRef("events"), where="getenv('HOME') = ''"), Denied),
        (PlanRequest(table=TableRef('events"; DROP TABLE x; --')), NotFound),
        (PlanRequest(table=TableRef("events"), columns=("id FROM read_text('x') --",)), Invalid),
    ],
)
async def test_a_plan_is_refused_as_the_query_would_be(
    planner: Planner, request_: PlanRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await planner.plan(request_)


async def test_small_queries_stay_in_the_gateway_and_large_ones_go_to_spark(planner: Planner) -> None:
    request = PlanRequest(sql="SELECT * FROM events")
    small = await Router(planner, RouteSettings()).route(request)
    assert (small.engine, small.reason) == (EngineName.DUCKDB, Reason.SMALL)
    assert small.estimated_rows == DAYS * 24
    assert small.estimated_bytes > 0
    exact = RouteSettings(bytes_max=small.estimated_bytes, rows_max=small.estimated_rows)
    assert (await Router(planner, exact).route(request)).engine is EngineName.DUCKDB
    less = RouteSettings(bytes_max=small.estimated_bytes - 1)
    assert (await Router(planner, less).route(request)).reason is Reason.BYTES
    fewer = RouteSettings(rows_max=small.estimated_rows - 1)
    assert (await Router(planner, fewer).route(request)).reason is Reason.ROWS
    # What counts is what is left after pruning.
    pruned = PlanRequest(sql="SELECT id FROM events WHERE id = 3")
    assert (await Router(planner, fewer).route(pruned)).engine is EngineName.DUCKDB


async def test_a_table_that_duckdb_misreads_goes_to_spark(planner: Planner) -> None:
    plan = await planner.plan(PlanRequest(sql="SELECT * FROM events"))
    scan: Any = {field: getattr(plan.scans[0], field) for field in ScanPlan.__struct_fields__}
    misread = ScanPlan(**{**scan, "shared_deletion_vectors": True})
    route = decide(Plan(sql="", scans=(misread,), files_to_read=1, rows_to_read=1, bytes_to_read=1), RouteSettings())
    assert (route.engine, route.reason) == (EngineName.SPARK, Reason.DELETION_VECTORS)


def _settings(folder: Path) -> Any:
    from mainstem.query.engine import EngineSettings

    return EngineSettings(folder=f"{folder}/")
