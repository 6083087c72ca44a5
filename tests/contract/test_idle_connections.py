"""Idle connections are cheap: some hundreds here, 5,000 in the benchmark of the same name."""

import asyncio
from pathlib import Path

from benchmarks.idle import CONFIG, KIB_MAX, hold
from mainstem.app.process import ServerProcess
from tests.harness.cdcwire import Wire


async def test_memory_per_idle_connection(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path, CONFIG) as server:
        each = await hold(int(server.url.rsplit(":", 1)[1]), server.pid, connections=600, seconds=0.5)
        assert each < KIB_MAX * 1024
        async with Wire(server.ws_url) as wire:
            assert (await wire.greet("after"))["status"] == "ok"
        # None of those that went without a word stays.
        async with asyncio.timeout(60):
            while (await server.status())["gateway"]["connections"]:
                await asyncio.sleep(0.05)
