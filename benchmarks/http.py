"""`make bench ARGS=http`: rows over plain HTTP, acknowledged when they are durable; Arrow, and JSON lines beside it."""

import asyncio
import time
from pathlib import Path

import httpx
import pyarrow as pa

from benchmarks.report import Figure, Report
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.wire.rows_arrow import stream_of

SECTION = "rows over HTTP"
BATCH_ROWS = 50_000
CLIENTS = 2
BAR_ROWS_PER_S = 200_000


def batches(count: int) -> list[bytes]:
    """Streams of rows as an application has them: a key, texts, numbers, an instant."""
    made = []
    for number in range(count):
        first = number * BATCH_ROWS
        ids = pa.array(range(first, first + BATCH_ROWS))
        table = pa.table(
            {
                "id": ids,
                "customer": pa.array([f"customer-{each % 5_000}" for each in range(BATCH_ROWS)]),
                "amount": pa.array([each * 0.25 for each in range(BATCH_ROWS)]),
                "quantity": pa.array([each % 9 for each in range(BATCH_ROWS)], pa.int32()),
                "at": pa.array([1_767_225_600_000_000 + each for each in range(BATCH_ROWS)], pa.timestamp("us", "UTC")),
            }
        )
        made.append(stream_of(table))
    return made


async def send(url: str, bodies: list[bytes], content_type: str) -> float:
    """Seconds until every body is acknowledged, from two clients at once."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def some(mine: list[bytes]) -> None:
            for body in mine:
                headers = {"content-type": content_type}
                answer = await client.post("/v1/ingest/bench/orders?key=id", content=body, headers=headers)
                assert answer.status_code == 200, answer.text

        began_s = time.perf_counter()
        await asyncio.gather(*(some(bodies[number::CLIENTS]) for number in range(CLIENTS)))
        return time.perf_counter() - began_s


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Measure both; the sealers work beside the acks, Spark does not run."""
    count = 10 if small else 40
    bodies = batches(count)
    lines = [b"".join(b'{"id":%d,"customer":"c","amount":1.5}\n' % each for each in range(10_000))] * (count // 2)
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), log=LogConfig())
    async with ServerProcess(folder / "data", config) as server:
        await send(server.url, bodies[:2], "application/vnd.apache.arrow.stream")
        took_s = await send(server.url, bodies, "application/vnd.apache.arrow.stream")
        lines_s = await send(server.url, lines, "application/x-ndjson")
    rows = count * BATCH_ROWS
    report.add(
        SECTION,
        Figure(
            f"Arrow over HTTP, {rows:,} rows of five columns, acknowledged",
            rows / took_s,
            "rows/s",
            bar=f"at least {BAR_ROWS_PER_S:,}",
            met=rows / took_s >= BAR_ROWS_PER_S,
        ),
    )
    report.add(SECTION, Figure("JSON lines over HTTP, acknowledged", len(lines) * 10_000 / lines_s, "rows/s"))
