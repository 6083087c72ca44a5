"""Appends to the log, acknowledged when durable, beside the bare write + fdatasync of the same bytes.

Both run in short turns, one after the other, so that a noisy machine is noisy for both; the ratio is the median over
the turns. `python -m benchmarks.log_append [turns]`.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

from mainstem.log import Log, LogSettings
from mainstem.model.batch import Admitted, Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.names import TableName
from mainstem.model.position import LogId

PAYLOAD = os.urandom(110 * 1024)
CHANGES = 500
APPENDERS = 8
BATCHES = 240


class IdleSealer:
    """Nothing is sealed here: this measures the way to the disk."""

    lanes = 1

    async def start(self, lock_fd: int) -> None:
        pass

    async def seal(self, files: list[Path], scratch: Path, *, more: bool, log: LogId) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def bare(folder: Path) -> float:
    """Bytes per second where the same bytes are written and synced in the same groups, and nothing else is done."""
    fd = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
    try:
        started_s = time.perf_counter()
        for _ in range(BATCHES // APPENDERS):
            os.writev(fd, [PAYLOAD] * APPENDERS)
            os.fdatasync(fd)
        return BATCHES * len(PAYLOAD) / (time.perf_counter() - started_s)
    finally:
        os.close(fd)


async def appended(log: Log, admitted: Admitted) -> float:
    """Bytes per second through the log, each appender waiting for its ack before the next batch."""

    async def appender() -> None:
        for _ in range(BATCHES // APPENDERS):
            await log.append(admitted)

    started_s = time.perf_counter()
    await asyncio.gather(*[appender() for _ in range(APPENDERS)])
    return BATCHES * len(PAYLOAD) / (time.perf_counter() - started_s)


async def main(turns: int) -> None:
    """Print one line."""
    batch = Batch(
        source=SourceId("bench"),
        sequence=1,
        count=CHANGES,
        encoding=Encoding.CDC_JSON,
        payload=PAYLOAD,
        fingerprint=zlib.crc32(PAYLOAD),
        tables=frozenset([TableName("default", "orders")]),
    )
    never = 10**12
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        settings = LogSettings(
            folder=folder / "log",
            seal_changes=never,
            seal_bytes=never,
            seal_interval_s=never,
            seal_age_s=never,
            file_bytes=never,
            file_changes=never,
            unsealed_bytes_max=never,
        )
        log = await Log.open(settings, sealer=IdleSealer())
        pairs = [(bare(folder), await appended(log, Admitted(batch))) for _ in range(turns)]
        await log.close()
    floor, ours = (statistics.median(column) / 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for theirs, mine in pairs)
    print(f"bare {floor:.0f} MB/s, log {ours:.0f} MB/s, ratio {ratio:.2f} (median of {turns} turns)")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
