"""A load without the log, beside changes of the same table, while the driver and the gateway are killed: once, merged.

Into a table in Iceberg and into one in Delta.

The end is compared row by row: a loaded row is there unless it was changed or deleted, whenever that was.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, Receipt, delete, insert, update
from tests.harness.judge import read_state

ROWS = int(os.environ.get("ROWS", "200000"))
CONFIG = Config(server=ServerConfig(port=0), log=LogConfig(flush_interval_s=0.3, flush_age_s=0.3))
PAUSE_S = 0.05


def write_files(folder: Path) -> None:
    """Four files of rows, of which the log changes some before, while and after they are loaded."""
    folder.mkdir(parents=True)
    for part in range(4):
        ids = range(part, ROWS, 4)
        columns = {"id": list(ids), "n": [each * 2 for each in ids], "text": [f"loaded {each}" for each in ids]}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")


class Changes:
    """What an application does to the table meanwhile, and what its rows are then."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        # By key: the columns that were set since, or None where the row is gone.
        self.set: dict[str, dict[str, Any] | None] = {}

    def some(self, count: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(count):
            key = str(self._rng.randrange(ROWS + 1_000))
            kind = self._rng.random()
            if kind < 0.2:
                self.set[key] = None
                found.append(delete("orders", key))
            elif kind < 0.6:
                row = {"id": int(key), "n": -1, "text": "whole"}
                self.set[key] = row
                found.append(insert("orders", key, row))
            else:
                value = self._rng.randrange(100)
                before = self.set.get(key, {})
                # A part of a row that was deleted is a row of that part; of one that is loaded, a part of that.
                self.set[key] = {**({"id": None, "text": None} if before is None else before), "n": value}
                found.append(update("orders", key, {"n": value}))
        return found

    def expected(self) -> dict[str, dict[str, Any]]:
        rows = {str(each): {"id": each, "n": each * 2, "text": f"loaded {each}"} for each in range(ROWS)}
        for key, columns in self.set.items():
            if columns is None:
                rows.pop(key, None)
            else:
                rows[key] = {**rows.get(key, {"id": None, "n": None, "text": None}), **columns}
        return rows


async def produce(server: ServerProcess, changes: Changes, stop: asyncio.Event) -> None:
    receipts: list[Receipt] = []
    async with CdcClient(server.ws_url, source="app") as client:
        while not stop.is_set():
            receipts.append(await client.send(changes.some(20)))
            await asyncio.sleep(PAUSE_S)
        for receipt in receipts:
            await receipt.durable()


async def start_load(server: ServerProcess, place: Path) -> asyncio.subprocess.Process:
    words = ["load", str(place), "--direct", "--table", "orders", "--key", "id", "--url", server.url]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainstem.app", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def until_loading(server: ServerProcess) -> int:
    """The driver's process, at a moment when it has the load in hand."""
    async with asyncio.timeout(400), httpx.AsyncClient(timeout=30) as http:
        while True:
            jobs = (await http.get(f"{server.url}/v1/compaction/jobs")).json()
            pid: int | None = (await server.status())["pipeline"]["pid"]
            if pid is not None and any(job["state"] == "running" and job["load"] for job in jobs):
                return pid
            await asyncio.sleep(0.02)


async def run(folder: Path, seed: int, kills: int, kind: str) -> None:
    rng, changes, stop = random.Random(seed), Changes(seed), asyncio.Event()
    place = folder / "load" / "orders"
    write_files(place)
    config = msgspec.structs.replace(CONFIG, tables={"default.orders": {"format": kind}})
    async with ServerProcess(folder, config) as server, asyncio.TaskGroup() as tasks:
        producing = tasks.create_task(produce(server, changes, stop))
        loading = await start_load(server, place)
        for number in range(kills):
            pid = await until_loading(server)
            await asyncio.sleep(rng.uniform(0.0, 4.0))
            if number % 2 == 0:
                server.kill()
                await server.start()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Whoever asked may be gone as well, and asks again.
            loading.kill()
            await loading.communicate()
            loading = await start_load(server, place)
        output, errors = await loading.communicate()
        assert loading.returncode == 0, errors.decode()[-2000:]
        assert f"{ROWS:,} rows" in output.decode(), output
        await asyncio.sleep(1.0)
        stop.set()
        await producing
        flushed = await server.flush(timeout_s=200)
        assert flushed["complete"], flushed
        rows = await asyncio.to_thread(read_state, server.url if kind == "iceberg" else server.data / "delta", "orders")
        expected = changes.expected()
        assert rows.keys() == expected.keys(), (len(rows), len(expected))
        wrong = [key for key, row in expected.items() if any(rows[key][name] != row[name] for name in row)]
        assert not wrong, [(key, expected[key], rows[key]) for key in wrong[:5]]
        again = await start_load(server, place)
        output, _ = await again.communicate()
        assert "are in the table already" in output.decode(), output


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
async def test_a_load_is_once_though_all_is_killed_in_the_middle(tmp_path: Path, kind: str) -> None:
    await run(tmp_path, seed=1, kills=1, kind=kind)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
async def test_a_load_is_once_whatever_is_killed(tmp_path: Path, kind: str) -> None:
    """A job is taken up again twice, whoever asks; then it is asked for anew."""
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "200")) // 20 + 1
    print(f"seed {seed}, {kills} kills")
    await run(tmp_path, seed, kills, kind)
