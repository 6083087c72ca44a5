"""The gateway: every part of the front process, built and wired. No part knows another but through its arguments."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp

from mainstem.admission import Authenticator, Dedup, Gate, Intake, Limits, Principal, Rates, Role, Users
from mainstem.app.config import Config
from mainstem.app.covering import Covering
from mainstem.app.folder.home import settle_home
from mainstem.app.folder.vouching import vouch
from mainstem.app.following import Following
from mainstem.app.ingest import make_ingest
from mainstem.app.insight import Observer
from mainstem.app.maintaining import Maintainer
from mainstem.app.metrics import Refused, render_metrics
from mainstem.app.mongo import Mongo, make_mongo
from mainstem.app.pages.activity import Activity
from mainstem.app.pages.letters import DeadLetters
from mainstem.app.pages.tables import Tables
from mainstem.app.query import CatalogLake, Queries, open_queries
from mainstem.app.spark.objectstore import delta_tables, engine_settings, segments_url
from mainstem.app.spark.queries import SparkQueries
from mainstem.app.spark.shipping import Shipper
from mainstem.app.spark.supervisor import ChildStatus
from mainstem.app.sync.declared import DeclaredTypes
from mainstem.app.sync.history import LakeHistory
from mainstem.app.sync.schemas import LakeSchemas
from mainstem.app.sync.wiring import make_sync, push_limits
from mainstem.app.tuning import Tuner
from mainstem.app.version import VERSION
from mainstem.catalog import Committed, Marks, Store
from mainstem.catalog.settings import make_catalog, open_store
from mainstem.catalog.tokens import TokenExpired, TokenRefused
from mainstem.doors.admin import server as http
from mainstem.doors.admin.activity import activity_router
from mainstem.doors.admin.config import config_router
from mainstem.doors.admin.insight import insight_router
from mainstem.doors.admin.letters import letters_router
from mainstem.doors.admin.maintenance import compaction_router
from mainstem.doors.admin.tables import tables_router
from mainstem.doors.catalog.door import CatalogDoor, before, catalog_router
from mainstem.doors.cdc.ports import BufferView, CdcSettings
from mainstem.doors.cdc.ws import CdcDoor, cdc_route
from mainstem.doors.console.door import console_router, openapi_config, sign_in, sign_in_policy
from mainstem.doors.http.access import check_access
from mainstem.doors.http.auth import AuthGate
from mainstem.doors.http.bodies import check_body
from mainstem.doors.http.lakehouse import UnderLakehouse
from mainstem.doors.http.origins import Origins
from mainstem.doors.http.rates import Limited
from mainstem.doors.http.refusals import failed, refused
from mainstem.doors.mongo.server import MongoSettings
from mainstem.doors.query.door import scope_of_principal
from mainstem.doors.query.spark import spark_queries_router
from mainstem.feeds.tap import Tap
from mainstem.feeds.topics.sections import Sections, register_sections
from mainstem.feeds.topics.state import TopicsState
from mainstem.log import Coverage, Log, LogSettings, SegmentInfo
from mainstem.log.companion import Companions
from mainstem.log.disk import Disk
from mainstem.model import Lineage, LogPosition, MainstemError, TableName, parse_table_name
from mainstem.query.route import RouteSettings
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.runtime.memory import rss_bytes
from mainstem.tables.kinds import settings_of_kind
from mainstem.tables.settings import Format, TableSettings
from mainstem.wire.cdc import ServerState

if TYPE_CHECKING:
    from mainstem.app.kafka.wiring import Kafka

logger = logging.getLogger(__name__)

DRAIN_S_MAX = 1.0
RETENTION_INTERVAL_S = 10.0
_NO_CHILD = ChildStatus(running=False, pid=None, restarts=0, last_exit=None, last_exit_ms=None, last_lines=[])


class _Routes(Litestar):
    """Litestar, less its plugins for pydantic and attrs, whose import takes 0.1 s: we have no such models."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def _limits_of(config: Config) -> Limits:
    """What a batch may be at most."""
    return Limits(
        backlog_bytes_max=config.log.buffer_bytes_max,
        payload_bytes_max=config.limits.payload_bytes_max,
        event_bytes_max=config.limits.event_bytes_max,
    )


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
    ) -> None:
        config = self._config = tuner.config
        self._tuner = tuner
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._loop = asyncio.get_running_loop()
        self._log = log
        self.authenticator = Authenticator(config.auth, clock)
        self._topics = topics
        self._covering = Covering(self._table_settings, lambda: log.lineage)
        self._coverage = _coverage_of(log)
        self._log.on_sealed(self._coverage.sealed)
        self.shipper = Shipper(log, segments_url(config.catalog, log.lineage.log), config.catalog.io)
        self.catalog = make_catalog(config.catalog, store, data, clock, self._on_commit)
        self.spark = SparkQueries(clock)
        lake = CatalogLake(self.catalog, cache(partial(delta_tables, config.catalog, data)))
        self.catalog.other_inventory = lake.other_inventory
        self._queries: Queries = open_queries(
            lake,
            engine_settings(config.catalog, self.catalog.warehouse, config.query.memory_bytes_max),
            log=log,
            route=RouteSettings(bytes_max=config.query.gateway_bytes_max, rows_max=config.query.gateway_rows_max),
            big=self.spark if config.pipeline.enabled else None,
            scope=scope_of_principal,
            io=config.catalog.io,
        )
        self.following = Following(self.catalog)
        for table in self.catalog.tables():
            self._on_covered(table.table, table.marks, table.snapshot_id)
        self.maintainer = Maintainer(self.catalog, config.compaction, data / "pipeline", clock, lake.delta)
        self._report = http.PipelineReport(state="starting" if config.pipeline.enabled else "off")
        self._reported_ms: int | None = None
        self._flushing = 0
        # Requests that the gate did not let in, by reason.
        self.refused: Counter[str] = Counter()
        # And answers over HTTP of 400 and above, by status.
        self.http_refused: Counter[int] = Counter()
        # Set by whoever supervises the pipeline's process.
        self.child: Callable[[], ChildStatus] = lambda: _NO_CHILD
        # Set by the same: the pipeline reads its settings when it starts.
        self.restart_pipeline: Callable[[Config], None] = lambda config: None
        self.observer = Observer(self.catalog, log, clock, self.status, lake.delta)
        self.observer.bounds = self._bounds
        self._tables = Tables(self.catalog, self.observer, self.status, lambda: log.lineage, clock)
        tuner.apply = self._retune
        self.rates = Rates(config.limits, clock=clock)
        gate = self._gate = Gate(dedup, _limits_of(config), self.backlog_bytes, rates=self.rates)
        tap = Tap(log)
        history = LakeHistory(lake, self._queries.engine)
        self.sync = make_sync(
            data=data,
            log=log,
            tap=tap,
            gate=gate,
            limits=push_limits(config.log.buffer_bytes_max),
            backlog_bytes=self.backlog_bytes,
            flusher=self,
            clock=clock,
            connections_max=config.server.connections_max,
            history=history,
            declared=DeclaredTypes(self.catalog, config),
            lake_schemas=LakeSchemas(self.catalog, config),
            lineage=lambda: log.lineage,
            watermark=lambda: self.watermark,
        )
        intake = Intake(gate, tap)
        kind_of = self._topics.kind_of
        self.dead_letters = DeadLetters(self.catalog, lake.delta, self._queries.engine, intake, kind_of)
        self.activity = Activity(
            dedup,
            clock,
            durable=lambda: log.durable,
            carried=lambda: self.watermark,
            connections=lambda: (self.door.connection_count, self.sync.door.connection_count),
        )
        self.kafka: Kafka | None = None
        if config.kafka.enabled:
            # Loaded only where it is wanted: a gateway without it starts sooner.
            from mainstem.app.kafka.wiring import make_kafka

            self.kafka = make_kafka(
                config=config.kafka,
                state=topics,
                log=log,
                tap=tap,
                gate=gate,
                backlog_bytes=self.backlog_bytes,
                backlog_bytes_max=config.log.buffer_bytes_max,
                lake=lake,
                history=history,
                clock=clock,
                host=config.server.host,
                sections=sections,
                users=Users(config.users),
                tokens=self.authenticator,
            )
        self.mongo: Mongo | None = None
        if config.mongo.is_on:
            self.mongo = make_mongo(
                data=data,
                log=log,
                tap=tap,
                gate=gate,
                backlog_bytes=self.backlog_bytes,
                backlog_bytes_max=config.log.buffer_bytes_max,
                lake=lake,
                engine=self._queries.engine,
                dispatcher=self._queries.dispatcher,
                covered=lambda name: log.lineage.covered(lake.marks(name)),
                users=Users(config.users),
                clock=clock,
                settings=MongoSettings(
                    connections_max=config.mongo.connections_max,
                    advertise=config.mongo.advertise,
                    ttl_interval_s=config.mongo.ttl_interval_s,
                ),
            )
        self.ingest = make_ingest(config, gate, tap, self.backlog_bytes)
        self.door = CdcDoor(
            intake=intake,
            persisted=self,
            flusher=self,
            status=self,
            clock=clock,
            settings=CdcSettings(connections_max=config.server.connections_max),
        )

    @classmethod
    async def open(
        cls, config: Config, data: Path, *, clock: Clock | None = None, disk: Disk | None = None
    ) -> "Gateway":
        """Recover the log and the catalog, and be ready to serve."""
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
        )
        topics = TopicsState()
        sections = register_sections(topics)
        log = await Log.open(settings, companion=Companions(dedup, {"topics": topics}), clock=clock, disk=disk)
        if log.recovered is not None:
            torn = log.recovered
            logger.warning("cut a torn tail that was never acknowledged: %s", torn)
        try:
            store = await asyncio.to_thread(open_store, config.catalog, data)
            await asyncio.to_thread(settle_home, config.catalog, data, store)
            await vouch(log, store, partial(delta_tables, config.catalog, data))
            gateway = cls(tuner, log, dedup, topics, sections, store, data, clock)
        except BaseException:
            await log.close()
            raise
        gateway.following.start()
        await gateway.sync.feeds.start()
        if gateway.kafka is not None:
            await gateway.kafka.load_tail()
        if gateway.mongo is not None:
            await gateway.mongo.start()
        return gateway

    def app(self) -> ASGIApp:
        """The application that a server runs: limits, the gate, the doors that need no framework, then the rest."""
        catalog = CatalogDoor(self.catalog)
        gate = AuthGate(
            self.sync.door.before(before(self.routes(), catalog)),
            self.authenticator,
            self._clock,
            fallback=self._catalog_client,
            gives_tokens=self.catalog.tokens.is_required,
            origins=Origins(self._config.server.hosts, is_cross_origin=self.sync.door.is_cross_origin),
            sign_in=sign_in,
            sign_in_policy=sign_in_policy(),
            refuses_itself=self.sync.door.is_ours,
            find=catalog.at_hand,
        )
        self.refused = gate.refused
        waits_s = self._config.server.request_timeout_s
        limited = Limited(gate, self.rates, self._clock, find=gate.at_hand, request_timeout_s=waits_s)
        self.http_refused = limited.refused
        return UnderLakehouse(limited, find=limited.at_hand, request_timeout_s=waits_s)

    def _catalog_client(self, path: str, token: str) -> Principal | None:
        """Whoever has a token that the catalog gave out, on the catalog's own paths."""
        if not self.catalog.tokens.is_required or not path.startswith("/v1/"):
            return None
        try:
            client = self.catalog.tokens.check(token)
        except (TokenExpired, TokenRefused):
            return None
        return Principal(sub=client, role=Role.WRITER, namespaces=None)

    def routes(self) -> Litestar:
        """Every route, without the gate before it."""
        return _Routes(
            route_handlers=[
                cdc_route(self.door),
                http.operations_router(self),
                catalog_router(self.catalog),
                self._queries.router,
                self._queries.analyst,
                config_router(self._tuner),
                insight_router(self.observer),
                *self.ingest.routers,
                tables_router(self._tables),
                letters_router(self.dead_letters),
                activity_router(self.activity),
                console_router(self._clock),
                compaction_router(self.maintainer),
                spark_queries_router(self.spark),
            ],
            openapi_config=openapi_config(VERSION),
            logging_config=None,
            guards=[check_access],
            before_request=check_body,
            exception_handlers={MainstemError: failed, HTTPException: refused},
        )

    def _retune(self, config: Config) -> None:
        """The settings were changed: tell everybody who holds one of them."""
        if config.parquet != self._config.parquet:
            self.restart_pipeline(config)
        self._config = config
        self._log.retune(
            seal_changes=config.log.flush_events,
            seal_bytes=config.log.flush_bytes,
            seal_age_s=config.log.flush_age_s,
            seal_interval_s=config.log.flush_interval_s,
        )
        self._gate.limits = _limits_of(config)
        self.door.retune(connections_max=config.server.connections_max)
        self.rates.retune(config.limits)
        self._gate.pressure.settings = config.limits
        self.maintainer.retune(config.compaction)

    @property
    def config(self) -> Config:
        """The settings, as they are now."""
        return self._config

    def _bounds(self) -> dict[str, tuple[int, int]]:
        """What is in use of what the configuration bounds."""
        return {
            "backlog": (self.backlog_bytes(), self._config.log.buffer_bytes_max),
            "connections": (self.door.connection_count, self._config.server.connections_max),
        }

    async def maintain(self) -> None:
        """Drop segments that nobody needs any more, until cancelled."""
        while True:
            await asyncio.sleep(RETENTION_INTERVAL_S)
            retention_ms = round(self._config.log.segment_retention_s * 1000)
            try:
                await self._log.drop_segments(self._is_done_with, retention_ms)
            # The task's edge: what could not be dropped is tried again, and the doors stay open meanwhile.
            except (OSError, MainstemError) as error:
                logger.error("segments could not be dropped: %s", error)
            self.shipper.wake()

    async def retain_topics(self) -> None:
        """Let go of what topics need not keep any longer, until cancelled."""
        if self.kafka is not None:
            await self.kafka.retain()

    async def warm_queries(self) -> None:
        """Start the processes that run queries, so that the first one need not wait for them."""
        await self._queries.engine.warm()

    async def coordinate(self) -> None:
        """Keep the groups and transactions of Kafka's clients going, until cancelled."""
        if self.kafka is not None:
            await self.kafka.coordination.run()

    async def ship(self) -> None:
        """Keep segments where the pipeline's executors can read them, until cancelled."""
        await self.shipper.run()

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
        await asyncio.to_thread(self.following.stop)
        await asyncio.to_thread(self.catalog.close)

    def _table_settings(self, name: TableName) -> TableSettings:
        """How a table is stored: as the configuration says, or as the topic that it is."""
        kind = "" if str(name) in self._config.tables else self._topics.kind_of(name)
        return settings_of_kind(kind, self._config.parquet) if kind else self._config.table(name)

    # Coverage

    def _on_commit(self, committed: Committed) -> None:
        """In the thread of the commit: the coverage lives on the loop."""
        self._loop.call_soon_threadsafe(self._on_covered, committed.table, committed.marks, committed.snapshot_id)
        self._loop.call_soon_threadsafe(self.sync.declared.committed, committed.table, committed.snapshot_id)
        self._loop.call_soon_threadsafe(self.dead_letters.committed, committed.table)

    def _on_covered(self, physical: TableName, marks: Marks, snapshot_id: int | None) -> None:
        news = self._covering.committed(physical, marks, snapshot_id)
        if news is not None:
            self._coverage.covered(*news)

    def _is_done_with(self, segment: SegmentInfo) -> bool:
        return (
            segment.last <= self._report.checkpointed_position
            and self._coverage.is_covered(segment)
            and self.sync.feeds.is_done_with(segment.last)
            and (self.mongo is None or self.mongo.documents.is_done_with(segment.last))
        )

    @property
    def lineage(self) -> Lineage:
        """Which log the positions are of."""
        return self._log.lineage

    # What the CDC door asks

    @property
    def watermark(self) -> LogPosition:
        """Every change up to here is in its tables."""
        return self._coverage.watermark

    def on_advance(self, listener: Callable[[LogPosition], None], /) -> Callable[[], None]:
        """Hear of each new watermark."""
        return self._coverage.on_advance(listener)

    def backlog_bytes(self) -> int:
        """Durable, and not yet in the tables."""
        return self._log.unsealed_bytes + self._coverage.bytes_behind

    def utilization(self) -> float:
        """How much of the room for the backlog is taken."""
        return min(1.0, self.backlog_bytes() / self._config.log.buffer_bytes_max)

    def breaker(self) -> str | None:
        """The state of the breaker around the commits, as the pipeline told it."""
        return self._report.breaker.state

    def persisted_path(self) -> str | None:
        """The warehouse: below it are the tables that a persisted batch is in."""
        return self.catalog.warehouse

    def view(self) -> BufferView:
        """The backlog, in the CDC protocol's words."""
        stats = self._log.stats()
        interval_ms = round(self._config.log.flush_interval_s * 1000)
        oldest_ms = stats.unsealed_oldest_ms
        return BufferView(
            state=self._state(),
            batch_count=stats.unsealed_batches,
            event_count=self._log.durable - self.watermark,
            size_bytes=self.backlog_bytes(),
            utilization=self.utilization(),
            oldest_ms=oldest_ms,
            newest_ms=stats.unsealed_newest_ms,
            last_flush_ms=stats.last_seal_ms,
            next_flush_ms=None if oldest_ms is None else oldest_ms + interval_ms,
        )

    def _state(self) -> ServerState:
        stats = self._log.stats()
        child = self.child()
        if stats.refusing is not None:
            return ServerState.ERROR
        if self._config.pipeline.enabled and child.restarts and not child.running:
            return ServerState.RECOVERING
        if self._flushing or stats.sealing:
            return ServerState.FLUSHING
        return ServerState.RECEIVING if self._log.durable > self.watermark else ServerState.IDLE

    # What the HTTP door asks

    async def flush(self, timeout_s: float, /) -> http.Flushed:
        """Seal what is durable, and wait for the tables. Raises Overloaded only where the log cannot be sealed."""
        began_s = self._clock.monotonic_s()
        self._flushing += 1
        try:
            position = await self._log.flush()
            left_s = max(0.0, timeout_s - (self._clock.monotonic_s() - began_s))
            complete = await self._coverage.wait_for(position, left_s)
        finally:
            self._flushing -= 1
        tables = {
            str(name): http.FlushedTable(
                covered=lag.covered, snapshot_id=self._covering.snapshots.get(name), error=self._error_of(name)
            )
            for name, lag in self._coverage.lag().items()
        }
        elapsed_ms = round((self._clock.monotonic_s() - began_s) * 1000)
        return http.Flushed(complete=complete, position=position, elapsed_ms=elapsed_ms, tables=tables)

    def report(self, report: http.PipelineReport) -> None:
        """The pipeline told how it is."""
        self._report = report
        self._reported_ms = self._clock.now_ms()
        # Delta tables do not commit through the catalog: what they cover is what their writer says.
        for text, told in report.tables.items():
            name = parse_table_name(text)
            if self._table_settings(name).format is Format.DELTA or not self._covering.knows(name):
                self._coverage.covered(name, LogPosition(told.covered))

    def status(self) -> http.Status:
        """Everything that an operator wants to know first."""
        stats = self._log.stats()
        view = self.view()
        pipeline = self._pipeline_status()
        tables = self._table_statuses()
        broken = [f"{name}: {table.error}" for name, table in tables.items() if table.error]
        last_error = (
            next(iter(broken), None) or stats.refusing or stats.last_error or pipeline.error or pipeline.last_exit
        )
        torn = self._log.recovered
        return http.Status(
            state=str(view.state),
            gateway=http.GatewayStatus(
                version=VERSION,
                pid=os.getpid(),
                started_ms=self._started_ms,
                uptime_s=(self._clock.now_ms() - self._started_ms) / 1000,
                rss_bytes=rss_bytes(),
                connections=self.door.connection_count,
            ),
            log=http.LogStatus(
                id=self._log.lineage.log,
                durable=stats.durable,
                sealed=stats.sealed,
                segments=stats.segments,
                segment_bytes=stats.segment_bytes,
                recovered=None if torn is None else f"{torn.bytes} bytes cut at {torn.path.name}:{torn.offset}",
                last_error=stats.refusing or stats.last_error or self.shipper.error,
            ),
            buffer=http.BufferStatus(
                event_count=view.event_count,
                total_size_bytes=view.size_bytes,
                utilization=view.utilization,
                oldest_batch_time=view.oldest_ms,
                last_flush_time=view.last_flush_ms,
                next_flush_time=view.next_flush_ms,
            ),
            pipeline=pipeline,
            tables=tables,
            groups={} if self.kafka is None else self.kafka.coordination.lag_by_topic(),
            dead_letters=self.dead_letters.counts,
            last_error=last_error,
        )

    def metrics(self, principal: Principal) -> bytes:
        """The same for Prometheus."""
        status = http.visible(self.status(), principal)
        refused = Refused(
            by_gate=self.refused,
            by_limit=self.rates.refused,
            by_quota={} if self.kafka is None else self.kafka.quotas.throttled,
            by_status=self.http_refused,
            query_processes=self._queries.engine.sandboxes.replaced,
        )
        return render_metrics(
            status,
            self.door.stats,
            refused,
            self.catalog.reports.totals(),
            self._config.limits,
            self.ingest.taking.stats,
        )

    def _pipeline_status(self) -> http.PipelineStatus:
        child = self.child()
        state = self._report.state
        if self._config.pipeline.enabled and not child.running:
            state = "down"
        return http.PipelineStatus(
            state=state,
            running=child.running,
            pid=child.pid,
            restarts=child.restarts,
            last_exit=child.last_exit,
            last_exit_ms=child.last_exit_ms,
            last_lines=child.last_lines,
            reported_ms=self._reported_ms,
            checkpointed=self._report.checkpointed_position,
            memory=self._report.memory,
            error=self._report.error,
            circuit_breaker=http.BreakerStatus(**msgspec.structs.asdict(self._report.breaker)),
            passes=[http.PassStatus(**msgspec.structs.asdict(each)) for each in self._report.passes],
            totals=self._report.totals,
        )

    def _table_statuses(self) -> dict[str, http.TableStatus]:
        return {
            str(name): http.TableStatus(
                logged=lag.logged,
                covered=lag.covered,
                lag_changes=lag.changes_behind,
                snapshot_id=self._covering.snapshots.get(name),
                error=self._error_of(name),
            )
            for name, lag in self._coverage.lag().items()
        }

    def _error_of(self, name: TableName) -> str | None:
        told = self._report.tables.get(str(name))
        return None if told is None else told.error


def _coverage_of(log: Log) -> Coverage:
    segments = log.segments()
    coverage = Coverage(start=LogPosition(segments[0].first - 1) if segments else log.sealed)
    for segment in segments:
        coverage.sealed(segment)
    return coverage
