"""The demo: a real server, a realistic sample, a reconnect and duplicates on the way, judged row by row by DuckDB."""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mainstem.app.config import Config, ServerConfig
from mainstem.app.demo.sample import Shop
from mainstem.app.process import ServerProcess
from mainstem.app.spark.jars import ensure_jars
from mainstem.app.spark.java import check_java
from mainstem.client import CdcClient, connect_duckdb
from mainstem.runtime.clock import SystemClock

SOURCE = "demo-shop"
BATCH = 500
# Every so many batches one is sent a second time, as a producer does whose ack was lost.
DUPLICATE_EVERY = 10
SHOWN = 12


class Stopwatch:
    """Named durations, in the order in which they were taken."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._began_s = self._clock.monotonic_s()
        self.taken: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Note how long it was since the last lap."""
        now_s = self._clock.monotonic_s()
        self.taken[name] = now_s - self._began_s
        self._began_s = now_s


async def run_demo(changes: int, keep: Path | None) -> int:
    """0 if every row of every table is as it was sent."""
    console = Console()
    check_java()
    ensure_jars()
    async with _folder(keep) as data:
        console.print(f"server in [bold]{data}[/], with its defaults")
        watch = Stopwatch()
        async with ServerProcess(data, Config(server=ServerConfig(port=0))) as server:
            watch.lap("start to first answer")
            shop = Shop()
            duplicates = await _stream(server.ws_url, shop, changes, console)
            watch.lap(f"{changes:,} changes sent and durable")
            console.print("flushing: Spark carries the log into the tables")
            flushed = await server.flush(timeout_s=300)
            watch.lap("until committed in the tables (Spark's start included)")
            if not flushed["complete"]:
                console.print(f"[bold red]the flush did not complete: {json.dumps(flushed)}")
                return 1
            found = _read(server.url, shop)
            watch.lap("read back by DuckDB")
            differences = _differences(shop, found)
            _show(console, server.url, shop, duplicates, watch)
    if differences:
        console.print(f"[bold red]{len(differences)} rows differ from what was sent, the first ones:")
        for difference in differences[:SHOWN]:
            console.print(f"[red]  {difference}")
        return 1
    rows = sum(len(rows) for rows in shop.tables.values())
    console.print(f"[bold green]all {rows:,} rows are as they were sent; {shop.events:,} changes in the history")
    return 0


@asynccontextmanager
async def _folder(keep: Path | None) -> AsyncIterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="mainstem-demo-") as folder:
        yield Path(folder)


async def _stream(url: str, shop: Shop, changes: int, console: Console) -> int:
    """Send everything; half-way the connection is dropped and a new client goes on where the server is."""
    batches = list(shop.batches(changes, BATCH))
    half = len(batches) // 2
    columns = (TextColumn("streaming"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    duplicates = 0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("changes", total=changes)
        for first, part in ((1, batches[:half]), (half + 1, batches[half:])):
            async with CdcClient(url, source=SOURCE) as client:
                receipts = []
                for sequence, events in enumerate(part, start=first):
                    receipts.append(await client.send(events, sequence=sequence))
                    if sequence % DUPLICATE_EVERY == 0:
                        await receipts[-1].durable()
                        again = await client.send(events, sequence=sequence)
                        duplicates += (await again.durable()).duplicate
                    progress.advance(task, len(events))
                for receipt in receipts:
                    await receipt.durable()
    return duplicates


def _read(url: str, shop: Shop) -> dict[str, list[dict[str, Any]]]:
    """The state tables as DuckDB sees them through the catalog, and the number of changes in their histories."""
    lake = connect_duckdb(url)
    found = {}
    for table in shop.tables:
        cursor = lake.execute(f"SELECT * FROM lake.default.{table}")
        names = [column[0] for column in cursor.description or []]
        found[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    union = " UNION ALL ".join(f"SELECT * FROM lake.default.{table}_history" for table in shop.tables)
    count, distinct = lake.execute(
        f"SELECT count(*), count(DISTINCT (_source, _batch_sequence, _sequence)) FROM ({union})"
    ).fetchall()[0]
    found["history"] = [{"count": count, "distinct": distinct}]
    return found


def _differences(shop: Shop, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    differences = []
    history = found["history"][0]
    if history != {"count": shop.events, "distinct": shop.events}:
        differences.append(f"history: sent {shop.events}, found {history}")
    for table, expected in shop.tables.items():
        rows = {row["_key"]: row for row in found[table]}
        if len(rows) != len(found[table]):
            differences.append(f"{table}: {len(found[table]) - len(rows)} keys stand twice")
        for key in expected.keys() | rows.keys():
            sent, read = expected.get(key), rows.get(key)
            if sent is None or read is None or any(not _same(value, read.get(name)) for name, value in sent.items()):
                differences.append(f"{table} {key}: sent {sent}, found {read}")
    return differences


def _same(sent: Any, read: Any) -> bool:
    if isinstance(sent, list | dict):
        return isinstance(read, str) and json.loads(read) == sent
    return type(sent) is type(read) and bool(sent == read)


def _show(console: Console, url: str, shop: Shop, duplicates: int, watch: Stopwatch) -> None:
    lake = connect_duckdb(url)
    for name in shop.tables:
        cursor = lake.execute(
            f"SELECT * EXCLUDE (_key, _hlc, _source, _position, _clocks) FROM lake.default.{name}"
            " ORDER BY _position DESC LIMIT 3"
        )
        names = [column[0] for column in cursor.description or []]
        table = Table(title=f"default.{name}: {len(shop.tables[name]):,} rows", title_justify="left")
        for column in names:
            table.add_column(column, overflow="ellipsis", no_wrap=True)
        for row in cursor.fetchall():
            table.add_row(*(str(value) for value in row))
        console.print(table)
    sent = ", ".join(f"{count:,} {operation.lower()}s" for operation, count in shop.operations.items())
    console.print(f"sent: {sent}; {duplicates} duplicate batches recognised; 1 reconnect")
    timings = Table(title="timings", title_justify="left")
    timings.add_column("step")
    timings.add_column("seconds", justify="right")
    for step, seconds in watch.taken.items():
        timings.add_row(step, f"{seconds:.2f}")
    console.print(timings)
