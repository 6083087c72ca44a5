"""The Kafka door, wired: topics on the log, their records from memory, log and tables, and who answers which API."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mainstem.admission import Authenticator, Gate, Limits, Users
from mainstem.admission.quotas import Quotas
from mainstem.app.kafka.config import MIB, KafkaConfig
from mainstem.app.kafka.groups import Coordination, make_coordination
from mainstem.app.kafka.rows import TopicRows
from mainstem.app.query import CatalogLake
from mainstem.app.sync.history import LakeHistory
from mainstem.doors.kafka import administering, cluster, fetching
from mainstem.doors.kafka.cluster import Cluster, table_of
from mainstem.doors.kafka.connection import ConnectionSettings
from mainstem.doors.kafka.dispatch import Table
from mainstem.doors.kafka.door import KafkaDoor
from mainstem.doors.kafka.fetching import Fetching
from mainstem.doors.kafka.throttling import Throttle
from mainstem.feeds.declared import Declared
from mainstem.feeds.topics.reading import Reader, tail_batches
from mainstem.feeds.topics.retention import first_to_keep, spent
from mainstem.feeds.topics.sections import Sections
from mainstem.feeds.topics.state import TopicsState, TopicState
from mainstem.feeds.topics.tail import Held
from mainstem.feeds.topics.topics import Topics, TopicsSettings
from mainstem.feeds.topics.views import Views
from mainstem.log import Log
from mainstem.log.tap import Tap
from mainstem.model import MainstemError, TableName
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.payload import Mode

logger = logging.getLogger(__name__)

# Beside the batch, a payload has the topic's table and a few numbers.
_PAYLOAD_BYTES_MAX = 48 * MIB + 4096
_RECORDS_MAX = 4_000_000


@dataclass(slots=True)
class Kafka:
    """What the gateway starts, asks and closes."""

    door: KafkaDoor
    topics: Topics
    cluster: Cluster
    reader: Reader
    log: Log
    gate: Gate
    config: KafkaConfig
    rows: TopicRows
    clock: Clock
    coordination: Coordination
    quotas: Quotas

    async def open(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Let clients in. What they are told to connect to is where the door listens, unless it is said."""
        if not self.config.advertised:
            self.cluster.port = listener.getsockname()[1]
        await self.door.start(listener, tls)
        print(f"mainstem's Kafka door listens on {self.cluster.host}:{self.cluster.port}", flush=True)

    async def close(self) -> None:
        """End every connection, and what reads for them."""
        await self.door.close()
        self.reader.close()

    async def retain(self) -> None:
        """Let go of what topics need not keep any longer, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self.config.retention_check_s)
            for topic in list(self.topics.state.topics.values()):
                try:
                    await self._retain(topic)
                # The task's edge: what could not be let go of now is looked at again.
                except (OSError, MainstemError) as error:
                    logger.warning("kafka.retention_failed", extra={"topic": topic.name, "error": str(error)})
                # An error of ours, or a table that somebody else changed: it must not end the server.
                except Exception:
                    logger.exception("kafka.retention_failed", extra={"topic": topic.name})

    async def _retain(self, topic: TopicState) -> None:
        config = self.topics.config(topic)
        if config.mode is Mode.COMPACT and not config.is_deleting:
            return
        table = table_of(topic)
        files = await asyncio.to_thread(self.rows.files, table)
        now_ms = self.clock.now_ms()
        for index, state in enumerate(topic.partitions):
            own = [file for file in files if file.partition == index]
            start = min(first_to_keep(own, config, state.start, now_ms), state.end)
            if start > state.start:
                await self.topics.cut(topic, index, start)
        gone = spent(files, {index: state.start for index, state in enumerate(topic.partitions)})
        if gone:
            await asyncio.to_thread(self.rows.drop, table, gone, now_ms)

    async def load_tail(self) -> None:
        """Bring into memory what the log has not sealed yet, as far as there is room. Before the door opens."""
        frames = self.log.places(self.log.sealed)
        room = self.topics.settings.tail_bytes_max
        for topic_id, index, head, place, batch in await asyncio.to_thread(tail_batches, frames, room):
            topic = self.topics.state.by_id.get(topic_id)
            partition = None if topic is None else self.topics.partition(topic, index)
            if partition is not None:
                partition.places.add(head.base_offset, place)
                if batch is not None:
                    partition.tail.add(Held(head.base_offset, head.next_offset, head.max_timestamp, batch))


def make_kafka(
    *,
    config: KafkaConfig,
    state: TopicsState,
    log: Log,
    tap: Tap,
    gate: Gate,
    backlog_bytes: Callable[[], int],
    backlog_bytes_max: int,
    lake: CatalogLake,
    history: LakeHistory,
    declared: Declared,
    clock: Clock,
    host: str,
    sections: Sections,
    users: Users,
    tokens: Authenticator,
) -> Kafka:
    """Build everything behind the port. `await kafka.load_tail()` before it is opened."""
    limits = Limits(payload_bytes_max=_PAYLOAD_BYTES_MAX, events_max=_RECORDS_MAX, backlog_bytes_max=backlog_bytes_max)
    # The same gate, but for the size of a batch.
    own = Gate(gate.dedup, limits, backlog_bytes, rates=gate.rates, pressure=gate.pressure)
    settings = TopicsSettings(
        namespace=config.namespace,
        partitions=config.partitions,
        tail_bytes_max=config.tail_bytes_max,
        config=config.topic,
    )
    topics = Topics(state, own, tap, clock, settings)
    topics.place_of = lambda: log.place
    rows = TopicRows(lake)
    reader = Reader(log, rows, sections.transactions)
    told_host, _, told_port = config.advertised.rpartition(":")
    known = Cluster(
        id=next((span.log for span in log.lineage.spans if span.log), log.lineage.log),
        node_id=config.node_id,
        host=told_host or host,
        port=int(told_port or config.port),
        topics=topics,
        views=Views(log, tap, history, partial(_exists, lake), declared),
        auto_create=config.auto_create,
    )
    table = Table()
    cluster.register(table, known)
    fetching.register(table, Fetching(known, reader, clock))
    administering.register(table, known)
    connection = ConnectionSettings(frame_bytes_max=config.request_bytes_max, idle_s=config.idle_s)
    door = KafkaDoor(table, clock, connections_max=config.connections_max, settings=connection)
    coordination = make_coordination(
        sections=sections,
        topics=topics,
        cluster=known,
        table=table,
        log=log,
        users=users,
        tokens=tokens,
        clock=clock,
        groups=config.groups,
        transactions=config.transactions,
    )
    door.is_allowed = coordination.authentication.may_ask
    quotas = Quotas(config.quotas, clock)
    door.throttle = Throttle(quotas) if quotas.is_on else None
    return Kafka(door, topics, known, reader, log, own, config, rows, clock, coordination, quotas)


async def _exists(lake: CatalogLake, table: TableName) -> bool:
    return table in await lake.tables()
