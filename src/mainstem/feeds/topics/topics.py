"""The topics of one gateway: made, changed and deleted through the log, and their partitions at hand.

`Journal.append` is how anything else of the door becomes durable (offsets, groups, transactions): changes of tables in
the topics' namespace, applied to the state by the log itself (`state.TopicsState`) before the append is done.
"""

import asyncio
import re
import secrets
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from mainstem.admission import Appended, Appender, Gate
from mainstem.feeds.topics.config import KINDS, TopicConfig, check_config, read_config
from mainstem.feeds.topics.lines import Line, durable
from mainstem.feeds.topics.partition import Assigned, Partition
from mainstem.feeds.topics.places import PlaceMemory, Places
from mainstem.feeds.topics.state import (
    JOURNAL_SOURCE,
    TopicsState,
    TopicState,
    no_topic_change,
    partition_source,
    producers_change,
    start_change,
    topic_change,
)
from mainstem.feeds.topics.tail import Tail, TailMemory
from mainstem.log.kept import Place
from mainstem.model.batch import Encoding
from mainstem.model.change import Change
from mainstem.model.errors import Conflict, Invalid, NotFound
from mainstem.model.names import TableName, parse_table_name, refuse_rules
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.payload import RECORDS_SUFFIX, Mode
from mainstem.wire.kafka.records import BatchHead

PARTITIONS_MAX = 10_000
TOPICS_MAX = 10_000
PRODUCER_IDS_AT_ONCE = 1_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,128}")
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings:
    """What holds for all topics."""

    namespace: str = "kafka"
    partitions: int = 1
    tail_bytes_max: int = 128 * 1024 * 1024
    # Batches whose place in the log's files is known, of all topics; 32 bytes each.
    places_max: int = 1_000_000
    # Settings of topics that do not say otherwise.
    config: Mapping[str, str] = field(default_factory=dict)


class Journal:
    """Makes changes of the door's own tables durable, in order. Belongs to the event loop."""

    def __init__(self, state: TopicsState, gate: Gate, log: Appender) -> None:
        self._state = state
        self._gate = gate
        self._log = log
        self._line: Line[None] | None = None

    def append(self, changes: Sequence[Change]) -> Awaitable[Appended]:
        """Put changes in line, as one batch, at once and in the order of calls; all of them or none is durable.

        Awaiting the answer waits for that: then the state's sections have been told (`Section.apply`). Raises, now or
        when awaited, a MainstemError where they are not in the log; OutcomeUnknown where that cannot be known.
        """
        if self._line is None:
            self._line = Line(self._gate, self._log, JOURNAL_SOURCE, self._state.journal_number)
        payload = _encoder.encode(list(changes))
        sent = self._line.send(
            None,
            encoding=Encoding.CHANGES,
            payload=payload,
            count=len(changes),
            fingerprint=zlib.crc32(payload),
            tables=frozenset(TableName(change.namespace, change.table) for change in changes),
        )
        return durable(sent.outcome)


class Topics:
    """See above. Belongs to the event loop."""

    def __init__(self, state: TopicsState, gate: Gate, log: Appender, clock: Clock, settings: TopicsSettings) -> None:
        self.state = state
        self.journal = Journal(state, gate, log)
        self.settings = settings
        self._gate = gate
        self._log = log
        self._clock = clock
        self._partitions: dict[tuple[bytes, int], Partition] = {}
        self._configs: dict[bytes, TopicConfig] = {}
        self._memory = TailMemory(settings.tail_bytes_max)
        # One at a time: what is decided on must still be so when it is durable.
        self._changing = asyncio.Lock()
        self._producer_ids = range(0)
        self._places = PlaceMemory(settings.places_max)
        # Where the log's files have the frame of the batch at hand.
        self.place_of: Callable[[], Place | None] = lambda: None
        # The last stable offset of a partition that ends somewhere. Transactions replace this.
        self.stable_of: Callable[[tuple[bytes, int], int], int] = lambda key, end: end
        # Hear of topics that came, went or changed.
        self.on_change: list[Callable[[str], None]] = []
        state.on_records = self._on_records
        state.on_topic = self._on_topic

    # Looking

    def get(self, name: str) -> TopicState | None:
        """A topic by its name."""
        return self.state.topics.get(name)

    def by_id(self, topic_id: UUID | None) -> TopicState | None:
        """A topic by its id."""
        return None if topic_id is None else self.state.by_id.get(topic_id.bytes)

    def partition(self, topic: TopicState, index: int) -> Partition | None:
        """A partition, or None where the topic has no such one, or is not one of ours (but a view)."""
        found = self._partitions.get((topic.id, index))
        if found is None and topic.id in self.state.by_id and 0 <= index < len(topic.partitions):
            number = topic.partitions[index].number
            line: Line[Assigned] = Line(self._gate, self._log, partition_source(topic.id, index), number)
            found = made = Partition(
                topic, index, lambda: self.config(topic), line, Tail(self._memory), Places(self._places)
            )
            made.stable = lambda: self.stable_of((topic.id, index), made.end)
            self._partitions[topic.id, index] = found
        return found

    def config(self, topic: TopicState) -> TopicConfig:
        """A topic's settings, read."""
        found = self._configs.get(topic.id)
        if found is None:
            found = self._configs[topic.id] = read_config({**self.settings.config, **topic.config})
        return found

    @property
    def tail_bytes(self) -> int:
        """What is held in memory of all partitions."""
        return self._memory.bytes

    # Changing

    def table_for(self, name: str) -> TableName:
        """The table that a topic of this name is. Raises Invalid where there can be none."""
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise Invalid(
                f"topic name. expected=1 to 128 letters, digits, dots, dashes and underscores got={name!r:.80}",
                reason="invalid_topic",
            )
        # As Kafka has it: names that differ in dots and underscores only would be one table.
        table = name.replace(".", "_")
        if table.startswith("__"):
            raise Invalid(f"topic name is the server's own. got={name}", reason="invalid_topic")
        try:
            return refuse_rules(parse_table_name(f"{self.settings.namespace}.{table}"))
        except Invalid as error:
            raise Invalid(str(error), reason="invalid_topic") from error

    def check_new(self, name: str, partitions: int, config: Mapping[str, str]) -> TableName:
        """Whether a topic may be made: the table that it will be. Raises Invalid or Conflict."""
        found = self.table_for(name)
        if name in self.state.topics:
            raise Conflict(f"topic exists. got={name}")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise Invalid(f"partitions. expected=1 to {PARTITIONS_MAX} got={partitions}", reason="invalid_partitions")
        if len(self.state.topics) >= TOPICS_MAX:
            raise Invalid(f"topics. expected=at most {TOPICS_MAX} got=one more", reason="policy")
        check_config(config)
        self._check_tables(name, found, read_config({**self.settings.config, **config}).mode)
        return found

    def _check_tables(self, name: str, table: TableName, mode: Mode) -> None:
        """Refuse a topic whose records would come into another one's table, or into one of another form."""
        # Debezium's envelopes fill two: one of the state, one of the records.
        own = {str(table), _records_table(table, mode)}
        for other in self.state.topics.values():
            if other.table in own or f"{self.settings.namespace}.{other.name.replace('.', '_')}" in own:
                told = f"topic collides with another one. expected=not {other.name} got={name}"
                raise Invalid(told, reason="invalid_topic")
        # A topic that was deleted leaves its table.
        wanted = dict.fromkeys(own, "") | {_records_table(table, mode): KINDS[mode]}
        for each, kind in wanted.items():
            if (had := self.state.kind_of(parse_table_name(each))) not in ("", kind):
                raise Invalid(
                    f"an older topic left the table {each} in another form. expected=value.mode and compaction as "
                    f"before, or another name got={had}",
                    reason="invalid_config",
                )

    async def create(self, name: str, partitions: int, config: Mapping[str, str]) -> TopicState:
        """Make a topic, durably."""
        async with self._changing:
            table = self.check_new(name, partitions, config)
            mode = read_config({**self.settings.config, **config}).mode
            stored = _records_table(table, mode)
            topic = TopicState(name, _new_id(), stored, self._clock.now_ms(), dict(config), [], KINDS[mode])
            await self._change(topic_change(name, topic, partitions=partitions, namespace=self.settings.namespace))
            return self.state.topics[name]

    async def delete(self, name: str) -> None:
        """Delete a topic. Its table stays, as the lake's."""
        async with self._changing:
            self._existing(name)
            await self._change(no_topic_change(name, self.settings.namespace))

    async def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Give a topic other settings: these, and nothing else."""
        async with self._changing:
            topic = self._existing(name)
            check_config(config)
            changed = TopicState(name, topic.id, topic.table, topic.created_ms, dict(config), [], topic.kind)
            before, after = self.config(topic), read_config({**self.settings.config, **config})
            if before.mode != after.mode:
                raise Invalid(
                    "value.mode and compaction are settled when a topic is made: its table has their form. "
                    f"expected={before.mode.name.lower()} got={after.mode.name.lower()}",
                    reason="invalid_config",
                )
            entry = topic_change(name, changed, partitions=len(topic.partitions), namespace=self.settings.namespace)
            await self._change(entry)

    async def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        async with self._changing:
            topic = self._existing(name)
            if not len(topic.partitions) < partitions <= PARTITIONS_MAX:
                raise Invalid(
                    f"partitions. expected=more than {len(topic.partitions)}, at most {PARTITIONS_MAX} "
                    f"got={partitions}",
                    reason="invalid_partitions",
                )
            await self._change(topic_change(name, topic, partitions=partitions, namespace=self.settings.namespace))

    async def cut(self, topic: TopicState, partition: int, start_offset: int) -> None:
        """Let go of everything before an offset. A lower one than before changes nothing."""
        state = topic.partitions[partition]
        if not 0 <= start_offset <= state.end:
            raise Invalid(f"offset. expected=0 to {state.end} got={start_offset}", reason="offset_out_of_range")
        if start_offset > state.start:
            await self._change(start_change(topic, partition, start_offset, self.settings.namespace))

    async def new_producer_id(self) -> int:
        """A producer id that was never given before. They are made durable by the thousand."""
        if not self._producer_ids:
            async with self._changing:
                if not self._producer_ids:
                    first = self.state.producer_id
                    await self._change(producers_change(first + PRODUCER_IDS_AT_ONCE, self.settings.namespace))
                    self._producer_ids = range(first, first + PRODUCER_IDS_AT_ONCE)
        given, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return given

    def _existing(self, name: str) -> TopicState:
        topic = self.state.topics.get(name)
        if topic is None:
            raise NotFound(f"no such topic. got={name!r:.80}")
        return topic

    async def _change(self, change: Change) -> None:
        await self.journal.append([change])

    # Hearing

    def _on_records(self, topic: TopicState, index: int, head: BatchHead, batch: bytes, rest: int) -> None:
        partition = self.partition(topic, index)
        if partition is not None:
            frame = self.place_of()
            place = None if frame is None else Place(frame.file, frame.start + frame.size - rest, head.size)
            partition.arrived(head, batch, place)

    def _on_topic(self, name: str) -> None:
        for listener in self.on_change:
            listener(name)
        topic = self.state.topics.get(name)
        if topic is not None:
            self._configs.pop(topic.id, None)
            return
        gone = [key for key in self._partitions if key[0] not in self.state.by_id]
        for key in gone:
            self._partitions.pop(key).wake()


def _records_table(table: TableName, mode: Mode) -> str:
    """Where a topic's records go. Debezium's envelopes have a table of their own, by the topic's name."""
    return f"{table}{RECORDS_SUFFIX}" if mode is Mode.DEBEZIUM else str(table)


def _new_id() -> bytes:
    """Never zero, which the protocol has for none."""
    return secrets.token_bytes(15) + b"\1"
