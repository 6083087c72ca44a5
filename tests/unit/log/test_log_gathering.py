"""A group of batches waits for those who come back after the one before, where much is written and it pays."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mainstem.log.disk import OsDisk
from mainstem.log.frames import Buffer
from mainstem.log.settings import LogSettings
from mainstem.log.wal.gathering import GATHERED_BYTES_MIN, WAIT_S_MAX, Gathering
from mainstem.log.wal.outcomes import Committed, Outcome, Pending, Stopped
from mainstem.log.wal.writer import WalWriter
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.hlc import HlcClock
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import ManualClock

MUCH = GATHERED_BYTES_MIN


def test_who_writes_little_never_waits() -> None:
    gathering = Gathering()
    assert gathering.wait_s(10) == (0.0, 0)
    gathering.synced(MUCH - 2, 1, 0.002)
    assert gathering.wait_s(10) == (0.0, 0)


def test_a_group_waits_half_a_sync_for_as_much_as_was_under_way() -> None:
    gathering = Gathering()
    gathering.synced(MUCH, 20, 0.002)
    assert gathering.wait_s(10) == (0.001, MUCH + 20)
    # It is all there.
    assert gathering.wait_s(MUCH + 20) == (0.0, 0)
    # A slow disk does not make anybody wait for long.
    gathering.synced(MUCH, 0, 5.0)
    assert gathering.wait_s(10) == (WAIT_S_MAX, MUCH)


def test_waits_in_vain_become_rare_and_one_that_paid_brings_them_back() -> None:
    gathering = Gathering()

    def groups_until_a_wait() -> int:
        count = 0
        while True:
            gathering.synced(MUCH, 0, 0.002)
            if gathering.wait_s(0)[0]:
                return count
            count += 1

    assert groups_until_a_wait() == 0
    rests = []
    for _ in range(9):
        gathering.waited(in_vain=True)
        rests.append(groups_until_a_wait())
    assert rests == [4, 8, 16, 32, 64, 128, 256, 256, 256]
    gathering.waited(in_vain=False)
    assert groups_until_a_wait() == 0


class SlowDisk(OsDisk):
    """Takes a minute for each sync, by the writer's own clock, and counts the groups."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.groups: list[int] = []

    def write(self, fd: int, buffers: Sequence[Buffer]) -> None:
        super().write(fd, buffers)
        # A frame's head and its payload.
        self.groups.append(len(buffers) // 2)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._clock.advance(60.0)


async def test_the_writer_takes_those_who_come_back_into_one_group(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = SlowDisk(clock)
    settings = LogSettings(folder=tmp_path)
    settings.wal_folder.mkdir()
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[Outcome] = asyncio.Queue()

    def deliver(outcome: Outcome) -> None:
        loop.call_soon_threadsafe(heard.put_nowait, outcome)

    # It would wait for half a minute: the third batch ends that.
    writer = WalWriter(settings, disk, clock, HlcClock(), deliver, Gathering(wait_s_max=60.0))
    writer.start(LogPosition(1))
    writer.submit(_pending(1, MUCH))
    assert isinstance(await heard.get(), Committed)
    writer.submit(_pending(2, 1_000))
    writer.submit(_pending(3, MUCH))
    together = await heard.get()
    assert isinstance(together, Committed)
    assert [pending.batch.sequence for pending in together.group] == [2, 3]
    # Nobody who wants to stop waits for others.
    writer.submit(_pending(4, 1_000))
    writer.stop()
    assert isinstance(await heard.get(), Committed)
    assert isinstance(await heard.get(), Stopped)
    writer.join()
    assert disk.groups == [1, 2, 1]


def _pending(sequence: int, size: int) -> Pending:
    batch = Batch(
        source=SourceId("s"),
        sequence=sequence,
        count=1,
        encoding=Encoding.CDC_JSON,
        payload=bytes(size),
        fingerprint=0,
        tables=frozenset(),
    )
    return Pending(batch, size, None)
