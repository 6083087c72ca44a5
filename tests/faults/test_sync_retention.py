"""What the log has dropped is still there for whoever has not pulled, and still counts once."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
COUNT = 250
COUNT_SMALL = 70
WAIT_S_MAX = 120.0


def delta(number: int) -> sync.RowDelta:
    columns = (sync.ColumnDelta("n", b"%d.50" % number), sync.ColumnDelta("text", b'{"a": [1]}'))
    hlc = pack(SystemClock().now_ms(), number)
    table = "left" if number % 2 else "right"
    name = sync.delta_id(table=table, row_id=f"r{number}", columns=columns, hlc=hlc, client_id="ada")
    return sync.RowDelta(
        op=sync.Op.INSERT, table=table, row_id=f"r{number}", columns=columns, hlc=hlc, client_id="ada", delta_id=name
    )


async def push(client: httpx.AsyncClient, deltas: list[sync.RowDelta]) -> None:
    body = sync.encode_push(sync.SyncPush(client_id="ada", deltas=deltas))
    answer = await client.post("/sync/kept/push", content=body)
    assert answer.status_code == 200, answer.text


async def keep_segments(client: httpx.AsyncClient, retention_ms: int | None) -> None:
    """None: as the configuration has it."""
    headers = {"content-type": "application/json"}
    answer = await client.patch("/v1/config", json={"segmentRetentionMs": retention_ms}, headers=headers)
    assert answer.status_code == 200, answer.text


async def segments_dropped(server: ServerProcess) -> None:
    began_s = time.monotonic()
    while (await server.status())["log"]["segments"]:
        assert time.monotonic() - began_s < WAIT_S_MAX, "segments are not dropped"
        await asyncio.sleep(0.2)


async def pull_all(client: httpx.AsyncClient, since: int = 0) -> list[sync.RowDelta]:
    found: list[sync.RowDelta] = []
    while True:
        answer = await client.get("/sync/kept/pull", params={"since": since, "limit": 60})
        assert answer.status_code == 200, answer.text
        page = sync.decode_response(answer.content)
        found += page.deltas
        since = page.server_hlc
        if not page.has_more:
            return found


@pytest.mark.spark
async def test_a_pull_goes_on_where_the_log_has_dropped_its_segments(live_server: ServerProcess) -> None:
    deltas = [delta(number) for number in range(COUNT_SMALL)]
    async with httpx.AsyncClient(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        await keep_segments(client, 1)
        try:
            await push(client, deltas)
            since = (await client.get("/sync/kept/pull", params={"since": 0, "limit": 100})).content
            assert (await client.post("/admin/flush/kept")).status_code == 200
            await segments_dropped(live_server)
            assert await pull_all(client) == deltas
            await push(client, deltas[20:])
            assert await pull_all(client, since=sync.decode_response(since).server_hlc) == []
        finally:
            await keep_segments(client, None)


@pytest.mark.soak
@pytest.mark.spark
async def test_nothing_is_lost_for_a_client_that_comes_late(tmp_path: Path) -> None:
    deltas = [delta(number) for number in range(COUNT)]
    log = LogConfig(flush_interval_s=1.0, segment_retention_s=0.0)
    async with (
        ServerProcess(tmp_path, Config(server=ServerConfig(port=0), log=log)) as server,
        httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=120) as client,
    ):
        for start in range(0, COUNT, 50):
            await push(client, deltas[start : start + 50])
        assert (await client.post("/admin/flush/kept")).status_code == 200
        await segments_dropped(server)
    # The index of deltas is lost as well: it is made again from the tables.
    for path in (tmp_path / "sync").glob("seen.db*"):
        path.unlink()
    quiet = Config(server=ServerConfig(port=0), log=log, pipeline=PipelineConfig(enabled=False))
    async with (
        ServerProcess(tmp_path, quiet) as server,
        httpx.AsyncClient(base_url=server.url, headers=PROTOBUF, timeout=120) as client,
    ):
        assert await pull_all(client) == deltas
        await push(client, deltas[20:120])
        newer = delta(COUNT)
        await push(client, [*deltas[200:], newer])
        assert await pull_all(client) == [*deltas, newer]
        page = sync.decode_response((await client.get("/sync/kept/pull", params={"since": 0, "limit": 100})).content)
        assert await pull_all(client, since=page.server_hlc) == [*deltas[100:], newer]
