"""What only segments and tables have is read in processes of their own, and nobody else waits for that."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from mainstem.feeds.topics.reading import NoRows, Reader
from mainstem.feeds.topics.sealed import LANES, SealedRead, SealedReaders, TableRows
from mainstem.model.errors import Corrupt, Overloaded
from mainstem.model.names import TableName
from mainstem.wire.kafka.opening import Record
from tests.harness.kafka import batch_of
from tests.unit.feeds.test_topics import _until_taken, _values, new_partition, opened

TABLE = TableName("kafka", "orders")


class Rows:
    """A table of two records, in whichever process it is asked."""

    def records(self, offset: int, before: int, bytes_max: int) -> list[Record]:
        if offset == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if offset == 14:
            raise FileNotFoundError("segment 14")
        if offset == 15:
            raise Corrupt("checksum", place="file 15")
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
