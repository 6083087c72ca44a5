"""What the log knows of topics: which there are, how far each partition is, and what each producer wrote last.

`TopicsState` is a part of the log's companion (`log/companion.Companions`): it is a function of the log. The log calls
`apply` for each batch once it is durable, in log order, and again for what it finds when it opens; `dump` and `load`
carry it over the part that is gone. So there is no file of its own to fall behind, nothing is read at a start but the
log's own tail, and a copied or restored folder has the state that belongs to its log.

Two kinds of batches matter here:

- `Encoding.KAFKA_RECORDS` (`wire/kafka/payload`): one record batch of a partition. Moves the partition's end, and is
  what the idempotent producer's check goes by.
- `Encoding.CHANGES` from a source that begins with `SOURCE`: entries of the `Journal`. Each is an ordinary change of a
  table in the topics' namespace, so that topics, groups and offsets can be queried as tables. Which state it changes is
  decided by its table's name: the state of topics is `__topics`, `__partitions` and `__producers`; anything else
  belongs to a `Section` that registered for that table (groups, offsets, transactions).

How a section is rebuilt at the start: register it before the log is opened (`TopicsState.register`). The log then calls
`load` with what the section's `dump` gave, and `apply` for every change that came after.
"""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import msgspec

from mainstem.feeds.topics.times import Times
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Corrupt
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.tables.kinds import INTERNAL, TOPIC
from mainstem.wire.kafka import payload as payloads
from mainstem.wire.kafka.payload import Buffer
from mainstem.wire.kafka.records import BatchHead, read_head

SOURCE = "kafka/"
JOURNAL_SOURCE = SourceId(SOURCE + "journal")
TOPICS, PARTITIONS, PRODUCERS = "__topics", "__partitions", "__producers"
# As many as a producer may have in flight; a retry is of one of them.
BATCHES_KEPT = 5
PRODUCERS_MAX = 10_000
_VERSION = 1


class Wrote(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A batch that an idempotent producer wrote."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class ProducerState(msgspec.Struct, array_like=True):
    """What a partition knows of one producer."""

    epoch: int
    seen_ms: int
    # The latest ones, oldest first.
    batches: list[Wrote]


class PartitionState(msgspec.Struct, array_like=True):
    """What is durable of one partition."""

    # The offset of the next record: the high watermark.
    end: int = 0
    # The first offset that is kept.
    start: int = 0
    # The number of the next batch at the log's gate.
    number: int = 0
    max_timestamp: int = -1
    # The last offset of the batch that has it.
    max_timestamp_offset: int = -1
    producers: dict[int, ProducerState] = {}
    # What was written, for retention by size; and the bytes before `start`.
    bytes: int = 0
    times: Times = msgspec.field(default_factory=Times)


class TopicState(msgspec.Struct, array_like=True):
    """One topic."""

    name: str
    id: bytes
    table: str
    created_ms: int
    config: dict[str, str]
    partitions: list[PartitionState]
    # Of the table: see `tables/kinds`.
    kind: str = TOPIC

    @property
    def uuid(self) -> UUID:
        return UUID(bytes=self.id)


class _Stored(msgspec.Struct, array_like=True):
    version: int
    last: int
    topics: list[TopicState]
    # Where the partitions of deleted topics ended, by name.
    ends: dict[str, list[int]]
    producer_id: int
    journal_number: int
    kinds: dict[str, str]
    sections: dict[str, bytes]


class Section(Protocol):
    """State made of the journal's changes to some tables. Lives on the event loop."""

    # Under which its dump is stored; and the tables whose changes it wants.
    name: str
    tables: frozenset[str]

    def apply(self, change: Change, header: BatchHeader) -> None:
        """A change is durable. Called in log order, once per change."""

    def dump(self) -> bytes:
        """Everything applied so far."""

    def load(self, data: bytes) -> None:
        """Become what `dump` gave."""


class RecordsSection(Section, Protocol):
    """A section that also hears of the record batches of transactions, and of their ends."""

    def apply_batch(self, topic_id: bytes, partition: int, head: BatchHead, batch: bytes, last: LogPosition) -> None:
        """A batch of a transaction, or a control batch, is durable. `last` is the position of its frame's end."""


# Topic, partition, head, batch; and how many bytes of its frame there are from the batch's first one on.
OnRecords = Callable[[TopicState, int, BatchHead, bytes, int], None]

_changes = msgspec.msgpack.Decoder(list[Change])
_encoder = msgspec.msgpack.Encoder()


class TopicsState:
    """All topics, as far as they are durable. Belongs to the event loop."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.by_id: dict[bytes, TopicState] = {}
        # Producer ids below this one are given out.
        self.producer_id = 0
        self.journal_number = 0
        # A topic that is made again under its old name goes on behind its old records, which its table still has.
        self.ends: dict[str, list[int]] = {}
        self._kinds: dict[str, str] = {}
        self._last = NOWHERE
        self._sections: dict[str, Section] = {}
        self._by_table: dict[str, Section] = {}
        self._of_records: list[RecordsSection] = []
        self._others: dict[str, bytes] = {}
        # Hear of what became durable, right after the state changed: record batches, and topics that came, went or
        # changed.
        self.on_records: OnRecords = lambda topic, partition, head, batch, rest: None
        self.on_topic: Callable[[str], None] = lambda name: None

    def register(self, section: Section) -> None:
        """Keep a section's state too. Before the log is opened."""
        self._sections[section.name] = section
        self._by_table |= dict.fromkeys(section.tables, section)

    def register_of_records(self, section: RecordsSection) -> None:
        """The same for one that hears of transactions' records too."""
        self.register(section)
        self._of_records.append(section)

    @property
    def last(self) -> LogPosition:
        """The last position that is applied: of the batch at hand, for who hears of it."""
        return self._last

    def kind_of(self, name: TableName) -> str:
        """Of which kind a table is (`tables/kinds`); empty where it is not of a topic."""
        return self._kinds.get(str(name), "")

    def apply(self, header: BatchHeader, payload: Buffer) -> None:
        """See `log.companion.ReadingCompanion`."""
        if header.last <= self._last:
            return
        self._last = header.last
        if header.encoding is Encoding.KAFKA_RECORDS:
            self._apply_records(header, payload)
        elif header.encoding is Encoding.CHANGES and header.source.startswith(SOURCE):
            self.journal_number = header.sequence + 1
            for change in _changes.decode(payload):
                self._apply_change(change, header)

    def _apply_records(self, header: BatchHeader, payload: Buffer) -> None:
        records = payloads.unpack(payload, f"position {header.first}")
        topic = self.by_id.get(records.topic_id)
        if topic is None or records.partition >= len(topic.partitions):
            # It was deleted while the batch was on its way.
            return
        head = read_head(records.batch)
        state = topic.partitions[records.partition]
        state.end = head.next_offset
        state.number = header.sequence + 1
        state.bytes += head.size
        if head.max_timestamp > state.max_timestamp:
            state.max_timestamp, state.max_timestamp_offset = head.max_timestamp, head.next_offset - 1
        state.times.note(state.end, state.max_timestamp, state.bytes)
        if head.producer_id >= 0:
            _note_producer(state, head, header.arrival_ms)
        # Behind a marker come the records that it commits: they were heard of before.
        batch = bytes(records.batch[: head.size])
        if head.is_transactional:
            for section in self._of_records:
                section.apply_batch(records.topic_id, records.partition, head, batch, header.last)
        self.on_records(topic, records.partition, head, batch, len(records.batch))

    def _apply_change(self, change: Change, header: BatchHeader) -> None:
        columns = change.columns or {}
        self._kinds[f"{change.namespace}.{change.table}"] = INTERNAL
        if change.table == TOPICS:
            if change.operation is Operation.DELETE:
                self._forget(change.key)
            else:
                self._note_topic(change.key, columns)
            self.on_topic(change.key)
        elif change.table == PARTITIONS:
            topic = self.by_id.get(bytes.fromhex(columns["topic_id"]))
            if topic is not None and columns["partition"] < len(topic.partitions):
                state = topic.partitions[columns["partition"]]
                state.start = max(state.start, min(columns["start_offset"], state.end))
        elif change.table == PRODUCERS:
            self.producer_id = max(self.producer_id, columns["next_producer_id"])
        elif (section := self._by_table.get(change.table)) is not None:
            section.apply(change, header)

    def _note_topic(self, name: str, columns: dict[str, object]) -> None:
        said = msgspec.convert(columns, _TopicColumns)
        topic_id = bytes.fromhex(said.id)
        topic = self.by_id.get(topic_id)
        if topic is None:
            topic = TopicState(name, topic_id, said.table, said.created_ms, said.config, [])
            self.topics[name] = self.by_id[topic_id] = topic
        topic.config, topic.kind = said.config, said.kind
        self._kinds[topic.table] = topic.kind
        ends = self.ends.get(name, [])
        for index in range(len(topic.partitions), said.partitions):
            first = ends[index] if index < len(ends) else 0
            topic.partitions.append(PartitionState(end=first, start=first, producers={}))

    def _forget(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            del self.by_id[topic.id]
            ends = [state.end for state in topic.partitions]
            self.ends[name] = ends + self.ends.get(name, [])[len(ends) :]

    def dump(self) -> bytes:
        """See `log.companion.ReadingCompanion`."""
        if self._last == NOWHERE or not (self.topics or self.ends or self.journal_number):
            # The door was never used.
            return b""
        return _encoder.encode(
            _Stored(
                _VERSION,
                self._last,
                list(self.topics.values()),
                self.ends,
                self.producer_id,
                self.journal_number,
                self._kinds,
                self._others | {name: section.dump() for name, section in self._sections.items()},
            )
        )

    def load(self, data: bytes) -> None:
        """See `log.companion.ReadingCompanion`."""
        try:
            stored = msgspec.msgpack.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise Corrupt(f"state of topics cannot be read. got={error}", place="companion") from error
        if stored.version != _VERSION:
            raise Corrupt(f"state of topics. expected=version {_VERSION} got={stored.version}", place="companion")
        self._last = LogPosition(stored.last)
        self.topics = {topic.name: topic for topic in stored.topics}
        self.by_id = {topic.id: topic for topic in stored.topics}
        self.ends = stored.ends
        self.producer_id = stored.producer_id
        self.journal_number = stored.journal_number
        self._kinds = stored.kinds
        for name, section in self._sections.items():
            if name in stored.sections:
                section.load(stored.sections.pop(name))
        self._others = stored.sections


class _TopicColumns(msgspec.Struct):
    """What a change of `__topics` says."""

    id: str
    table: str
    partitions: int
    created_ms: int
    config: dict[str, str]
    kind: str


def _note_producer(state: PartitionState, head: BatchHead, now_ms: int) -> None:
    wrote = Wrote(head.base_sequence, head.last_sequence, head.base_offset, head.max_timestamp)
    # Taken out and put back: the dict's order is that in which producers were heard last.
    producer = state.producers.pop(head.producer_id, None)
    if producer is None or producer.epoch != head.producer_epoch:
        producer = ProducerState(head.producer_epoch, now_ms, [])
    producer.seen_ms = now_ms
    if not head.is_control:
        producer.batches = [*producer.batches[-BATCHES_KEPT + 1 :], wrote]
    state.producers[head.producer_id] = producer
    while len(state.producers) > PRODUCERS_MAX:
        del state.producers[next(iter(state.producers))]


def topic_change(name: str, topic: TopicState, *, partitions: int, namespace: str) -> Change:
    """The journal's entry that makes a topic what it is said to be."""
    columns = {
        "id": topic.id.hex(),
        "table": topic.table,
        "partitions": partitions,
        "created_ms": topic.created_ms,
        "config": topic.config,
        "kind": topic.kind,
    }
    return _entry(namespace, TOPICS, name, columns)


def no_topic_change(name: str, namespace: str) -> Change:
    """The journal's entry that deletes a topic."""
    return _entry(namespace, TOPICS, name, None)


def start_change(topic: TopicState, partition: int, start_offset: int, namespace: str) -> Change:
    """The journal's entry that moves a partition's first offset."""
    columns = {"topic": topic.name, "topic_id": topic.id.hex(), "partition": partition, "start_offset": start_offset}
    return _entry(namespace, PARTITIONS, f"{topic.name}/{partition}", columns)


def producers_change(next_producer_id: int, namespace: str) -> Change:
    """The journal's entry that gives out producer ids."""
    return _entry(namespace, PRODUCERS, "next", {"next_producer_id": next_producer_id})


def _entry(namespace: str, table: str, key: str, columns: dict[str, object] | None) -> Change:
    operation = Operation.DELETE if columns is None else Operation.UPDATE
    # The source and the sequence are the journal's to say.
    return Change(
        namespace=namespace,
        table=table,
        key=key,
        operation=operation,
        columns=columns,
        source=JOURNAL_SOURCE,
        batch_sequence=0,
    )


def partition_source(topic_id: bytes, partition: int) -> SourceId:
    """The source under which a partition's batches pass the gate."""
    return SourceId(f"{SOURCE}{topic_id.hex()}/{partition}")
