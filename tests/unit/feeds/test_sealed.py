"""What only segments and tables have is read in processes of their own, and nobody else waits for that."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from mainstem.feeds.topics.reading import NoRows, Reader, _files_of
from mainstem.feeds.topics.sealed import LANES, SealedRead, SealedReaders, TableRows
from mainstem.feeds.topics.segments import SegmentRecords
from mainstem.model.errors import Corrupt, Overloaded
from mainstem.model.names import TableName
from mainstem.wire.kafka.opening import Record
from tests.harness.kafka import batch_of
from tests.unit.feeds.test_topics import _until_taken, _values, new_partition, opened

TABLE = TableName("kafka", "orders")
# Processor time of one read of the table below.
WORK_S = 0.02


class Rows:
    """A table of two records, in whichever process it is asked."""

    def records(self, offset: int, before: int, bytes_max: int) -> list[Record]:
        if offset == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if offset == 14:
            raise FileNotFoundError("segment 14")
        if offset == 15:
            raise Corrupt("checksum", place="file 15")
        if offset == 16:
            until_s = time.process_time() + WORK_S
            while time.process_time() < until_s:
                pass
        return [Record(offset, 1, None, b"%d" % os.getpid())]


class Stuck(NoRows):
    """A table whose storage does not answer until it is told to."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def of(self, table: TableName, partition: int, offset: int) -> TableRows | None:
        self.asked.release()
        self.may_go_on.wait(30)
        return None


def _job(offset: int) -> SealedRead:
    return SealedRead(TABLE, 0, offset, 100, 1 << 20, (), is_sorted=True, rows=Rows())


def _read(readers: SealedReaders, offset: int) -> bytes:
    return readers.threads.submit(readers.read, _job(offset)).result(120)


@pytest.fixture(autouse=True)
def known_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process must know the table above."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parents[3]}")


def test_a_process_reads_ends_and_is_followed_by_another() -> None:
    readers = SealedReaders(1)
    try:
        (first,) = _values(_read(readers, 0))
        assert _values(_read(readers, 1)) == [first]
        assert int(first or b"") != os.getpid()
        # As an idle one does, or one that the system took the memory from.
        os.kill(int(first or b""), signal.SIGKILL)
        (second,) = _values(_read(readers, 2))
        assert second != first
    finally:
        readers.close()


def test_a_process_with_much_to_read_leaves_its_processor_to_others() -> None:
    share = 0.25
    readers = SealedReaders(1, share)
    try:
        (pid,) = _values(_read(readers, 0))
        process = psutil.Process(int(pid or b""))

        def cpu_s() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        began_s, before_s = time.monotonic(), cpu_s()
        for _ in range(20):
            _read(readers, 16)
        worked_s, took_s = cpu_s() - before_s, time.monotonic() - began_s
        assert worked_s >= 20 * WORK_S * 0.9
        # The last read is rested for behind its answer. A busy machine only makes it take longer.
        assert worked_s <= share * took_s + 3 * WORK_S
    finally:
        readers.close()


async def test_a_long_read_of_a_segment_rests_between_its_steps(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        values = [b"%d" % number for number in range(2_000)]
        await _until_taken(partition, batch_of(values))
        log = topics.log  # type: ignore[attr-defined]
        await log.flush()
        rests: list[None] = []
        known = SegmentRecords(lambda: rests.append(None))
        files = _files_of(log.segments(), TABLE)
        found = known.records(files, TABLE, 0, 0, 2_000, 1 << 20)
        assert [record.value for record in found] == values
        # At each row group that was searched, and every 256 records.
        assert len(rests) == sum(pq.ParquetFile(file.path).num_row_groups for file in files) + 8


def test_a_read_that_fails_is_refused_by_name() -> None:
    readers = SealedReaders(1)
    try:
        with pytest.raises(Overloaded, match="died twice"):
            _read(readers, 13)
        with pytest.raises(FileNotFoundError, match="segment 14"):
            _read(readers, 14)
        with pytest.raises(Overloaded, match="checksum"):
            _read(readers, 15)
    finally:
        readers.close()


async def test_consumers_at_the_tail_do_not_wait_for_those_far_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=200, kept_bytes=1 << 20) as topics:
        log = topics.log  # type: ignore[attr-defined]
        partition = await new_partition(topics)
        rows = Stuck()
        reader = Reader(log, rows)
        # Two of which no place is known, two in the log's files, one in memory.
        place_of, topics.place_of = topics.place_of, lambda: None
        for number in range(5):
            await _until_taken(partition, batch_of([b"%d" % number * 100]))
            if number == 1:
                topics.place_of = place_of
        behind = [asyncio.create_task(reader.read(partition, number % 2, 1 << 20, before=2)) for number in range(20)]
        for _ in range(LANES):
            assert await asyncio.to_thread(rows.asked.acquire, timeout=30)
        # Everybody who reads tables is stuck now.
        async with asyncio.timeout(10):
            for offset in (4, 3, 2):
                found = await reader.read(partition, offset, 1, before=5)
                assert _values(b"".join(found)) == [b"%d" % offset * 100]
        assert not any(each.done() for each in behind)
        rows.may_go_on.set()
        # What no segment and no table has is in the files that are not sealed.
        assert _values(b"".join(await behind[0])) == [b"0" * 100, b"1" * 100]
        await asyncio.gather(*behind)
        reader.close()
