"""Rows are Spark's: by its own event log, by the tables' snapshots and by the files. On the default configuration.

What is counted here is written by Spark, by the catalog and by Parquet's writers. None of it is what the pipeline says
of itself, so a way around the executors would be seen.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.client import CdcClient
from tests.harness.judge import assert_tables_hold

CHANGES = 6_000
BATCH = 200


def logging_to(folder: Path) -> PipelineConfig:
    """The default, but for Spark's event log and its page."""
    folder.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    with reserve_port("127.0.0.1") as place:
        return PipelineConfig(spark=settings, ui_port=place.getsockname()[1])


def on_page(port: int) -> str:
    """The application that Spark's page shows."""
    page = f"http://127.0.0.1:{port}/api/v1/applications"
    (application,) = httpx.get(page, follow_redirects=True, timeout=60).raise_for_status().json()
    return str(application["id"])


def addresses_of_java(gateway: int) -> set[str]:
    """Where the JVM listens."""
    (java,) = [each for each in psutil.Process(gateway).children(recursive=True) if each.name() == "java"]
    found = [each.laddr.ip for each in java.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return {address.removeprefix("::ffff:") for address in found}


async def until_running(server: ServerProcess) -> None:
    """Wait for the stream. What is there before it begins is caught up without a micro-batch."""
    async with asyncio.timeout(240):
        while (await server.status())["pipeline"]["state"] != "running":
            await asyncio.sleep(0.1)


async def told_of_all(server: ServerProcess) -> dict[str, float]:
    """The totals of `/status`, once Spark's own progress has counted every change that was sent."""
    async with asyncio.timeout(60):
        while True:
            totals: dict[str, float] = (await server.status())["pipeline"]["totals"]
            if totals["rows_in"] >= CHANGES:
                return totals
            await asyncio.sleep(0.1)


class EventLog:
    """What Spark wrote down of one application."""

    def __init__(self, folder: Path) -> None:
        (path,) = folder.iterdir()
        self.application = ""
        # By stage, over the tasks that succeeded: records read from files, and records that came by a shuffle.
        self.read: Counter[int] = Counter()
        self.shuffled: Counter[int] = Counter()
        self.tasks: Counter[int] = Counter()
        # Stages in which Python workers are given rows as Arrow.
        self.in_arrow: set[int] = set()
        for line in path.read_text().splitlines():
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["Event"]:
            case "SparkListenerApplicationStart":
                self.application = event["App ID"]
            case "SparkListenerStageCompleted":
                scopes = [json.loads(rdd.get("Scope", "{}")).get("name", "") for rdd in event["Stage Info"]["RDD Info"]]
                if any(name.startswith("MapInArrow") for name in scopes):
                    self.in_arrow.add(event["Stage Info"]["Stage ID"])
            case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                stage, metrics = event["Stage ID"], event["Task Metrics"]
                self.tasks[stage] += 1
                self.read[stage] += metrics["Input Metrics"]["Records Read"]
                self.shuffled[stage] += metrics["Shuffle Read Metrics"]["Total Records Read"]


def data_files(warehouse: Path) -> dict[Path, int]:
    """All data files that stand in the warehouse, with their rows."""
    found = [path for path in warehouse.rglob("*.parquet") if not path.name.endswith("-deletes.parquet")]
    return {path: pq.read_metadata(path).num_rows for path in found}


@pytest.mark.timeout(600)
async def test_every_row_goes_through_the_executors(tmp_path: Path) -> None:
    shop = Shop(11)
    config = Config(server=ServerConfig(port=0), pipeline=logging_to(tmp_path / "events"))
    async with ServerProcess(tmp_path / "data", config) as server:
        await until_running(server)
        async with CdcClient(server.ws_url, source="shop") as client:
            for events in shop.batches(CHANGES, BATCH):
                receipt = await client.send(events)
            await receipt.durable()
        flushed = await server.flush(timeout_s=240)
        assert flushed["complete"], flushed
        assert_tables_hold(server.url, shop)
        # Spark tells of a micro-batch when it is over, a moment after its rows are in the tables.
        told = await told_of_all(server)
        pipeline = (await server.status())["pipeline"]
        passes, driver = pipeline["passes"], psutil.Process(pipeline["pid"])
        assert not [each.path for each in driver.memory_maps() if "duckdb" in each.path]
        application = on_page(config.pipeline.ui_port)
        assert addresses_of_java(server.pid) == {"127.0.0.1"}
        catalog = RestCatalog("judge", uri=server.url)
        tables = {
            name: catalog.load_table(f"default.{name}") for table in shop.tables for name in (table, f"{table}_history")
        }
    spark = EventLog(tmp_path / "events")
    assert application == spark.application

    # The executors read every change from the segments, and every change came to a task that makes rows of it.
    assert sum(spark.read.values()) >= CHANGES
    # A large pass is shuffled to them, a small one is read by the task itself.
    assert sum(spark.shuffled[stage] + spark.read[stage] for stage in spark.in_arrow) >= CHANGES
    assert sum(spark.tasks[stage] for stage in spark.in_arrow) > 0

    added = 0
    for name, table in tables.items():
        for snapshot in table.metadata.snapshots:
            assert snapshot.summary is not None
            assert snapshot.summary["spark.app.id"] == spark.application, name
            added += int(snapshot.summary.get("added-records") or 0)

    # What was committed is what stands in the files, and the histories have every change once.
    files = data_files(tmp_path / "data")
    listed = {
        Path(task.file.file_path.removeprefix("file://").removeprefix("file:")): task.file.record_count
        for table in tables.values()
        for task in table.scan().plan_files()
    }
    assert listed.items() <= files.items()
    segments = {path for path in files if path.parent.name == "segments"}
    assert sum(rows for path, rows in files.items() if path not in segments) == added
    assert told["rows_written"] == added, told
    # What waited when Spark had started came as a micro-batch, too: each change once, and by no other way.
    assert told["rows_read"] == CHANGES, told
    assert all(each["batch"].isdigit() for each in passes) and len(passes) == told["passes"], passes
    assert sum(rows for path, rows in files.items() if path in segments) == CHANGES
    history = [table.metadata.current_snapshot() for name, table in tables.items() if name.endswith("_history")]
    assert sum(int(each.summary["total-records"]) for each in history if each and each.summary) == CHANGES

    for path in files:
        assert "duckdb" not in str(pq.read_metadata(path).created_by).lower(), path
