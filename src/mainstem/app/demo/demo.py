"""The demo: a real server, a realistic sample, a reconnect and duplicates on the way, judged row by row by DuckDB.

Then one table is written through every door and seen by all of them (`doors`).
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mainstem.app.config import Config, MongoConfig, ServerConfig
from mainstem.app.demo.doors import NAMESPACE, NOTES, Ports, check_clients, through_every_door
from mainstem.app.demo.sample import Shop
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.app.spark.jars import ensure_jars
from mainstem.app.spark.java import check_java
from mainstem.client import CdcClient, connect_duckdb
from mainstem.runtime.clock import SystemClock

HOST = "127.0.0.1"
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


async def run_demo(changes: int, keep: Path | None, *, stay: bool = False) -> int:
    """0 if every row of every table is as it was sent. `stay` keeps the server up until Ctrl-C."""
    console = Console()
    check_java()
    check_clients()
    ensure_jars()
    with reserve_port(HOST) as kafka, reserve_port(HOST) as mongo:
        ports = Ports(kafka.getsockname()[1], mongo.getsockname()[1])
        config = Config(
            server=ServerConfig(port=0),
            kafka=KafkaConfig(enabled=True, port=ports.kafka),
            mongo=MongoConfig(port=ports.mongo),
            tables={f"{NAMESPACE}.{NOTES}": {"format": "delta"}},
        )
        async with _folder(keep) as data:
            console.print(f"server in [bold]{data}[/], with every door open")
            async with ServerProcess(data, config) as server:
                differences = await _judged(server, ports, changes, console)
                if differences:
                    console.print(f"[bold red]{len(differences)} differences from what was sent, the first ones:")
                    for difference in differences[:SHOWN]:
                        console.print(f"[red]  {difference}")
                    return 1
                await _say_where(console, server, ports, stay=stay)
    return 0


async def _judged(server: ServerProcess, ports: Ports, changes: int, console: Console) -> list[str]:
    """Send the sample and the changes of the doors; what differs from what was sent."""
    watch = Stopwatch()
    shop = Shop()
    duplicates = await _stream(server.ws_url, shop, changes, console)
    watch.lap(f"{changes:,} changes sent and durable")
    console.print("flushing: Spark carries the log into the tables")
    flushed = await server.flush(timeout_s=300)
    watch.lap("until committed in the tables (Spark's start included)")
    if not flushed["complete"]:
        return [f"the flush did not complete: {json.dumps(flushed)}"]
    found = _read(server.url, shop)
    watch.lap("read back by DuckDB")
    differences = _differences(shop, found)
    _show(console, server.url, shop, duplicates, watch)
    if not differences:
        rows = sum(len(rows) for rows in shop.tables.values())
        console.print(f"[bold green]all {rows:,} rows are as they were sent; {shop.events:,} changes in the history")
        differences = await through_every_door(server, ports, console)
    if not differences:
        console.print("[bold green]every door, DuckDB and Spark see the same rows")
    return differences


async def _say_where(console: Console, server: ServerProcess, ports: Ports, *, stay: bool) -> None:
    console.print(
        f"\nconsole  {server.url}/console\ncatalog  {server.url}  (Iceberg REST)\n"
        f"kafka    {HOST}:{ports.kafka}\nmongo    mongodb://{HOST}:{ports.mongo}"
    )
    if stay:
        console.print("the server stays up until Ctrl-C")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    else:
        console.print("`mainstem demo --stay` keeps these open; `mainstem serve` starts a server of your own")


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
