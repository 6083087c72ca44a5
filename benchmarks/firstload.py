"""A first load by Spark beside Spark's own INSERT … SELECT of the same files, in turns, into the same catalog."""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.endtoend import until_running
from benchmarks.report import Figure, Report
from benchmarks.sparkjob import run_spark_job
from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from mainstem.client.direct import load_direct
from mainstem.client.loading import Target

SECTION = "firstload"
BAR = 1.5
REPEATS = 3
FILE_ROWS = 1_000_000
CONFIG = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=1.0))
_STATUSES = np.array(["new", "paid", "packed", "sent", "returned"])


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """The same driver's memory and cores for both; each is warm, and has the machine to itself."""
    rows = 1_000_000 if small else 10_000_000
    place, warm = folder / "load" / "orders", folder / "load" / "warm"
    size = _write(place, rows)
    _write(warm, 1_000)
    async with ServerProcess(folder, CONFIG) as server:
        await until_running(server)
        _load(server, warm, "warm")
        ours = [_load(server, place, f"orders{number}") for number in range(REPEATS)]
        arguments = {"uri": server.url, "place": str(place), "warm": str(warm), "repeats": REPEATS}
        theirs = await run_spark_job("insert_select", arguments)
        with connect_duckdb(server.url) as lake:
            (found,) = lake.execute("SELECT count(*), count(DISTINCT _key) FROM lake.default.orders0").fetchall()
            assert found == (rows, rows), found
    told = f"{size / 1e6:.0f} MB of Parquet; ours {ours}, theirs {theirs['insert_s']}"
    ours_s, theirs_s = statistics.median(ours), statistics.median(theirs["insert_s"])
    report.add(
        SECTION,
        Figure(f"first load of {rows:,} rows", ours_s, "s", theirs_s, "INSERT … SELECT", f"at most {BAR} times",
               ours_s <= BAR * theirs_s, f"{ours_s / theirs_s:.2f} times; {told}"),
    )  # fmt: skip
    report.add(SECTION, Figure("rows per second", rows / ours_s, "rows/s"))


def _load(server: ServerProcess, place: Path, table: str) -> float:
    began_s = time.perf_counter()
    told: dict[str, int] = {}
    for step in load_direct(str(place), Target(server.url, table, key=("id",))):
        told = step.result
    taken_s = time.perf_counter() - began_s
    assert not told["repeated"], told
    return taken_s


def _write(place: Path, rows: int) -> int:
    """Files of orders; returns their size."""
    place.mkdir(parents=True)
    rng, size = np.random.default_rng(7), 0
    for first in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - first)
        ids = np.arange(first, first + count)
        columns: dict[str, Any] = {
            "id": ids,
            "customer": rng.integers(0, 500_000, count),
            "amount": pa.array(rng.integers(1, 100_000, count)).cast(pa.decimal128(21, 2)),
            "status": _STATUSES[rng.integers(0, len(_STATUSES), count)],
            "at": pa.array(1_767_225_600_000_000 + ids * 1_000, pa.timestamp("us", "UTC")),
            "note": [f"order {each} of the day" for each in ids],
        }  # fmt: skip
        path = place / f"{first:012d}.parquet"
        pq.write_table(pa.table(columns), path, compression="zstd")
        size += path.stat().st_size
    return size
