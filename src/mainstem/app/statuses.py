"""What an operator is told: the status and the metrics, gathered from the parts when they are asked for."""

import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mainstem.admission import Principal, Rates
from mainstem.app.carried import Carried
from mainstem.app.metrics import Refused, render_metrics
from mainstem.app.pages.letters import DeadLetters
from mainstem.app.spark.seen import PipelineSeen
from mainstem.app.spark.shipping import Shipper
from mainstem.app.tuning import Tuner
from mainstem.app.version import VERSION
from mainstem.catalog import Catalog
from mainstem.doors.admin import server as http
from mainstem.doors.cdc.ws import CdcDoor
from mainstem.doors.ingest.taking import IngestStats
from mainstem.log import Log
from mainstem.query.engine import QueryEngine
from mainstem.runtime.clock import Clock
from mainstem.runtime.memory import rss_bytes
from mainstem.wire.reports import PipelineReport

if TYPE_CHECKING:
    from mainstem.app.kafka.wiring import Kafka
    from mainstem.log.kafka.records import Peer


@dataclass(frozen=True, slots=True)
class Refusals:
    """What was not let in: requests without a good token, by reason; HTTP answers of 400 and above, by status."""

    by_gate: Counter[str] = field(default_factory=Counter)
    by_status: Counter[int] = field(default_factory=Counter)


class Peers(Protocol):
    """What other gateways know of this one."""

    @property
    def peer(self) -> "Peer | None": ...

    @property
    def received(self) -> int: ...


@dataclass(slots=True, kw_only=True)
class Statuses:
    """Behind `/status`, `/metrics`, `/flush` and the pipeline's reports."""

    tuner: Tuner
    log: Log
    carried: Carried
    pipeline: PipelineSeen
    catalog: Catalog
    engine: QueryEngine
    door: CdcDoor
    rates: Rates
    refusals: Refusals
    ingest: IngestStats
    dead_letters: DeadLetters
    shipper: Shipper
    kafka: "Kafka | None"
    clock: Clock
    started_ms: int
    # Where several gateways are over one log.
    peers: Peers | None = None

    def status(self) -> http.Status:
        """Everything that an operator wants to know first."""
        stats = self.log.stats()
        view = self.carried.view()
        pipeline = self.pipeline.status()
        tables = dict(self.carried.tables())
        broken = [f"{name}: {table.error}" for name, table in tables.items() if table.error]
        # Why the pipeline ended, until it runs again: from then on nothing is wrong any more.
        ended = None if pipeline.state == "running" else pipeline.last_exit
        last_error = next(iter(broken), None) or stats.refusing or stats.last_error or pipeline.error or ended
        torn = self.log.recovered
        return http.Status(
            state=str(view.state),
            gateway=http.GatewayStatus(
                version=VERSION,
                pid=os.getpid(),
                started_ms=self.started_ms,
                uptime_s=(self.clock.now_ms() - self.started_ms) / 1000,
                rss_bytes=rss_bytes(),
                connections=self.door.connection_count,
                peers=self._peers(),
            ),
            log=http.LogStatus(
                id=self.log.lineage.log,
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

    def _peers(self) -> http.PeersStatus | None:
        if self.peers is None:
            return None
        peer = self.peers.peer
        return http.PeersStatus(
            leader=f"{socket.gethostname()}:{os.getpid()}",
            address=None if peer is None else peer.at,
            received=self.peers.received,
        )

    def metrics(self, principal: Principal) -> bytes:
        """The same for Prometheus."""
        refused = Refused(
            by_gate=self.refusals.by_gate,
            by_limit=self.rates.refused,
            by_quota={} if self.kafka is None else self.kafka.quotas.throttled,
            by_status=self.refusals.by_status,
            query_processes=self.engine.sandboxes.replaced,
        )
        return render_metrics(
            http.visible(self.status(), principal),
            self.door.stats,
            refused,
            self.catalog.reports.totals(),
            self.tuner.config.limits,
            self.ingest,
        )

    def bounds(self) -> dict[str, tuple[int, int]]:
        """What is in use of what the configuration bounds."""
        config = self.tuner.config
        return {
            "backlog": (self.carried.backlog_bytes(), config.log.buffer_bytes_max),
            "connections": (self.door.connection_count, config.server.connections_max),
        }

    async def flush(self, timeout_s: float) -> http.Flushed:
        """Seal what is durable, and wait for the tables."""
        return await self.carried.flush(timeout_s)

    def report(self, report: PipelineReport) -> None:
        """The pipeline told how it is."""
        self.carried.report(report)
