"""DoLake's tables, row by row, second part: partitions, Parquet files, compaction and maintenance.

Each row is one promise of its documents, asked of a live server and judged by the files and by other readers. Where
Mainstem differs on purpose, the row says so and why.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.marks import positions_of
from mainstem.tables.parquet import Codec, ParquetSettings
from tests.harness.judge import read_state

pytestmark = pytest.mark.timeout(900)

TABLES = "/v1/namespaces/default/tables"
COLUMNS = {"timestamp": "timestamptz", "user_id": "string", "region": "string", "n": "long"}
# Two of January, one of February.
TIMES = ("2024-01-15T14:30:00+00:00", "2024-01-16T03:00:00+00:00", "2024-02-01T00:00:00+00:00")
DAY = {"type": "day", "sourceField": "timestamp", "name": "dt"}
# What the documents call it, how it is declared, and the names of its partitions.
PARTITIONS: list[tuple[str, list[Any], str]] = [
    ("day", [DAY], r"dt=2024-0[12]-\d\d"),
    (
        "hour",
        [DAY, {"type": "hour", "sourceField": "timestamp", "name": "hr"}],
        r"dt=2024-01-15/hr=14|dt=2024-01-16/hr=03|dt=2024-02-01/hr=00",
    ),
    # An hour without its day has the day in it.
    ("hour_alone", ["hour(timestamp)"], r"timestamp_hour=2024-0[12]-\d\d-\d\d"),
    ("bucket", [{"type": "bucket", "sourceField": "user_id", "numBuckets": 16, "name": "bucket"}], r"bucket=\d{1,2}"),
    (
        "composite",
        [DAY, {"type": "bucket", "sourceField": "region", "numBuckets": 4}],
        r"dt=2024-0[12]-\d\d/region_bucket_4=[0-3]",
    ),
    ("month", ["month(timestamp)"], r"timestamp_month=2024-0[12]"),
    ("year", ["year(timestamp)"], r"timestamp_year=2024"),
    ("identity", ["region"], r"region=(eu|us)"),
    ("truncate", ["truncate(10, n)"], r"n_trunc_10=(0|10|20)"),
]


def _row(number: int) -> dict[str, Any]:
    return {
        "timestamp": TIMES[number % len(TIMES)],
        "user_id": f"u{number}",
        "region": ("eu", "us")[number % 2],
        "n": number,
    }


ROWS = {str(number): _row(number) for number in range(24)}


async def _ask(server: ServerProcess, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=180, base_url=server.url) as http:
        answer = await http.request(method, path, json=body)
    assert answer.status_code == 200, (method, path, answer.text)
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def partitioned(live_server: ServerProcess) -> ServerProcess:
    """A table for every kind of partitioning, in two commits. All at once: they are carried side by side."""

    async def fill() -> None:
        for kind, fields, _ in PARTITIONS:
            await _ask(live_server, "PUT", f"{TABLES}/by_{kind}/schemas", {"columns": COLUMNS})
            await _ask(live_server, "PUT", f"{TABLES}/by_{kind}/partitions", {"fields": fields})
        async with CdcClient(live_server.ws_url, source="partitions") as client:
            for half in (0, 12):
                for kind, _, _ in PARTITIONS:
                    await client.send(
                        [insert(f"by_{kind}", str(key), ROWS[str(key)]) for key in range(half, half + 12)]
                    )
                await client.flush()

    asyncio.run(fill())
    return live_server


@pytest.mark.parametrize(("kind", "fields", "shape"), PARTITIONS, ids=[kind for kind, _, _ in PARTITIONS])
async def test_partitions(partitioned: ServerProcess, kind: str, fields: list[Any], shape: str) -> None:
    listed = await _ask(partitioned, "GET", f"{TABLES}/by_{kind}/partitions")
    assert len(listed["spec"]["fields"]) == len(fields) and not listed["waiting"]
    names = [each["partition"] for each in listed["partitions"]]
    assert names and all(re.fullmatch(shape, name) for name in names), names
    stats = await _ask(partitioned, "GET", f"{TABLES}/by_{kind}/partition-stats")
    assert stats["totals"]["records"] == len(ROWS)
    assert [each["partition"] for each in stats["partitions"]] == names
    for each in stats["partitions"]:
        assert each["data-files"] >= 1 and each["bytes"] >= each["file-bytes-max"] >= each["file-bytes-min"] > 0
    one = await _ask(partitioned, "GET", f"{TABLES}/by_{kind}/partition-stats?partition={names[0]}")
    assert [each["partition"] for each in one["partitions"]] == names[:1]
    assert {key: row["n"] for key, row in read_state(partitioned.url, f"by_{kind}").items()} == {
        key: row["n"] for key, row in ROWS.items()
    }


def test_buckets_are_those_of_iceberg(partitioned: ServerProcess) -> None:
    """Every engine must look for a key where we put it."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import StringType

    table = RestCatalog("lake", uri=partitioned.url).load_table("default.by_bucket")
    bucket_of = BucketTransform(16).transform(StringType())
    for user in ("u0", "u7", "u23"):
        scan = table.scan(f"user_id = '{user}'")
        assert {task.file.partition[0] for task in scan.plan_files()} == {bucket_of(user)}
        assert scan.to_arrow()["user_id"].to_pylist() == [user]


async def test_a_query_prunes_partitions(partitioned: ServerProcess) -> None:
    """The documents' own question: only January is read."""
    body = {
        "table": {"namespace": ["default"], "name": "by_day"},
        "columns": ["*"],
        "where": "timestamp >= '2024-01-01' AND timestamp < '2024-02-01'",
    }
    (scan,) = (await _ask(partitioned, "POST", "/v1/query/plan", body))["scans"]
    assert scan["partitions"] == {"total": 3, "selected": 2}
    assert scan["files"]["selected"] < scan["files"]["total"]


# Parquet


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_every_codec_of_the_documents_is_one_of_ours(codec: str) -> None:
    assert ParquetSettings(compression=Codec(codec)).properties()


@pytest.mark.parametrize(
    ("name", "theirs", "ours", "why"),
    [
        ("parquetCompression", "snappy", str(ParquetSettings().compression), "zstd makes smaller files"),
        ("parquetRowGroupSize", 100_000, ParquetSettings().row_group_rows, "by bytes, as Iceberg's writers cut them"),
    ],
)
def test_defaults_that_differ_on_purpose(name: str, theirs: Any, ours: Any, why: str) -> None:
    """Both can be set to what the documents have."""
    assert ours != theirs and why, name
    both = ParquetSettings(compression=Codec.SNAPPY, row_group_rows=100_000).properties()
    assert both["write.parquet.compression-codec"] == "snappy"


def test_the_files_are_parquet_that_says_how_it_was_written(partitioned: ServerProcess) -> None:
    files = _files(partitioned, "by_day")
    assert files
    for file in files:
        footer = pq.read_metadata(file)
        codecs = {footer.row_group(0).column(index).compression for index in range(footer.num_columns)}
        assert codecs == {"ZSTD"}, file


def _files(server: ServerProcess, table: str) -> list[Path]:
    return sorted((server.data / "warehouse" / "default" / table / "data").rglob("*.parquet"))


# Compaction and maintenance


async def test_the_documents_own_compaction_of_one_partition(partitioned: ServerProcess) -> None:
    before = {each["partition"]: each for each in await _stats(partitioned, "by_day")}
    asked = {"namespace": "default", "table": "by_day", "partitions": ["dt=2024-01-15"], "waitS": 150}
    dry = await _ask(partitioned, "POST", "/v1/compaction/run", asked | {"dryRun": True})
    assert [group["partition"] for group in dry["plan"][0]["groups"]] == ["dt=2024-01-15"]
    (job,) = (await _ask(partitioned, "POST", "/v1/compaction/run", asked))["jobs"]
    assert job["state"] == "done", job
    after = {each["partition"]: each for each in await _stats(partitioned, "by_day")}
    assert before["dt=2024-01-15"]["data-files"] >= 2 and after["dt=2024-01-15"]["data-files"] == 1
    for other in ("dt=2024-01-16", "dt=2024-02-01"):
        assert after[other] == before[other]
    assert read_state(partitioned.url, "by_day").keys() == ROWS.keys()


async def _stats(server: ServerProcess, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await _ask(server, "GET", f"{TABLES}/{table}/partition-stats"))["partitions"]
    return found


async def test_snapshots_expire_and_the_newest_one_keeps_the_mark(partitioned: ServerProcess) -> None:
    steps = [str(step) for step in Step if step not in (Step.COMPACT, Step.REBUILD)]
    asked = {"namespace": "default", "table": "by_year", "steps": steps, "snapshotAgeS": 0, "waitS": 150}
    (job,) = (await _ask(partitioned, "POST", "/v1/compaction/run", asked))["jobs"]
    assert job["state"] == "done" and job["progress"]["expire"]["snapshots"] >= 1, job
    document = (await _ask(partitioned, "GET", f"{TABLES}/by_year"))["metadata"]
    (snapshot,) = document["snapshots"]
    assert min(positions_of(snapshot["summary"]).values()) > 0
    assert read_state(partitioned.url, "by_year").keys() == ROWS.keys()


@pytest.mark.parametrize(
    ("name", "theirs", "path"),
    [
        ("minFilesToCompact", 5, "min_files"),
        ("maxFilesToCompact", 100, "max_files"),
        ("targetFileSizeBytes", 134_217_728, "target_file_bytes"),
        ("autoCompact", True, "auto"),
        ("compactionIntervalMs / 1000", 3600, "interval_s"),
    ],
)
async def test_thresholds_are_shown(partitioned: ServerProcess, name: str, theirs: Any, path: str) -> None:
    thresholds = (await _ask(partitioned, "GET", "/v1/compaction/candidates?table=by_day"))["thresholds"]
    assert thresholds[path] == theirs == getattr(MaintenanceSettings(), path), name
