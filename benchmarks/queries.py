"""Query latency by size: both engines through `POST /v1/query`, beside plain DuckDB on the same Parquet files."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa

from benchmarks.endtoend import until_running
from benchmarks.report import Figure, Report
from mainstem.app.config import Config, ServerConfig
from mainstem.app.process import ServerProcess

SECTION = "queries"
REPEATS = 5
FILES = 8
# What a query of milliseconds may cost more than plain DuckDB, with its catalog, checks and isolation.
OVERHEAD_MS_MAX = 100.0
QUERIES = {
    "count": "SELECT count(*) FROM {t}",
    "point by key": "SELECT id, city FROM {t} WHERE id = {middle}",
    "group by": "SELECT city, count(*) AS n, avg(amount) AS mean FROM {t} GROUP BY city ORDER BY city",
    "top 10": "SELECT id, amount FROM {t} ORDER BY amount DESC, id LIMIT 10",
}


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Two sizes; every query three ways, each answer checked against the others."""
    async with ServerProcess(folder, Config(server=ServerConfig(port=0))) as server:
        await until_running(server)
        with httpx.Client(base_url=server.url, timeout=600) as http:
            for rows in (100_000, 1_000_000) if small else (1_000_000, 20_000_000):
                _measure(report, http, server.url, rows)


def _measure(report: Report, http: httpx.Client, url: str, rows: int) -> None:
    files = _load(url, rows)
    plain = duckdb.connect(config={"threads": "2"})
    source = f"read_parquet({files!r})"
    for name, template in QUERIES.items():
        sql = template.format(t=f"bench.t{rows}", middle=rows // 2)
        floor_sql = template.format(t=source, middle=rows // 2)
        timed = _timed(
            lambda sql=floor_sql: plain.execute(sql).fetchall(),  # type: ignore[misc]
            lambda sql=sql: _ask(http, sql, "duckdb"),  # type: ignore[misc]
        )
        # After the others: its compilers go on for a while after the answer.
        timed += _timed(lambda sql=sql: _ask(http, sql, "spark"))  # type: ignore[misc]
        floor_ms, expected = timed[0]
        for engine, (taken_ms, found) in zip(("duckdb", "spark"), timed[1:], strict=True):
            assert [tuple(row) for row in found] == [_rounded(row) for row in expected], (name, engine)
            is_ours = engine == "duckdb"
            report.add(
                SECTION,
                Figure(
                    f"{name}, {rows:,} rows, {engine}",
                    taken_ms,
                    "ms",
                    floor_ms,
                    "plain DuckDB",
                    f"<= plain + {OVERHEAD_MS_MAX:.0f}" if is_ours else None,
                    taken_ms <= floor_ms + OVERHEAD_MS_MAX if is_ours else None,
                ),
            )


def _load(url: str, rows: int) -> list[str]:
    from pyiceberg.catalog.rest import RestCatalog

    lake = RestCatalog("lake", uri=url, warehouse="lake")
    lake.create_namespace_if_not_exists("bench")
    table = None
    for part in range(FILES):
        data = _rows(part * rows // FILES, (part + 1) * rows // FILES)
        table = table or lake.create_table(f"bench.t{rows}", data.schema)
        table.append(data)
    assert table is not None
    return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]


def _rows(first: int, end: int) -> pa.Table:
    """Whole amounts, so that every engine sums and divides to the same double."""
    sql = f"""SELECT range AS id, 'city ' || (range * 7919) % 100 AS city,
        CAST((range * 104729) % 1000003 AS DOUBLE) AS amount FROM range({first}, {end})"""
    return duckdb.connect().execute(sql).to_arrow_table()


def _ask(http: httpx.Client, sql: str, engine: str) -> list[Any]:
    answer = http.post("/v1/query", json={"sql": sql, "engine": engine, "timeoutMs": 300_000}).raise_for_status()
    rows: list[Any] = answer.json()["rows"]
    return [_rounded(row) for row in rows]


def _rounded(row: Any) -> tuple[Any, ...]:
    # Sums are added up in another order by each engine.
    return tuple(round(value, 6) if isinstance(value, float) else value for value in row)


def _timed(*calls: Callable[[], list[Any]]) -> list[tuple[float, list[Any]]]:
    """The median of each and what it found. They take turns: whatever else the machine does meets all of them."""
    found = [call() for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, times in zip(calls, taken, strict=True):
            began_s = time.perf_counter()
            call()
            times.append((time.perf_counter() - began_s) * 1000)
    return [(statistics.median(times), rows) for times, rows in zip(taken, found, strict=True)]
