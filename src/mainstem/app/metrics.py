"""The metrics that Prometheus scrapes: the status, as numbers."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mainstem.admission import RateSettings
from mainstem.admission.quotas import Quota
from mainstem.catalog.reports import Reported
from mainstem.doors.admin.server import Status
from mainstem.doors.cdc.ports import DoorStats
from mainstem.doors.ingest.taking import IngestStats

# Those of `[limits]` that refuse.
RATE_LIMITS = (
    "connections_per_s",
    "messages_per_s",
    "burst",
    "connections_per_source",
    "connections_per_address",
    "connections_per_subnet",
    "requests_per_s",
)
# What Spark did since the pipeline's start: the metric, the total that the pipeline reports, and what it is.
_SPARK_TOTALS = (
    ("passes", "passes", "Micro-batches and catch-ups that Spark carried into the tables."),
    ("input_rows", "rows_in", "Rows of the micro-batches' source as often as Spark read them, by its own progress."),
    ("rows_read", "rows_read", "Changes that Spark's executors read, each once: of micro-batches and catch-ups."),
    ("rows_written", "rows_written", "Rows that Spark's executors wrote: states, histories and dead letters."),
    ("files_written", "files", "Data files that Spark's executors wrote."),
    ("job_seconds", "job_s", "Seconds that Spark's jobs took."),
    ("commit_seconds", "commit_s", "Seconds that lookups of old rows and commits took."),
)
_BREAKER = {"closed": 0, "half-open": 0.5, "open": 1}


class Refused(NamedTuple):
    """What was refused since the start."""

    # Without a good token, by reason.
    by_gate: Mapping[str, int] = {}
    # By the setting of `[limits]` that it was too much for.
    by_limit: Mapping[str, int] = {}
    # Slowed down rather than refused, by the setting of `[kafka.quotas]`.
    by_quota: Mapping[str, int] = {}
    # Over HTTP, by the answer's status.
    by_status: Mapping[int, int] = {}
    # Processes of queries that were killed or died.
    query_processes: int = 0


def render_metrics(
    status: Status,
    door: DoorStats,
    refused: Refused | None = None,
    reports: Mapping[str, Reported] | None = None,
    limits: RateSettings | None = None,
    ingest: IngestStats | None = None,
) -> bytes:
    """One scrape. `reports` is what engines told us, `limits` the limits as they are set now."""
    registry = CollectorRegistry(auto_describe=False)
    if ingest is not None:
        registry.register(_IngestScrape(ingest))
    registry.register(_Scrape(status, door, refused or Refused(), reports or {}, limits or RateSettings()))
    return generate_latest(registry)


class _IngestScrape(Collector):
    """What came over plain HTTP."""

    def __init__(self, stats: IngestStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        for name, text, counts in (
            ("requests", "Requests of the ingest door that were answered as durable.", self._stats.requests),
            ("rows", "Rows that they made durable.", self._stats.rows),
            ("bytes", "Bytes of them in the log.", self._stats.bytes),
            ("duplicates", "Requests whose rows were durable already.", self._stats.duplicates),
        ):
            metric = CounterMetricFamily(f"mainstem_ingest_{name}", text, labels=["format"])
            for label, count in sorted(counts.items()):
                metric.add_metric([label], count)
            yield metric


class _Scrape(Collector):
    def __init__(
        self,
        status: Status,
        door: DoorStats,
        refused: Refused,
        reports: Mapping[str, Reported],
        limits: RateSettings,
    ) -> None:
        self._limits = limits
        self._status = status
        self._reports = reports
        self._refused = refused
        self._door = door

    def collect(self) -> Iterable[Metric]:
        yield from self._gauges()
        yield from self._rate_limits()
        yield from self._counters()
        yield from self._tables()

    def _gauges(self) -> Iterable[Metric]:
        status = self._status
        gauges = {
            "connections": ("Open CDC connections.", status.gateway.connections),
            "gateway_resident_bytes": ("Memory of the gateway.", status.gateway.rss_bytes),
            "pipeline_resident_bytes": (
                "Memory of the JVM of the pipeline.",
                status.pipeline.memory.get("jvm_rss_bytes", 0),
            ),
            "circuit_breaker_open": (
                "1 while the tables' store is left alone, 0.5 while one table tries it.",
                _BREAKER.get(status.pipeline.circuit_breaker.state, 0),
            ),
            "log_durable_position": ("The last change that is durable.", status.log.durable),
            "log_sealed_position": ("The last change that is in a segment.", status.log.sealed),
            "log_segments": ("Segments kept.", status.log.segments),
            "log_segment_bytes": ("Bytes in them.", status.log.segment_bytes),
            "buffer_changes": ("Changes that are durable and not yet in the tables.", status.buffer.event_count),
            "buffer_bytes": ("Bytes of them.", status.buffer.total_size_bytes),
            "buffer_utilization": ("Share of the room for them, 0 to 1.", status.buffer.utilization),
        }
        # A server that was started without a pipeline has none that could be down: the metric has no value there.
        up = None if status.pipeline.state == "off" else int(status.pipeline.running)
        yield GaugeMetricFamily("mainstem_pipeline_up", "1 while the pipeline's process runs.", value=up)
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"mainstem_{name}", text, value=value)

    def _counters(self) -> Iterable[Metric]:
        counters: dict[str, tuple[str, float]] = {
            "connections_opened": ("CDC connections since the start.", self._door.connections_opened),
            "connections_refused": ("Refused at a bound.", self._door.connections_refused),
            "batches": ("Batches made durable.", self._door.batches),
            "changes": ("Changes made durable.", self._door.changes),
            "duplicates": ("Batches that were durable already.", self._door.duplicates),
            "circuit_breaker_openings": (
                "Times that the tables' store was left alone, since the pipeline's start.",
                self._status.pipeline.circuit_breaker.openings,
            ),
            "pipeline_restarts": ("Times that the pipeline was started again.", self._status.pipeline.restarts),
        }
        totals = self._status.pipeline.totals
        counters |= {f"spark_{name}": (text, totals.get(total, 0.0)) for name, total, text in _SPARK_TOTALS}
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"mainstem_{name}", text, value=value)
        steps = CounterMetricFamily(
            "mainstem_spark_step_seconds", "Seconds of micro-batches by step, by Spark's own progress.", labels=["step"]
        )
        for step, taken_s in self._status.pipeline.steps.items():
            steps.add_metric([step], taken_s)
        yield steps
        nacks = CounterMetricFamily("mainstem_nacks", "Refused batches and messages.", labels=["reason"])
        for reason, count in self._door.nacks.items():
            nacks.add_metric([reason], count)
        yield nacks
        refused = CounterMetricFamily("mainstem_auth_refused", "Without a good token.", labels=["reason"])
        for reason, count in self._refused.by_gate.items():
            refused.add_metric([reason], count)
        yield refused
        yield CounterMetricFamily(
            "mainstem_query_processes_replaced",
            "Processes of queries that were killed at their time-out, left by their client, or died.",
            value=self._refused.query_processes,
        )
        yield from self._engines()

    def _rate_limits(self) -> Iterable[Metric]:
        """The limits of rate, what was too much for each, and every refusal over HTTP."""
        limit = GaugeMetricFamily("mainstem_rate_limit", "The limits, as they are set now.", labels=["limit"])
        limited = CounterMetricFamily("mainstem_rate_limited", "Refused by a limit of rate.", labels=["limit"])
        for name in RATE_LIMITS:
            limit.add_metric([name], getattr(self._limits, name))
            limited.add_metric([name], self._refused.by_limit.get(name, 0))
        answers = CounterMetricFamily("mainstem_http_refused", "Answers of 400 and above.", labels=["status"])
        for status, count in sorted(self._refused.by_status.items()):
            answers.add_metric([str(status)], count)
        slowed = CounterMetricFamily(
            "mainstem_kafka_throttled", "Answers that told a Kafka client to be silent for a while.", labels=["quota"]
        )
        for quota in Quota:
            slowed.add_metric([quota], self._refused.by_quota.get(quota, 0))
        yield from (limit, limited, answers, slowed)

    def _engines(self) -> Iterable[Metric]:
        count = CounterMetricFamily("mainstem_catalog_reports", "Reports of engines.", labels=["kind"])
        seconds = CounterMetricFamily(
            "mainstem_catalog_reported_seconds", "What engines took to plan scans, and to commit.", labels=["kind"]
        )
        for kind, told in self._reports.items():
            count.add_metric([kind], told.count)
            seconds.add_metric([kind], told.seconds)
        yield from (count, seconds)

    def _tables(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily("mainstem_table_lag_changes", "Sealed changes not in the table.", labels=["table"])
        covered = GaugeMetricFamily("mainstem_table_covered_position", "What the table covers.", labels=["table"])
        broken = GaugeMetricFamily("mainstem_table_broken", "1 while the table cannot be written.", labels=["table"])
        for name, table in self._status.tables.items():
            lag.add_metric([name], table.lag_changes)
            covered.add_metric([name], table.covered)
            broken.add_metric([name], int(table.error is not None))
        yield from (lag, covered, broken)
        behind = GaugeMetricFamily(
            "mainstem_group_lag_records", "Records that a consumer group has still to read.", labels=["group", "topic"]
        )
        for group, topics in self._status.groups.items():
            for topic, count in topics.items():
                behind.add_metric([group, topic], count)
        yield behind
        letters = GaugeMetricFamily(
            "mainstem_dead_letters", "Changes that did not fit their table.", labels=["table", "reason"]
        )
        replayed = GaugeMetricFamily("mainstem_dead_letters_replayed", "Of them, sent again since.", labels=["table"])
        for name, told in self._status.dead_letters.items():
            replayed.add_metric([name], told.replayed)
            for reason, count in told.reasons.items():
                letters.add_metric([name, reason], count)
        yield from (letters, replayed)
