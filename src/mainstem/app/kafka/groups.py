"""The coordinators of the Kafka door, wired: groups, offsets and transactions on the journal, and who may ask."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from mainstem.admission import Authenticator, Users
from mainstem.doors.kafka import authenticating, committing, group_tools, grouping, joining, producing, transacting
from mainstem.doors.kafka.authenticating import Authentication
from mainstem.doors.kafka.cluster import Cluster
from mainstem.doors.kafka.dispatch import Table
from mainstem.doors.kafka.grouping import Grouping
from mainstem.doors.kafka.transacting import Transacting, check_transaction
from mainstem.feeds.groups.coordinator import Coordinator
from mainstem.feeds.groups.modern_values import Topic
from mainstem.feeds.groups.offsets import Offsets
from mainstem.feeds.groups.outbox import Outbox
from mainstem.feeds.groups.section import Writer
from mainstem.feeds.groups.settings import GroupSettings
from mainstem.feeds.topics.sections import Sections
from mainstem.feeds.topics.state import JOURNAL_SOURCE
from mainstem.feeds.topics.topics import Topics
from mainstem.feeds.transactions.coordinator import Transactions
from mainstem.feeds.transactions.section import PartitionKey, TransactionsSection
from mainstem.feeds.transactions.settings import TransactionSettings
from mainstem.log import Log
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.markers import build_marker

logger = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 300.0
# Between a failure of a coordinator's task and its next try.
RESTART_S = 1.0
# Groups in the status and the metrics: each of its topics is a series.
GROUPS_SHOWN_MAX = 1_000


class PartitionMarkers:
    """Ends transactions in partitions."""

    def __init__(self, topics: Topics, section: TransactionsSection, clock: Clock) -> None:
        self._topics = topics
        self._section = section
        self._clock = clock

    async def write(self, key: PartitionKey, producer_id: int, epoch: int, *, commits: bool) -> None:
        topic = self._topics.state.by_id.get(key[0])
        partition = None if topic is None else self._topics.partition(topic, key[1])
        if partition is None:
            # Deleted meanwhile, with all that was in it.
            return
        # What was let in before the end was decided is part of it.
        await partition.settled()
        ended = self._section.of_producer(key, producer_id) if commits else []
        marker = build_marker(producer_id, epoch, self._clock.now_ms(), commits=commits)
        outcome = partition.end_transaction(marker, [each.bytes for each in ended], sum(each.records for each in ended))
        await asyncio.shield(outcome)


class KnownTopics:
    """The topics as groups see them, made anew when one changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Topic] | None = None
        self._views = 0
        cluster.topics.on_change.append(self._changed)

    def __call__(self) -> Mapping[str, Topic]:
        views = self._cluster.views.topics()
        if self._known is None or len(views) != self._views:
            every = [*self._cluster.topics.state.topics.values(), *views]
            self._views = len(views)
            self._known = {topic.name: Topic(topic.id.hex(), len(topic.partitions)) for topic in every}
        return self._known

    def _changed(self, name: str) -> None:
        self._known = None


@dataclass(slots=True)
class Coordination:
    """What the gateway starts and asks."""

    groups: Coordinator
    offsets: Offsets
    transactions: Transactions
    authentication: Authentication
    outbox: Outbox
    cluster: Cluster
    _deleted: asyncio.Queue[str]

    async def run(self) -> None:
        """Write, keep the time, and forget what is old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.outbox.run, self.groups.run, self._run_transactions, self._expire, self._forget_deleted):
                tasks.create_task(_kept_up(part))

    async def _run_transactions(self) -> None:
        await self.transactions.recover()
        await self.transactions.run()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            try:
                await self.offsets.expire()
                await self.transactions.expire()
            # The task's edge: what could not be written is tried again.
            except MainstemError as error:
                logger.warning("old offsets could not be removed: %s", error)

    async def _forget_deleted(self) -> None:
        while True:
            name = await self._deleted.get()
            try:
                await self.offsets.forget_topic(name)
            # The task's edge: they expire with their groups at the latest.
            except MainstemError as error:
                logger.warning("offsets of a deleted topic could not be removed: %s", error)

    def lag_by_topic(self) -> dict[str, dict[str, int]]:
        """The same by topic, for the groups that are furthest behind."""
        found: dict[str, Counter[str]] = {}
        for group, lags in self.lags().items():
            counts = found.setdefault(group, Counter())
            for (topic, _), lag in lags.items():
                counts[topic] += lag
        shown = sorted(found, key=lambda group: -found[group].total())[:GROUPS_SHOWN_MAX]
        return {group: dict(found[group]) for group in sorted(shown)}

    def lags(self) -> dict[str, dict[tuple[str, int], int]]:
        """How many records each group has still to read, by partition."""
        found: dict[str, dict[tuple[str, int], int]] = {}
        for group in self.offsets.groups():
            lags = found.setdefault(group, {})
            for (name, index), offset in self.offsets.all_of(group).items():
                topic = self.cluster.find(name)
                if topic is not None and index < len(topic.partitions):
                    lags[name, index] = max(0, topic.partitions[index].end - offset.offset)
        return found


async def _kept_up(part: Callable[[], Awaitable[None]]) -> None:
    """Do a coordinator's work until cancelled. An error of ours must not end the server with all its other doors: it is
    told, and the work goes on."""
    while True:
        try:
            await part()
            return
        # The task's edge.
        except Exception:
            logger.exception("kafka.coordination_failed", extra={"part": getattr(part, "__qualname__", repr(part))})
            await asyncio.sleep(RESTART_S)


def make_coordination(
    *,
    sections: Sections,
    topics: Topics,
    cluster: Cluster,
    table: Table,
    log: Log,
    users: Users,
    tokens: Authenticator,
    clock: Clock,
    groups: GroupSettings,
    transactions: TransactionSettings,
) -> Coordination:
    """Build the coordinators and answer their APIs. `run` does their work."""
    outbox = Outbox(topics.journal)
    writer = Writer(topics.settings.namespace, JOURNAL_SOURCE)
    coordinator = Coordinator(
        sections.groups,
        outbox,
        writer,
        topics=KnownTopics(cluster),
        clock=clock,
        new_id=lambda prefix: f"{prefix}-{uuid4()}",
        settings=groups,
    )
    offsets = Offsets(coordinator, sections.groups, outbox, writer, clock=clock)
    running = Transactions(
        sections.transactions,
        topics.journal,
        PartitionMarkers(topics, sections.transactions, clock),
        new_producer_id=topics.new_producer_id,
        settled_offsets=lambda producer_id, commits: offsets.settled(producer_id, is_committed=commits),
        namespace=topics.settings.namespace,
        source=JOURNAL_SOURCE,
        clock=clock,
        settings=transactions,
    )
    deleted: asyncio.Queue[str] = asyncio.Queue()

    def changed(name: str) -> None:
        if name not in topics.state.topics:
            sections.transactions.forget_all_but(topics.state.by_id)
            deleted.put_nowait(name)

    topics.on_change.append(changed)
    topics.stable_of = sections.transactions.stable
    sections.transactions.forget_all_but(topics.state.by_id)
    sections.transactions.sealed(log.sealed)
    log.on_sealed(lambda segment: sections.transactions.sealed(segment.last))
    coordinator.start()
    ours = Grouping(cluster, coordinator, offsets)
    authentication = Authentication(users, tokens, clock)
    producing.register(table, cluster, clock, partial(check_transaction, running))
    joining.register(table, cluster, running)
    grouping.register(table, ours)
    committing.register(table, ours)
    group_tools.register(table, ours)
    transacting.register(table, Transacting(ours, running, sections.transactions, clock))
    authenticating.register(table, authentication)
    return Coordination(coordinator, offsets, running, authentication, outbox, cluster, deleted)
