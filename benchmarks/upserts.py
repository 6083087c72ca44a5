"""What an upsert costs, by batch and by table size, beside pyiceberg's upsert and delta-rs's merge."""

import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.generators import send
from benchmarks.load import Plan, make_events
from benchmarks.report import Figure, Report
from benchmarks.sparkjob import run_spark_job
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient

SECTION = "upserts"
BATCHES = (1_000, 10_000, 100_000)
REPEATS = 5
GROWTH_MAX = 1.5
UPSERT_S_MAX = 0.5
MERGE_TIMES_MIN = 4
# pyiceberg compares row by row and filter by filter; beyond this it is not asked again.
PEER_S_MAX = 60.0
FILL_CHANGES = 500_000
CONFIG = Config(
    server=ServerConfig(port=0),
    log=LogConfig(flush_events=10**9, flush_bytes=1 << 32, flush_interval_s=10**6, flush_age_s=10**6),
    pipeline=PipelineConfig(enabled=False),
)

Taken = dict[int, float]


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Two table sizes; every batch size; ours, plain MERGE INTO in the same session, and the peers."""
    sizes = few, many = (20_000, 100_000) if small else (100_000, 5_000_000)
    ours, merges = dict[int, Taken](), dict[int, float]()
    for rows in sizes:
        ours[rows], merges[rows] = await _ours(folder / f"ours-{rows}", rows)
    for rows in sizes:
        async with ServerProcess(folder / f"pyiceberg-{rows}", CONFIG) as server:
            pyiceberg = await asyncio.to_thread(_timed_pyiceberg, server.url, rows)
        peers = {
            "pyiceberg upsert": pyiceberg,
            "delta-rs merge": _timed_peer(_DeltaRs(folder / f"delta-{rows}", rows), rows),
        }
        for size in BATCHES:
            for peer, taken in peers.items():
                floor = taken.get(size)
                # The bar is for the large table: on the small one the peers write their one file anew.
                met = None if floor is None or rows != many else ours[rows][size] < floor
                note = f"not run: over {PEER_S_MAX:.0f} s at a smaller batch" if floor is None else None
                bar = "faster" if rows == many else None
                name = f"batch of {size:,} into {rows:,} rows"
                report.add(SECTION, Figure(name, ours[rows][size], "s", floor, peer, bar, met, note))
    for rows in sizes:
        name = f"batch of 10,000 into {rows:,} rows"
        value = ours[rows][10_000]
        report.add(SECTION, Figure(name, value, "s", bar=f"<= {UPSERT_S_MAX} s", met=value <= UPSERT_S_MAX))
        bar = f"{MERGE_TIMES_MIN} times faster" if rows == many else None
        met = None if bar is None else MERGE_TIMES_MIN * value <= merges[rows]
        report.add(SECTION, Figure(name, value, "s", merges[rows], "plain MERGE INTO", bar, met))
    growth = ours[many][10_000] / ours[few][10_000]
    report.add(
        SECTION,
        Figure(
            f"batch of 10,000: cost at {many:,} rows over cost at {few:,}",
            growth,
            "times",
            bar=f"<= {GROWTH_MAX}",
            met=growth <= GROWTH_MAX,
        ),
    )


async def _ours(folder: Path, rows: int) -> tuple[Taken, float]:
    """Real segments, made by a real server; then the pipeline's own writer, timed batch by batch."""
    async with ServerProcess(folder, CONFIG) as server:
        for number, start in enumerate(range(0, rows, FILL_CHANGES)):
            changes = min(FILL_CHANGES, rows - start)
            plan = Plan(url=server.ws_url, source=f"fill{number}", batches=changes // 500, first_key=start)
            await send([plan])
            await server.flush(timeout_s=0.01)
        batches: list[tuple[int, int]] = []
        rng = random.Random(5)
        async with CdcClient(server.ws_url, source="batches") as client:
            for size in BATCHES:
                for _ in range(REPEATS + 1):
                    position = (await server.status())["log"]["durable"] + 1
                    parts = [make_events(rng, min(1000, size), rows, "events") for _ in range(0, size, 1000)]
                    for receipt in [await client.send(part) for part in parts]:
                        await receipt.durable()
                    await server.flush(timeout_s=0.01)
                    batches.append((position, size))
        taken = await run_spark_job(
            "upserts",
            {
                "uri": server.url,
                "segments": str(folder / "log" / "segments"),
                "table": "events",
                "batches": batches,
                "rows": rows,
            },
        )
    # The first of each size compiles what the others use.
    return {size: statistics.median(taken[str(size)][1:]) for size in BATCHES}, taken["merge_s"]


def _timed_pyiceberg(url: str, rows: int) -> Taken:
    return _timed_peer(_Pyiceberg(url, rows), rows)


def _timed_peer(peer: "_Pyiceberg | _DeltaRs", rows: int) -> Taken:
    taken: Taken = {}
    rng = random.Random(5)
    for size in BATCHES:
        times = []
        for _ in range(REPEATS):
            batch = _typed(make_events(rng, size, rows, "events"))
            began_s = time.perf_counter()
            peer.upsert(batch)
            times.append(time.perf_counter() - began_s)
            if times[-1] > PEER_S_MAX / REPEATS:
                break
        taken[size] = statistics.median(times)
        if taken[size] > PEER_S_MAX / REPEATS:
            break
    return taken


def _typed(events: list[dict[str, Any]]) -> Any:
    """The batch as the peers want it: an Arrow table with each key once, the latest row of it."""
    import pyarrow as pa

    latest = {event["rowId"]: event["after"] | {"_key": event["rowId"]} for event in events}
    return pa.Table.from_pylist(list(latest.values()))


def _fill(rows: int) -> Any:
    rng = random.Random(1)
    for start in range(0, rows, FILL_CHANGES):
        yield _typed(make_events(rng, min(FILL_CHANGES, rows - start), rows, "events", start))


class _Pyiceberg:
    def __init__(self, url: str, rows: int) -> None:
        from pyiceberg.catalog.rest import RestCatalog

        catalog = RestCatalog("peer", uri=url)
        catalog.create_namespace("bench")
        for part in _fill(rows):
            if not catalog.table_exists("bench.events"):
                self._table = catalog.create_table("bench.events", schema=part.schema)
            self._table.append(part)

    def upsert(self, batch: Any) -> None:
        self._table.upsert(batch, join_cols=["_key"])


class _DeltaRs:
    def __init__(self, folder: Path, rows: int) -> None:
        from deltalake import DeltaTable, write_deltalake

        for part in _fill(rows):
            write_deltalake(str(folder), part, mode="append")
        self._table = DeltaTable(str(folder))

    def upsert(self, batch: Any) -> None:
        merge = self._table.merge(batch, "t._key = s._key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
