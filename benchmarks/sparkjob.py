"""Jobs that need a Spark session of their own, in a process of their own: `python -m benchmarks.sparkjob NAME JSON`."""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.load import make_events
from benchmarks.textbook import run_textbook
from mainstem.app.spark.jars import ensure_jars

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
    from mainstem.pipeline.session.spark import SessionSettings, build_session

    session = build_session(
        SessionSettings(
            app="bench",
            master="local[*]",
            driver_memory="2g",
            jars=tuple(str(jar) for jar in ensure_jars()),
            python=sys.executable,
            catalogs={"lake": {"type": "rest", "uri": uri, "warehouse": "lake", "cache-enabled": "false"}},
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


class _Upto:
    """Segments up to a position: what is sealed when a batch is to be timed."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments = tuple(segments)
        self.last = 0

    def list(self) -> tuple[Any, ...]:
        return tuple(segment for segment in self._segments if segment.last <= self.last)


def upserts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Our own pass on sealed segments: the first ones fill the table, each of the others is a batch to be timed."""
    from mainstem.model import Lineage, TableName
    from mainstem.pipeline.carrier import Carrier
    from mainstem.pipeline.commit.iceberg import IcebergCommits
    from mainstem.pipeline.commit.lake import Lake
    from mainstem.pipeline.commit.places import PlaceFinder
    from mainstem.pipeline.plan.iceberg import IcebergWriter
    from mainstem.pipeline.progress import Progress
    from mainstem.pipeline.source.segments import SegmentFolder
    from mainstem.runtime.clock import SystemClock
    from mainstem.tables.settings import TableSettings

    spark = _session(arguments["uri"])
    folder = _Upto(SegmentFolder(Path(arguments["segments"])).list())
    lake, finder, clock = Lake(spark), PlaceFinder(), SystemClock()
    progress = Progress(clock)
    name = TableName("default", arguments["table"])

    def writer_for(table: TableName) -> IcebergWriter:
        # The peers write no history.
        return IcebergWriter(lake, table, TableSettings(history=False), lineage=Lineage(), finder=finder, store={})

    carrier = Carrier(spark, folder, writer_for, IcebergCommits(lake), progress, clock)  # type: ignore[arg-type]
    folder.last = arguments["batches"][0][0] - 1
    carrier.carry(None, (), "fill")
    taken: dict[str, list[float]] = {}
    for first, size in arguments["batches"]:
        folder.last = first + size - 1
        began_s = time.perf_counter()
        carrier.carry(None, (), "batch")
        taken.setdefault(str(size), []).append(time.perf_counter() - began_s)
        if progress.covered(name) != folder.last:
            raise RuntimeError(f"the batch was not carried: {progress.report({}).tables}")
    passes = [msgspec.to_builtins(each) for each in progress.report({}).passes]
    return {**taken, "passes": passes, "merge_s": _plain_merge(spark, arguments["table"], arguments["rows"])}


def _plain_merge(spark: Any, table: str, rows: int) -> float:
    """What the textbook does: MERGE INTO of 10,000 typed rows, warm, into the same table in the same session."""
    import pyarrow as pa

    rng, taken = random.Random(9), []
    for _ in range(4):
        latest = {event["rowId"]: event["after"] for event in make_events(rng, 10_000, rows, table)}
        batch = [{**row, "_key": key, "_hlc": 1, "_source": "s", "_position": 1} for key, row in latest.items()]
        spark.createDataFrame(pa.Table.from_pylist(batch)).createOrReplaceTempView("batch")
        columns = list(batch[0])
        changed = ", ".join(f"t.`{name}` = s.`{name}`" for name in columns)
        names, values = ", ".join(f"`{name}`" for name in columns), ", ".join(f"s.`{name}`" for name in columns)
        began_s = time.perf_counter()
        spark.sql(
            f"MERGE INTO lake.default.`{table}` t USING batch s ON t._key = s._key"
            f" WHEN MATCHED THEN UPDATE SET {changed} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken[1:])


def insert_select(arguments: dict[str, Any]) -> dict[str, Any]:
    """What one does without us: INSERT … SELECT of Parquet files into an empty Iceberg table, warm."""
    spark, taken = _session(arguments["uri"]), []
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    for number in range(arguments["repeats"] + 1):
        place = arguments["place"] if number else arguments["warm"]
        spark.sql(f"CREATE TABLE lake.bench.orders{number} USING iceberg AS SELECT * FROM parquet.`{place}` LIMIT 0")
        began_s = time.perf_counter()
        spark.sql(f"INSERT INTO lake.bench.orders{number} SELECT * FROM parquet.`{place}`")
        taken.append(time.perf_counter() - began_s)
    return {"insert_s": taken[1:]}


def textbook(arguments: dict[str, Any]) -> dict[str, Any]:
    """The floor of freshness."""
    return run_textbook(_session(arguments["uri"]), arguments)


JOBS: dict[str, Job] = {"append": append, "upserts": upserts, "insert_select": insert_select, "textbook": textbook}


def main() -> None:
    """Run one job and print its answer."""
    sys.stdout.write(json.dumps(JOBS[sys.argv[1]](json.loads(sys.argv[2]))) + "\n")


if __name__ == "__main__":
    main()
