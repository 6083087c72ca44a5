"""One partition: gives out offsets, judges producers' sequences, holds the tail, and wakes up who waits for records.

Offsets are assigned under one order, before the append, and are part of what is appended: dense, never derived. What is
on its way is known to the partition (`Line.sent`); where the log refuses it, its offsets are given out again, so that a
failed append leaves no hole.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.admission import Appended
from mainstem.feeds.topics.config import TopicConfig
from mainstem.feeds.topics.lines import Line
from mainstem.feeds.topics.places import Places
from mainstem.feeds.topics.state import PartitionState, TopicState
from mainstem.feeds.topics.tail import Held, Tail
from mainstem.log.kept import Place
from mainstem.model.batch import Encoding
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.wire.kafka import payload as payloads
from mainstem.wire.kafka.records import BatchHead, assign, read_head

LEADER_EPOCH = 0


class Refused(Invalid):
    """A batch that Kafka's rules do not let in. `reason` says which: `out_of_order`, `duplicate_sequence`,
    `fenced_epoch`, `too_large`, `timestamp`, `null_key`."""


class Assigned(NamedTuple):
    """A batch on its way, with its first offset."""

    head: BatchHead
    base: int


class Accepted(NamedTuple):
    """A batch with its offset. `outcome` is None where it was durable before."""

    base_offset: int
    append_time_ms: int
    outcome: "asyncio.Future[Appended] | None"


class Partition:
    """See above. Belongs to the event loop."""

    def __init__(
        self,
        topic: TopicState,
        index: int,
        config: Callable[[], TopicConfig],
        line: Line[Assigned],
        tail: Tail,
        places: Places,
    ) -> None:
        self._topic = topic
        self._config = config
        self._line = line
        self._tables = frozenset((_table_of(topic.table),))
        self._next = topic.partitions[index].end
        self._waiters: set[Callable[[], None]] = set()
        self.index = index
        self.tail = tail
        self.places = places
        line.on_rewind = self._rewind
        # Past this offset nothing may be read by who reads committed records only. Transactions set it.
        self.stable: Callable[[], int] = lambda: self.end

    @property
    def topic(self) -> TopicState:
        return self._topic

    @property
    def state(self) -> PartitionState:
        """What is durable."""
        return self._topic.partitions[self.index]

    @property
    def end(self) -> int:
        """The high watermark: the offset after the last durable record."""
        return self.state.end

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        return self.state.start

    def append(self, head: BatchHead, batch: bytes, now_ms: int) -> Accepted:
        """Give a checked batch its offsets and put it in line, without waiting. Raises Refused, or as the gate does."""
        config = self._config()
        if head.size > config.max_message_bytes:
            raise Refused(
                f"record batch. expected=at most {config.max_message_bytes} bytes got={head.size}", reason="too_large"
            )
        append_time_ms = now_ms if config.log_append_time else None
        if append_time_ms is None and head.max_timestamp > now_ms + config.timestamp_after_max_ms:
            raise Refused(f"timestamp. expected=at most {now_ms} got={head.max_timestamp}", reason="timestamp")
        if head.producer_id >= 0 and not head.is_control:
            seen = self._judge(head)
            if seen is not None:
                return seen
        base = self._next
        stored = assign(batch, base, LEADER_EPOCH, append_time_ms)
        payload = payloads.pack(config.mode, self._topic.id, self._topic.table, self.index, stored)
        sent = self._line.send(
            Assigned(head, base),
            encoding=Encoding.KAFKA_RECORDS,
            payload=payload,
            count=head.records,
            # 32 bits is what admission keeps of it.
            fingerprint=base & 0xFFFF_FFFF,
            tables=self._tables,
        )
        self._next = base + head.last_offset_delta + 1
        return Accepted(base, -1 if append_time_ms is None else append_time_ms, sent.outcome)

    def end_transaction(self, marker: bytes, committed: Sequence[bytes], rows: int) -> "asyncio.Future[Appended]":
        """Put the end of a producer's transaction in line. The records that it commits go into the same frame: sealed,
        that is what becomes their rows."""
        head = read_head(marker)
        base = self._next
        stored = assign(marker, base, LEADER_EPOCH)
        mode = self._config().mode
        payload = payloads.pack(mode, self._topic.id, self._topic.table, self.index, b"".join((stored, *committed)))
        sent = self._line.send(
            Assigned(head, base),
            encoding=Encoding.KAFKA_RECORDS,
            payload=payload,
            count=max(1, rows),
            fingerprint=base & 0xFFFF_FFFF,
            tables=self._tables,
        )
        self._next = base + 1
        return sent.outcome

    def under_way(self, producer_id: int) -> tuple[int, int]:
        """The bytes and records of a producer that are in line and not durable yet."""
        heads = [sent.what.head for sent in self._line.sent if sent.what.head.producer_id == producer_id]
        return sum(head.size for head in heads), sum(head.records for head in heads)

    async def settled(self) -> None:
        """Wait until what is in line now is durable, or known not to be."""
        if self._line.sent:
            await asyncio.wait([self._line.sent[-1].outcome])

    def _judge(self, head: BatchHead) -> Accepted | None:
        """The idempotent producer's check: what is on its way counts as written. The first answer, for a retry."""
        epoch, last = -1, -1
        oldest: int | None = None
        if (known := self.state.producers.get(head.producer_id)) is not None:
            epoch = known.epoch
            for wrote in known.batches:
                if epoch == head.producer_epoch and (wrote.first_sequence, wrote.last_sequence) == _sequences(head):
                    return Accepted(wrote.base_offset, -1, None)
            if known.batches:
                oldest, last = known.batches[0].first_sequence, known.batches[-1].last_sequence
        for sent in self._line.sent:
            other = sent.what.head
            if other.producer_id == head.producer_id and not other.is_control:
                if other.producer_epoch == head.producer_epoch and _sequences(other) == _sequences(head):
                    return Accepted(sent.what.base, -1, sent.outcome)
                epoch, last = other.producer_epoch, other.last_sequence
        if head.producer_epoch < epoch:
            raise Refused(f"producer epoch. expected={epoch} got={head.producer_epoch}", reason="fenced_epoch")
        if epoch in (-1, head.producer_epoch):
            # The producer is not known: it was idle so long that it was forgotten, and goes on where it is.
            expected = head.base_sequence if last < 0 else (last + 1) & 0x7FFF_FFFF
        else:
            expected = 0
        if head.base_sequence != expected:
            if oldest is not None and head.base_sequence < oldest and epoch == head.producer_epoch:
                raise Refused(f"sequence. expected={expected} got={head.base_sequence}", reason="duplicate_sequence")
            raise Refused(f"sequence. expected={expected} got={head.base_sequence}", reason="out_of_order")
        return None

    def _rewind(self) -> None:
        sent = self._line.sent
        self._next = sent[-1].what.base + sent[-1].what.head.last_offset_delta + 1 if sent else self.end

    def arrived(self, head: BatchHead, batch: bytes, place: Place | None) -> None:
        """A batch is durable, and the log's files have it at a place: the state says so already."""
        if place is not None:
            self.places.add(head.base_offset, place)
        self.tail.add(Held(head.base_offset, head.next_offset, head.max_timestamp, batch))
        self.wake()

    def bytes_from(self, offset: int, enough: int) -> int:
        """How much there is from an offset on; it stops counting at `enough`."""
        return self.tail.bytes_from(offset, enough)

    def wake(self) -> None:
        """Something that a reader waits for may have happened."""
        for waiter in list(self._waiters):
            waiter()

    def listen(self, waiter: Callable[[], None]) -> Callable[[], None]:
        """Hear of every arrival; the answer ends that."""
        self._waiters.add(waiter)
        return lambda: self._waiters.discard(waiter)


def _sequences(head: BatchHead) -> tuple[int, int]:
    return head.base_sequence, head.last_sequence


def _table_of(text: str) -> TableName:
    namespace, _, table = text.rpartition(".")
    return TableName(namespace, table)
