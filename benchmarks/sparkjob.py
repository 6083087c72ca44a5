"""Jobs that need a Spark session of their own, in a process of their own: `python -m benchmarks.sparkjob NAME JSON`."""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load import make_events
from mainstem.app.jars import ensure_jars

Job = Callable[[dict[str, Any]], dict[str, Any]]


async def run_spark_job(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a job, and return what it printed last."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.sparkjob",
        name,
        json.dumps(arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 26,
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{name} failed: {errors.decode()[-3000:]}")
    answer: dict[str, Any] = json.loads(output.decode().strip().splitlines()[-1])
    return answer


def _session(uri: str) -> Any:
    from mainstem.pipeline.session import SessionSettings, build_session

    session = build_session(
        SessionSettings(
            app="bench",
            master="local[*]",
            driver_memory="2g",
            jars=tuple(str(jar) for jar in ensure_jars()),
            python=sys.executable,
            catalogs={"lake": {"type": "rest", "uri": uri, "warehouse": "lake"}},
        )
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def append(arguments: dict[str, Any]) -> dict[str, Any]:
    """The floor of the whole path: typed rows from Parquet to Iceberg, warm, in one append."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(arguments["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)
    size = 100_000
    for part in range(max(1, arguments["rows"] // size)):
        rows = [event["after"] | {"_key": event["rowId"]} for event in make_events(rng, size, 300_000, "t")]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{part:04d}.parquet", compression="zstd")
    spark = _session(arguments["uri"])
    frame = spark.read.parquet(str(folder))
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    frame.limit(1000).writeTo("lake.bench.rows").create()
    frame.limit(100_000).writeTo("lake.bench.rows").append()
    taken, cpu = [], []
    jvm = psutil.Process(int(spark._jvm.java.lang.ProcessHandle.current().pid()))
    for _ in range(3):
        began_s, before = time.perf_counter(), jvm.cpu_times()
        frame.writeTo("lake.bench.rows").append()
        taken.append(time.perf_counter() - began_s)
        after = jvm.cpu_times()
        cpu.append(after.user + after.system - before.user - before.system)
    return {"append_s": statistics.median(taken), "append_cpu_s": statistics.median(cpu)}


def upserts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Our own writer on sealed segments: the first ones fill the table, each of the others is a batch to be timed."""
    from mainstem.model import TableName
    from mainstem.pipeline.driver_sql import DriverSql
    from mainstem.pipeline.driverpass import DriverPass
    from mainstem.pipeline.lake import Lake
    from mainstem.pipeline.quickcatalog import QuickCatalog
    from mainstem.pipeline.quickcommit import QuickCommits
    from mainstem.pipeline.rowdelta import RowDeltaUpsert
    from mainstem.pipeline.segments import SegmentFolder
    from mainstem.pipeline.session import join_session
    from mainstem.pipeline.tablewriter import ROWS_PER_PASS_MAX, TableWriter
    from mainstem.runtime.clock import SystemClock
    from mainstem.tables.settings import TableSettings

    spark = _session(arguments["uri"])
    sql = DriverSql()
    folder = SegmentFolder(Path(arguments["segments"]))
    catalog = QuickCatalog(arguments["uri"], "lake", {})
    with ThreadPoolExecutor(4, "side", join_session, (spark,)) as side_jobs:
        writer = TableWriter(
            Lake(spark),
            TableName("default", arguments["table"]),
            # The peers write no history.
            TableSettings(history=False),
            upsert=RowDeltaUpsert(sql, side_jobs),
            sql=sql,
            side_jobs=side_jobs,
            driver=DriverPass(sql, catalog, QuickCommits(catalog, SystemClock()), side_jobs, ROWS_PER_PASS_MAX),
        )
        segments = folder.list()
        positions = [position for position, _ in arguments["batches"]]
        filled = [segment for segment in segments if segment.last < positions[0]]
        writer.catch_up(filled)
        taken: dict[str, list[float]] = {}
        for first, size in arguments["batches"]:
            upto = [segment for segment in segments if segment.last < first + size]
            began_s = time.perf_counter()
            writer.catch_up(upto)
            taken.setdefault(str(size), []).append(time.perf_counter() - began_s)
    return taken


JOBS: dict[str, Job] = {"append": append, "upserts": upserts}


def main() -> None:
    """Run one job and print its answer."""
    sys.stdout.write(json.dumps(JOBS[sys.argv[1]](json.loads(sys.argv[2]))) + "\n")


if __name__ == "__main__":
    main()
