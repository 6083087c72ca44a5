"""Query latency by size: the gateway's SQL beside plain DuckDB on the same Parquet files, in one run.

    python -m benchmarks.query [--rows 10000 --rows 1000000] [--repeat 7]

Four ways to the same answer: plain DuckDB on the files (the floor: no catalog, no checks, no isolation), DuckDB
attached to our catalog over HTTP, the engine in the gateway without HTTP, and `POST /v1/query` as a client sees it.
The last column is the engine again with 1,000 changed rows that only the log has yet.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from socket import create_server
from typing import Any

import duckdb
import httpx
import msgspec
import pyarrow as pa
import uvicorn
import uvloop
from litestar import Litestar
from rich.console import Console
from rich.table import Table

from mainstem.app.query import CatalogLake, open_queries
from mainstem.catalog import Catalog, SqliteStore
from mainstem.doors.catalog.door import CatalogDoor, catalog_router
from mainstem.log import Log, LogSettings
from mainstem.model import Admitted, Batch, Encoding, SourceId, TableName
from mainstem.query.binding import Freshness
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.sandbox.session import extension_file

FILES = 8
PENDING = 1_000
QUERIES = {
    "count": "SELECT count(*) FROM {t}",
    "point by key": "SELECT * FROM {t} WHERE _key = 'k{middle}'",
    "range, 1 %": "SELECT sum(amount) FROM {t} WHERE id BETWEEN {middle} AND {middle} + {one_percent}",
    "group by": "SELECT city, count(*), avg(amount) FROM {t} GROUP BY city",
    "top 10": "SELECT id, amount FROM {t} ORDER BY amount DESC LIMIT 10",
    "10,000 rows out": "SELECT id, city, amount FROM {t} LIMIT 10000",
}


def table_of(rows: int) -> pa.Table:
    """Rows of about 60 bytes, sorted by id, with the columns of a state table."""
    sql = f"""SELECT range AS id, 'city ' || (range * 7919) % 100 AS city, ((range * 104729) % 100003) / 7.0 AS amount,
        'k' || range AS _key, range AS _hlc, 's' AS _source, range AS _position, CAST(NULL AS VARCHAR) AS _clocks
        FROM range({rows})"""
    return duckdb.connect().execute(sql).to_arrow_table()


class Bench:
    """A server with one table per size, and four ways to query it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = Catalog(store=SqliteStore(folder / "catalog.db"), warehouse=str(folder / "warehouse"))
        self._socket = create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.ready = threading.Event()
        self.over = threading.Event()
        self.engine: QueryEngine
        self.loop: asyncio.AbstractEventLoop
        self.log: Log
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self._thread.start()
        self.ready.wait()

    async def _serve(self) -> None:
        async with self._log() as log:
            settings = EngineSettings(folder=f"{self.folder}/warehouse/")
            queries = open_queries(CatalogLake(self.catalog), settings, log=log)
            self.engine, self.loop, self.log = queries.engine, asyncio.get_running_loop(), log
            app = Litestar([catalog_router(CatalogDoor(self.catalog)), queries.router])
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
            self.ready.set()
            serving = asyncio.ensure_future(server.serve(sockets=[self._socket]))
            await asyncio.to_thread(self.over.wait)
            server.should_exit = True
            await serving
            await queries.engine.close()

    @asynccontextmanager
    async def _log(self) -> Any:
        log = await Log.open(LogSettings(folder=self.folder / "log"))
        try:
            yield log
        finally:
            await log.close()

    def close(self) -> None:
        self.over.set()
        self._thread.join()
        self.catalog.close()

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def load(self, rows: int) -> list[str]:
        from pyiceberg.catalog.rest import RestCatalog

        lake = RestCatalog("lake", uri=self.url, warehouse="lake")
        lake.create_namespace_if_not_exists("default")
        data = table_of(rows)
        table = lake.create_table(f"default.t{rows}", data.schema)
        for part in range(FILES):
            table.append(data.slice(part * rows // FILES, rows // FILES))
        return [task.file.file_path for task in table.scan().plan_files()]

    def run(self, sql: str, freshness: Freshness) -> None:
        self.on_loop(self.query(sql, freshness))

    async def leave_pending(self, rows: int) -> None:
        """Change some rows in the log alone, as if the pipeline had not come to them yet."""
        keys = range(0, rows, max(1, rows // PENDING))
        table = f"t{rows}"
        events = [{"table": table, "operation": "UPDATE", "rowId": f"k{key}", "after": {"amount": 1.5}} for key in keys]
        payload = msgspec.json.encode(events)
        await self.log.append(
            Admitted(
                Batch(
                    source=SourceId("bench"),
                    sequence=rows,
                    count=len(events),
                    encoding=Encoding.CDC_JSON,
                    payload=payload,
                    fingerprint=zlib.crc32(payload),
                    tables=frozenset([TableName("default", table)]),
                )
            )
        )

    async def query(self, sql: str, freshness: Freshness = Freshness.SNAPSHOT) -> int:
        async with self.engine.open(QueryRequest(sql=sql, freshness=freshness)) as running:
            return sum([batch.num_rows async for batch in running.batches()])


def median_ms(repeat: int, call: Callable[[], Any]) -> float:
    call()
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def attached(url: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        connection.execute(f"LOAD '{extension_file(name)}'")
    connection.execute("SET threads = 2")
    connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
    return connection


def arrow(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    return connection.execute(sql).to_arrow_table()


def over_http(client: httpx.Client, url: str, sql: str) -> None:
    client.post(f"{url}/v1/query", json={"sql": sql}).raise_for_status()


def measure(bench: Bench, rows: int, repeat: int, table: Table) -> None:
    files = bench.load(rows)
    plain = duckdb.connect()
    plain.execute("SET threads = 2")
    source = f"read_parquet({[file.removeprefix('file://') for file in files]!r})"
    through_catalog = attached(bench.url)
    bench.on_loop(bench.leave_pending(rows))
    client = httpx.Client(timeout=120)
    for name, template in QUERIES.items():
        values = {"middle": rows // 2, "one_percent": rows // 100}
        floor_sql = template.format(t=source, **values)
        sql = template.format(t=f"lake.default.t{rows}", **values)

        figures = (
            median_ms(repeat, partial(arrow, plain, floor_sql)),
            median_ms(repeat, partial(arrow, through_catalog, sql)),
            median_ms(repeat, partial(bench.run, sql, Freshness.SNAPSHOT)),
            median_ms(repeat, partial(over_http, client, bench.url, sql)),
            median_ms(repeat, partial(bench.run, sql, Freshness.LATEST)),
        )
        table.add_row(f"{rows:,}", name, *(f"{figure:.1f}" for figure in figures))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, action="append")
    arguments.add_argument("--repeat", type=int, default=7)
    asked = arguments.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        table = Table(title=f"Query latency, milliseconds, median of {asked.repeat}")
        for heading in ("rows", "query", "plain DuckDB", "DuckDB + catalog", "engine", "HTTP, JSON", "engine, latest"):
            table.add_column(heading, justify="left" if heading == "query" else "right")
        for rows in asked.rows or [10_000, 1_000_000]:
            measure(bench, rows, asked.repeat, table)
        bench.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
