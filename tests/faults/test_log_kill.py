"""Real processes, really killed."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from mainstem.log import Log
from mainstem.log.seal.children import SealerProcesses
from mainstem.model.errors import Overloaded
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, quiet

APPEND = """
import asyncio, itertools, os, sys
from pathlib import Path
from mainstem.log import Log, LogSettings
from tests.unit.log.log_fixtures import Diary, batch, event

async def main() -> None:
    settings = LogSettings(folder=Path(sys.argv[1]), seal_changes=40, file_changes=15, companion_interval_s=0.01)
    log = await Log.open(settings, companion=Diary())
    print("open", log.durable, flush=True)
    sequences = itertools.count(int(sys.argv[2]))

    async def appender() -> None:
        for sequence in sequences:
            count = sequence % 3 + 1
            placed = await log.append(batch(sequence, [event(sequence * 10 + i) for i in range(count)]))
            print("ack", sequence, placed.first, count, flush=True)

    await asyncio.gather(*[appender() for _ in range(4)])

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_acknowledged_batch_is_there_after_kills(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: dict[int, tuple[int, int]] = {}
    for life in range(3):
        acks_wanted = chance.randint(1, 400)
        with subprocess.Popen(
            [sys.executable, "-c", APPEND, str(tmp_path), str(life * 1_000_000)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("open")
            for _ in range(acks_wanted):
                _, sequence, first, count = child.stdout.readline().split()
                acknowledged[int(sequence)] = (int(first), int(count))
            child.kill()
            for line in child.stdout:
                if line.endswith("\n"):
                    _, sequence, first, count = line.split()
                    acknowledged[int(sequence)] = (int(first), int(count))
    diary = Diary()
    log = await Log.open(quiet(tmp_path), companion=diary, sealer=InlineSealer())
    seen = {sequence: (first, count) for _, sequence, first, count in diary.seen}
    assert len(seen) == len(diary.seen)
    assert acknowledged.items() <= seen.items()
    await log.flush()
    positions: list[int] = []
    for segment in log.segments():
        positions += pq.read_table(segment.path, columns=["position"])["position"].to_pylist()
    assert positions == list(range(1, log.durable + 1))
    await log.close()


@pytest.mark.parametrize("whole", [False, True], ids=["a fork", "what it is a fork of"])
async def test_the_sealer_dies_and_is_started_again(tmp_path: Path, whole: bool) -> None:
    sealer = SealerProcesses(1)
    log = await Log.open(quiet(tmp_path), sealer=sealer)
    await log.append(batch(1))
    await log.flush()
    (first_pid,) = sealer.pids
    lane = psutil.Process(first_pid)
    os.kill(lane.ppid() if whole else first_pid, signal.SIGKILL)
    psutil.wait_procs([lane], timeout=60)
    await log.append(batch(2))
    try:
        await log.flush()
    except Overloaded as error:
        assert "sealer died" in str(error)
        await log.flush()
    (second_pid,) = sealer.pids
    assert second_pid != first_pid
    assert [(one.first, one.last) for one in log.segments()] == [(1, 1), (2, 2)]
    assert psutil.Process(second_pid).nice() > psutil.Process().nice()
    family = [psutil.Process(second_pid), psutil.Process(psutil.Process(second_pid).ppid())]
    await log.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def test_the_sealer_does_not_outlive_a_killed_gateway(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", APPEND, str(tmp_path), "0"], stdout=subprocess.PIPE, text=True
    ) as gateway:
        assert gateway.stdout is not None
        deadline_s = time.monotonic() + 60
        children: list[psutil.Process] = []
        while len(children) < 2 and time.monotonic() < deadline_s:
            gateway.stdout.readline()
            children = psutil.Process(gateway.pid).children(recursive=True)
        assert all("mainstem.log.seal.sealer" in child.cmdline() for child in children) and children
        gateway.kill()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert gone and not alive


async def test_a_killed_sealer_leaves_the_files_or_the_segment(tmp_path: Path) -> None:
    """Killed at random moments of its work; in the end everything is sealed once."""
    chance = random.Random(7)
    sealer = SealerProcesses(1)
    log = await Log.open(quiet(tmp_path, file_changes=50), sealer=sealer)
    for n in range(100):
        log.append(batch(n))
    deadline_s = time.monotonic() + 240
    kills = 0
    while log.sealed < 100 and time.monotonic() < deadline_s:
        flush = asyncio.ensure_future(log.flush())
        if kills < 3:
            async with asyncio.timeout(20):
                await asyncio.wait([flush], timeout=chance.random() * 0.5)
            for pid in sealer.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        await asyncio.gather(flush, return_exceptions=True)
    assert [row for one in log.segments() for row in range(one.first, one.last + 1)] == list(range(1, 101))
    await log.close()
    # What a killed sealer left half-written is gone with the next opening.
    log = await Log.open(quiet(tmp_path), sealer=InlineSealer())
    assert not any((tmp_path / ".scratch").iterdir())
    await log.close()
