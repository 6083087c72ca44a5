"""Reads a partition by offset, however old: from memory at the tail, from the log behind it, and from its table beyond.

Which of them has an offset is decided on the event loop in one step; what is not in memory is read in a thread, few
at a time, so that consumers far behind wait for each other and not the ones at the tail for them.
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from mainstem.feeds.topics.partition import LEADER_EPOCH, Partition
from mainstem.feeds.topics.sealed import SealedRead, SealedReaders, TableRows
from mainstem.feeds.topics.segments import SegmentFile
from mainstem.feeds.topics.views import View
from mainstem.feeds.transactions.section import TransactionsSection
from mainstem.log import Log, SegmentInfo
from mainstem.log.frames import Frame
from mainstem.log.kept import Place
from mainstem.model.batch import Encoding
from mainstem.model.errors import Conflict, Corrupt, Invalid
from mainstem.model.names import TableName
from mainstem.wire.kafka import payload as payloads
from mainstem.wire.kafka.fetched import Aborted
from mainstem.wire.kafka.markers import build_marker
from mainstem.wire.kafka.opening import Record, open_batch, open_dense
from mainstem.wire.kafka.records import BadBatch, BatchHead, assign, is_whole, read_head

# Reads away from memory at the same time.
COLD_READS_MAX = 4
# Reads of batches as the log's files have them.
FRAME_READS_MAX = 2
_TRIES_MAX = 5
# How much is looked through at once for a time.
TIME_PAGE_BYTES = 1024 * 1024


class Stamped(NamedTuple):
    """A record's offset and time."""

    offset: int
    timestamp: int


class Rows(Protocol):
    """The table of a topic. The app provides it; this package knows no engine. Blocks: called in a thread."""

    def of(self, table: TableName, partition: int, offset: int) -> TableRows | None:
        """Where the records of a partition from an offset on are; None where there is no table."""


class NoRows:
    """Where there are no tables."""

    def of(self, table: TableName, partition: int, offset: int) -> TableRows | None:
        return None


class Reader:
    """See above. Belongs to the event loop."""

    def __init__(self, log: Log, rows: Rows, transactions: TransactionsSection | None = None) -> None:
        self._log = log
        self._rows = rows
        self._transactions = transactions or TransactionsSection()
        self._readers = SealedReaders()
        self._places = asyncio.Semaphore(COLD_READS_MAX)
        # A pool of its own: readers of segments and tables may hold all the other threads for long.
        self._threads = ThreadPoolExecutor(FRAME_READS_MAX, "kafka-frames")

    async def read(self, partition: Partition | View, offset: int, bytes_max: int, *, before: int) -> list[bytes]:
        """Whole batches, the first of which holds the offset (or the next one that there is); at least one, then up to
        a size, none that begins at `before` or behind it. Empty where there is none."""
        if isinstance(partition, View):
            async with self._places:
                return [await partition.read(offset, before)]
        held = partition.tail.read(offset, bytes_max, before=before)
        if held is not None:
            return [each.batch for each in held]
        if places := partition.places.find(offset, bytes_max, before=before):
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(self._threads, self._at_places, places)
            except FileNotFoundError:
                # The file was sealed long ago and let go of since: segments and tables have it.
                pass
        key = (partition.topic.id, partition.index)
        # Records of transactions become rows when those commit: until then, and until that is sealed, they are here.
        undecided = [each for each in self._transactions.held_from(key, offset) if each.base < before]
        if undecided and undecided[0].base <= offset:
            return [undecided[0].bytes]
        before = min(before, undecided[0].base) if undecided else before
        async with self._places:
            found = await self._read_cold(partition, offset, bytes_max, before)
        # Nothing is left of the range: aborted records, batches that could not be opened, records without a value of a
        # compacted topic. Without an answer a consumer would ask for it for ever.
        return [found or _nothing_until(before)]

    def _at_places(self, places: Sequence[Place]) -> list[bytes]:
        """In a thread: batches as the log's files have them."""
        batches = self._log.read_places(places)
        for place, batch in zip(places, batches, strict=True):
            if not is_whole(batch):
                raise Corrupt("record batch in a file of frames. expected=its checksum got=another", place=str(place))
        return batches

    def close(self) -> None:
        """Read nothing more that is not in memory."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._readers.close()

    async def first_at(self, partition: Partition | View, timestamp: int, *, before: int) -> Stamped | None:
        """The first record before an offset whose time is the given one or later."""
        if isinstance(partition, View):
            return await self._first_change(partition, timestamp)
        state = partition.state
        if timestamp > state.max_timestamp:
            return None
        offset = max(partition.start, state.times.before(timestamp))
        while offset < before:
            batches = await self.read(partition, offset, TIME_PAGE_BYTES, before=before)
            # Opening them is all Python: not while consumers at the tail wait.
            found, end = await asyncio.to_thread(_first_in, batches, offset, timestamp)
            if found is not None or end <= offset:
                return found
            # Retention may have let go of what is to be read next.
            offset = max(end, partition.start)
        return None

    async def _first_change(self, view: View, timestamp: int) -> Stamped | None:
        """Page by page: a view is not sorted by time."""
        offset = view.start
        while offset < view.end:
            async with self._places:
                batch = await view.read(offset, view.end)
            for record in open_batch(batch)[1]:
                if record.timestamp >= timestamp:
                    return Stamped(record.offset, record.timestamp)
            offset = read_head(batch).next_offset
        return None

    async def newest(self, partition: Partition | View) -> Stamped | None:
        """The record with the latest time."""
        state = partition.state
        if state.max_timestamp_offset < partition.start:
            return None
        return Stamped(state.max_timestamp_offset, state.max_timestamp)

    def aborted(self, partition: Partition | View, offset: int, batches: Sequence[bytes]) -> list[Aborted]:
        """The transactions that were aborted and have records among these."""
        if isinstance(partition, View) or not batches:
            return []
        end, at, last = offset, 0, batches[-1]
        while at < len(last):
            head = read_head(last, at)
            end, at = head.next_offset, at + head.size
        found = self._transactions.aborted((partition.topic.id, partition.index), offset, end)
        return [Aborted(each.producer_id, each.first) for each in found]

    async def _read_cold(self, partition: Partition, offset: int, bytes_max: int, before: int) -> bytes:
        table = _table_of(partition)
        for _ in range(_TRIES_MAX):
            sealed = self._log.sealed
            segments = _files_of(self._log.segments(), table)
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(
                    self._readers.threads, self._sealed, partition, segments, offset, bytes_max, before
                )
            except FileNotFoundError:
                # A segment was dropped meanwhile: what it held is in the table by now.
                continue
            if not found:
                if self._log.sealed != sealed:
                    # What was not sealed when we looked may be so now.
                    continue
                tail = self._log.tail(sealed)
                found = await asyncio.to_thread(_of_frames, tail, partition, offset, bytes_max, before)
            if found:
                return found
            # It came into memory, or was let go of by retention.
            held = partition.tail.read(offset, bytes_max, before=before)
            if held is not None:
                return b"".join([each.batch for each in held])
            if offset < partition.start:
                raise Invalid(f"offset. expected=at least {partition.start} got={offset}", reason="offset_out_of_range")
            return b""
        raise Conflict("segments were dropped again and again while they were read: ask again")

    def _sealed(
        self, partition: Partition, segments: Sequence[SegmentFile], offset: int, bytes_max: int, before: int
    ) -> bytes:
        """In a thread: from segments and the table, by a process of its own."""
        table = _table_of(partition)
        job = SealedRead(
            table,
            partition.index,
            offset,
            before,
            bytes_max,
            segments,
            is_sorted=not self._transactions.knows((partition.topic.id, partition.index)),
            rows=self._rows.of(table, partition.index, offset),
        )
        return self._readers.read(job)


def _nothing_until(before: int) -> bytes:
    """Where a range has no records (aborted ones, markers, dead letters), readers are shown its last offset as a
    control record, which they skip: so they go on behind it instead of asking for ever."""
    return assign(build_marker(-1, -1, 0, commits=True), before - 1, LEADER_EPOCH)


def _files_of(segments: Iterable[SegmentInfo], table: TableName) -> list[SegmentFile]:
    return [SegmentFile(str(each.path), each.tables[table].kind) for each in segments if table in each.tables]


def _batches(frames: Iterable[Frame], partition: Partition) -> Iterator[tuple[BatchHead, memoryview]]:
    for frame in frames:
        if frame.header.encoding is Encoding.KAFKA_RECORDS:
            records = payloads.unpack(frame.payload, f"position {frame.header.first}")
            if records.topic_id == partition.topic.id and records.partition == partition.index:
                head = read_head(records.batch)
                # Behind a marker come the records that it commits, which had their own frames before.
                yield head, records.batch[: head.size]


def _of_frames(
    frames: Generator[Frame, None, None], partition: Partition, offset: int, bytes_max: int, before: int
) -> bytes:
    found: list[memoryview] = []
    size = 0
    for head, batch in _batches(frames, partition):
        if head.base_offset >= before or (found and size + head.size > bytes_max):
            break
        if head.next_offset > offset:
            found.append(batch)
            size += head.size
    data = b"".join(found)
    # The generator has a file open: not until somebody collects it.
    frames.close()
    return data


def _first_in(batches: Iterable[bytes], start: int, timestamp: int) -> tuple[Stamped | None, int]:
    """The first record from an offset on whose time is the given one or later; and the offset behind all of them."""
    end = start
    for batch in batches:
        at = 0
        while at < len(batch):
            head = read_head(batch, at)
            if head.max_timestamp >= timestamp and not head.is_control:
                for record in _opened(memoryview(batch)[at : at + head.size], head):
                    if record.timestamp >= timestamp and record.offset >= start:
                        return Stamped(record.offset, record.timestamp), end
            end, at = head.next_offset, at + head.size
    return None, end


def _opened(batch: memoryview, head: BatchHead) -> Sequence[Record]:
    """The records of a batch; none where it was let in by its checksum and cannot be opened: it is a dead letter."""
    is_dense = head.records == head.last_offset_delta + 1
    try:
        return (open_dense if is_dense else open_batch)(batch)[1]
    except BadBatch:
        return ()


def _table_of(partition: Partition) -> TableName:
    namespace, _, table = partition.topic.table.rpartition(".")
    return TableName(namespace, table)


class Unsealed(NamedTuple):
    """A batch that is in no segment yet. `batch` is None where there was no room for it."""

    topic_id: bytes
    partition: int
    head: BatchHead
    place: Place
    batch: bytes | None


def tail_batches(frames: Iterable[tuple[Frame, Place]], bytes_max: int) -> list[Unsealed]:
    """The record batches of some frames, in order, the newest ones with their bytes, up to a size. Blocks."""
    found: list[Unsealed] = []
    size = first = 0
    for frame, (file, start, length) in frames:
        if frame.header.encoding is Encoding.KAFKA_RECORDS:
            records = payloads.unpack(frame.payload, f"position {frame.header.first}")
            head = read_head(records.batch)
            place = Place(file, start + length - len(records.batch), head.size)
            batch = bytes(records.batch[: head.size])
            found.append(Unsealed(records.topic_id, records.partition, head, place, batch))
            size += len(batch)
            while size > bytes_max and first < len(found) - 1:
                size -= found[first].head.size
                found[first] = found[first]._replace(batch=None)
                first += 1
    return found
