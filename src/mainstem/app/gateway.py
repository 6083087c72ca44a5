"""The gateway: every part of the front process, built and wired. No part knows another but through its arguments."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from litestar import Litestar
from litestar.types import ASGIApp

from mainstem.admission import Authenticator, Dedup, Gate, Intake, Limits, Rates, Users
from mainstem.app.carried import Carried
from mainstem.app.config import Config
from mainstem.app.folder.home import settle_home
from mainstem.app.folder.vouching import vouch
from mainstem.app.following import Following
from mainstem.app.ingest import make_ingest
from mainstem.app.insight import Observer
from mainstem.app.kafkalog import let_go, make_journal
from mainstem.app.mongo import Mongo, make_mongo
from mainstem.app.pages.activity import Activity
from mainstem.app.pages.letters import DeadLetters
from mainstem.app.pages.tables import Tables
from mainstem.app.query import CatalogLake, Queries, inventory_reader, open_queries
from mainstem.app.routes import Mounted, guarded, make_routes
from mainstem.app.spark.objectstore import delta_tables, engine_settings, segments_url
from mainstem.app.spark.queries import SparkQueries
from mainstem.app.spark.seen import PipelineSeen
from mainstem.app.spark.shipping import Shipper
from mainstem.app.statuses import Refusals, Statuses
from mainstem.app.sync.history import LakeHistory
from mainstem.app.sync.wiring import make_sync
from mainstem.app.tuning import Tuner
from mainstem.catalog import Store
from mainstem.catalog.settings import make_catalog, open_store
from mainstem.doors.admin import server as http
from mainstem.doors.catalog.door import CatalogDoor
from mainstem.doors.cdc.ports import CdcSettings
from mainstem.doors.cdc.ws import CdcDoor
from mainstem.doors.mongo.server import MongoSettings
from mainstem.doors.query.door import scope_of_principal
from mainstem.feeds.topics.sections import Sections, register_sections
from mainstem.feeds.topics.state import TopicsState
from mainstem.log import Log, LogSettings, SegmentInfo
from mainstem.log.companion import Companions
from mainstem.log.disk import Disk
from mainstem.log.kafka.port import Journal
from mainstem.log.tap import Tap
from mainstem.maintenance.maintainer import Maintainer
from mainstem.model import Lineage, MainstemError, TableName
from mainstem.query.route import RouteSettings
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.runtime.logs import RecentErrors
from mainstem.tables.kinds import settings_of_kind
from mainstem.tables.settings import TableSettings

if TYPE_CHECKING:
    from mainstem.app.kafka.wiring import Kafka

logger = logging.getLogger(__name__)

DRAIN_S_MAX = 1.0
RETENTION_INTERVAL_S = 10.0


def _limits_of(config: Config) -> Limits:
    """What a batch may be at most."""
    return Limits(
        backlog_bytes_max=config.log.buffer_bytes_max,
        payload_bytes_max=config.limits.payload_bytes_max,
        event_bytes_max=config.limits.event_bytes_max,
    )


def _table_settings(tuner: Tuner, topics: TopicsState) -> Callable[[TableName], TableSettings]:
    """How a table is stored: as the configuration says, or as the topic that it is."""

    def settings_of(name: TableName) -> TableSettings:
        config = tuner.config
        kind = "" if str(name) in config.tables else topics.kind_of(name)
        return settings_of_kind(kind, config.parquet) if kind else config.table(name)

    return settings_of


class Gateway:
    """Doors, admission, log and catalog of one data folder. `await Gateway.open(…)` makes one."""

    def __init__(
        self,
        tuner: Tuner,
        log: Log,
        dedup: Dedup,
        topics: TopicsState,
        sections: Sections,
        store: Store,
        data: Path,
        clock: Clock,
        recent: RecentErrors | None,
    ) -> None:
        config = tuner.config
        self._tuner = tuner
        self._log = log
        self._clock = clock

        # The lake: the catalog, how far its tables are, and queries of them.
        open_delta = cache(partial(delta_tables, config.catalog, data))
        self.catalog = make_catalog(config.catalog, store, data, clock, inventory_reader(open_delta))
        self.pipeline = PipelineSeen(clock, is_wanted=config.pipeline.enabled)
        self.shipper = Shipper(log, segments_url(config.catalog, log.lineage.log), config.catalog.io)
        self.spark = SparkQueries(clock)
        lake = CatalogLake(self.catalog, open_delta)
        self.maintainer = Maintainer(self.catalog, config.compaction, data / "pipeline", clock, lake.delta)
        settings_of = _table_settings(tuner, topics)
        self.carried = Carried(
            log,
            self.pipeline,
            clock,
            config=lambda: tuner.config,
            settings_of=settings_of,
            warehouse=self.catalog.warehouse,
        )
        self._queries: Queries = open_queries(
            lake,
            engine_settings(config.catalog, self.catalog.warehouse, config.query.memory_bytes_max),
            log=log,
            route=RouteSettings(bytes_max=config.query.gateway_bytes_max, rows_max=config.query.gateway_rows_max),
            big=self.spark if config.pipeline.enabled else None,
            scope=scope_of_principal,
            io=config.catalog.io,
        )

        # Admission: one gate for all doors, and the tap that tells feeds what became durable.
        self.authenticator = Authenticator(config.auth, clock)
        self._rates = Rates(config.limits, clock=clock)
        users = Users.of_folder(config.users, data, is_derived=log.is_derived)
        backlog_bytes = self.carried.backlog_bytes
        self._gate = Gate(dedup, _limits_of(config), backlog_bytes, rates=self._rates)
        tap = Tap(log)
        intake = Intake(self._gate, tap)

        # The doors.
        self.door = CdcDoor(
            intake=intake,
            persisted=self.carried,
            flusher=self.carried,
            status=self.carried,
            clock=clock,
            settings=CdcSettings(connections_max=config.server.connections_max),
        )
        history = LakeHistory(lake, self._queries.engine, lambda: log.lineage)
        self.sync = make_sync(
            data=data,
            log=log,
            tap=tap,
            gate=self._gate,
            backlog_bytes=backlog_bytes,
            flusher=self.carried,
            clock=clock,
            history=history,
            catalog=self.catalog,
            config=config,
            settings_of=settings_of,
            held=self.carried.held,
            delta=lake.delta,
            lineage=lambda: log.lineage,
            watermark=lambda: self.carried.watermark,
        )
        self.ingest = make_ingest(config, self._gate, tap, backlog_bytes, self._queries.engine)
        self.kafka: Kafka | None = None
        if config.kafka.enabled:
            # Loaded only where it is wanted: a gateway without it starts sooner.
            from mainstem.app.kafka.wiring import make_kafka

            self.kafka = make_kafka(
                config=config.kafka,
                state=topics,
                log=log,
                tap=tap,
                gate=self._gate,
                backlog_bytes=backlog_bytes,
                backlog_bytes_max=config.log.buffer_bytes_max,
                lake=lake,
                history=history,
                declared=self.sync.declared,
                clock=clock,
                host=config.server.host,
                sections=sections,
                users=users,
                tokens=self.authenticator,
            )
        self.mongo: Mongo | None = None
        if config.mongo.is_on:
            self.mongo = make_mongo(
                data=data,
                log=log,
                tap=tap,
                gate=self._gate,
                backlog_bytes=backlog_bytes,
                backlog_bytes_max=config.log.buffer_bytes_max,
                lake=lake,
                engine=self._queries.engine,
                dispatcher=self._queries.dispatcher,
                covered=lambda name: log.lineage.covered(lake.marks(name)),
                users=users,
                clock=clock,
                settings=MongoSettings(
                    connections_max=config.mongo.connections_max,
                    advertise=config.mongo.advertise,
                    ttl_interval_s=config.mongo.ttl_interval_s,
                ),
            )

        # What people look at.
        self.dead_letters = DeadLetters(self.catalog, lake.delta, self._queries.engine, intake, topics.kind_of, clock)
        self.activity = Activity(
            dedup,
            clock,
            durable=lambda: log.durable,
            carried=lambda: self.carried.watermark,
            connections=lambda: (self.door.connection_count, self.sync.door.connection_count),
        )
        self.statuses = Statuses(
            tuner=tuner,
            log=log,
            carried=self.carried,
            pipeline=self.pipeline,
            catalog=self.catalog,
            engine=self._queries.engine,
            door=self.door,
            rates=self._rates,
            refusals=Refusals(),
            ingest=self.ingest.taking.stats,
            dead_letters=self.dead_letters,
            shipper=self.shipper,
            kafka=self.kafka,
            clock=clock,
            started_ms=clock.now_ms(),
        )
        status = self.statuses.status
        self._observer = Observer(
            self.catalog, log, clock, status, lake.delta, bounds=self.statuses.bounds, recent=recent
        )
        self._tables = Tables(self.catalog, self._observer, status, log, clock, self.activity, topics.kind_of)
        self._catalog_door = CatalogDoor(self.catalog, self.sync.declaring)

        # Who hears of what.
        self._following = Following(self.catalog)
        loop = asyncio.get_running_loop()
        for table in self.catalog.tables():
            self.carried.covered(table.table, table.marks, table.snapshot_id)
        # In the thread of the commit: these two live on the loop.
        declared, letters = self.sync.declared.committed, self.dead_letters.committed
        self.catalog.on_commit(self.carried.committed)
        self.catalog.on_commit(lambda it: _soon(loop, declared, it.table, it.snapshot_id))
        self.catalog.on_commit(lambda it: _soon(loop, letters, it.table))
        tuner.on_change(self._retune)

    @classmethod
    async def open(
        cls,
        config: Config,
        data: Path,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        recent: RecentErrors | None = None,
        journal: Journal | None = None,
    ) -> "Gateway":
        """Recover the log and the catalog, and be ready to serve. `recent` is what the console shows of the logging."""
        clock = clock or SystemClock()
        tuner = Tuner(config, data, clock)
        config = tuner.config
        dedup = Dedup(clock)
        settings = LogSettings(
            folder=data / "log",
            seal_changes=config.log.flush_events,
            seal_bytes=config.log.flush_bytes,
            seal_age_s=config.log.flush_age_s,
            seal_interval_s=config.log.flush_interval_s,
            kept_bytes_max=config.kafka.kept_bytes_max if config.kafka.enabled else 0,
            times=config.times(),
        )
        topics = TopicsState()
        sections = register_sections(topics)
        companion = Companions(dedup, {"topics": topics})
        journal = journal or make_journal(config)
        log = await Log.open(settings, companion=companion, clock=clock, disk=disk, journal=journal)
        if log.recovered is not None:
            torn = log.recovered
            logger.warning("cut a torn tail that was never acknowledged: %s", torn)
        try:
            store = await asyncio.to_thread(open_store, config.catalog, data)
            await asyncio.to_thread(settle_home, config.catalog, data, store)
            await vouch(log, store, partial(delta_tables, config.catalog, data))
            gateway = cls(tuner, log, dedup, topics, sections, store, data, clock, recent)
        except BaseException:
            await log.close()
            raise
        gateway._following.start()
        await gateway.sync.feeds.start()
        if gateway.kafka is not None:
            await gateway.kafka.load_tail()
        if gateway.mongo is not None:
            await gateway.mongo.start()
        return gateway

    def app(self) -> ASGIApp:
        """The application that a server runs: limits, the gate, the doors that need no framework, then the rest."""
        return guarded(
            self.routes(),
            config=self.config,
            catalog=self.catalog,
            catalog_door=self._catalog_door,
            sync_door=self.sync.door,
            authenticator=self.authenticator,
            rates=self._rates,
            refusals=self.statuses.refusals,
            clock=self._clock,
        )

    def routes(self) -> Litestar:
        """Every route, without the gate before it."""
        return make_routes(
            Mounted(
                operations=self.statuses,
                door=self.door,
                catalog_door=self._catalog_door,
                queries=(self._queries.router, self._queries.analyst),
                ingest=self.ingest.routers,
                tuner=self._tuner,
                observer=self._observer,
                tables=self._tables,
                dead_letters=self.dead_letters,
                activity=self.activity,
                maintainer=self.maintainer,
                spark=self.spark,
                clock=self._clock,
            )
        )

    def _retune(self, before: Config, after: Config) -> None:
        """The settings were changed: tell every part that keeps some of them."""
        if after.parquet != before.parquet:
            self.pipeline.restart(after)
        self._log.retune(
            seal_changes=after.log.flush_events,
            seal_bytes=after.log.flush_bytes,
            seal_age_s=after.log.flush_age_s,
            seal_interval_s=after.log.flush_interval_s,
        )
        self._gate.limits = _limits_of(after)
        self.door.retune(connections_max=after.server.connections_max)
        self._rates.retune(after.limits)
        self._gate.pressure.settings = after.limits
        self.maintainer.retune(after.compaction)

    @property
    def config(self) -> Config:
        """The settings, as they are now."""
        return self._tuner.config

    @property
    def lost(self) -> asyncio.Event:
        """Set once the log belongs to another gateway: this one has to end."""
        return self._log.lost

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of."""
        return self._log.lineage

    @property
    def refused(self) -> Counter[str]:
        """Requests that the gate did not let in, by reason."""
        return self.statuses.refusals.by_gate

    def status(self) -> http.Status:
        """Everything that an operator wants to know first."""
        return self.statuses.status()

    def backlog_bytes(self) -> int:
        """Durable, and not yet in the tables."""
        return self.carried.backlog_bytes()

    async def flush(self, timeout_s: float) -> http.Flushed:
        """Seal what is durable, and wait for the tables."""
        return await self.carried.flush(timeout_s)

    # What runs until it is cancelled

    async def maintain(self) -> None:
        """Drop segments that tables and feeds do not need any more."""
        while True:
            await asyncio.sleep(RETENTION_INTERVAL_S)
            retention_ms = round(self.config.log.segment_retention_s * 1000)
            try:
                await self._log.drop_segments(self._is_done_with, retention_ms)
            # The task's edge: what could not be dropped is tried again, and the doors stay open meanwhile.
            except (OSError, MainstemError) as error:
                logger.error("segments could not be dropped: %s", error)
            self.shipper.wake()
            await let_go(self._log, self.carried, self.shipper)

    def _is_done_with(self, segment: SegmentInfo) -> bool:
        return (
            self.carried.covers(segment)
            and self.sync.feeds.is_done_with(segment.last)
            and (self.mongo is None or self.mongo.documents.is_done_with(segment.last))
        )

    async def retain_topics(self) -> None:
        """Let go of what topics need not keep any longer."""
        if self.kafka is not None:
            await self.kafka.retain()

    async def coordinate(self) -> None:
        """Keep the groups and transactions of Kafka's clients going."""
        if self.kafka is not None:
            await self.kafka.coordination.run()

    async def ship(self) -> None:
        """Keep segments where the pipeline's executors can read them."""
        await self.shipper.run()

    async def warm_queries(self) -> None:
        """Start the processes that run queries, so that the first one need not wait for them."""
        await self._queries.engine.warm()

    async def close(self) -> None:
        """Answer what is under way, then let go of everything."""
        if self.kafka is not None:
            await self.kafka.close()
        await self.door.drain(DRAIN_S_MAX)
        await self.sync.door.close()
        if self.mongo is not None:
            await self.mongo.close()
        await self._queries.engine.close()
        await self.spark.close()
        await self.maintainer.close()
        await self._log.close()
        await asyncio.to_thread(self._following.stop)
        await asyncio.to_thread(self.catalog.close)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    loop.call_soon_threadsafe(call, *arguments)
