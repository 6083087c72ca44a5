"""How far the log is carried into the tables: what commits and the pipeline's reports say, and what doors ask of it.

Lives on the event loop. `committed` alone may be called from another thread.
"""

import asyncio
from collections.abc import Callable, Mapping

from mainstem.app.config import Config
from mainstem.app.covering import Covering
from mainstem.app.spark.seen import PipelineSeen
from mainstem.catalog import Committed, Marks
from mainstem.doors.admin import server as http
from mainstem.doors.cdc.ports import BufferView
from mainstem.log import Coverage, Log, SegmentInfo
from mainstem.model import LogPosition, TableName, parse_table_name
from mainstem.runtime.clock import Clock
from mainstem.tables.settings import Format, TableSettings
from mainstem.wire.cdc import ServerState
from mainstem.wire.reports import PipelineReport


class Carried:
    """The backlog between log and tables. `config` gives the settings as they are now."""

    def __init__(
        self,
        log: Log,
        pipeline: PipelineSeen,
        clock: Clock,
        *,
        config: Callable[[], Config],
        settings_of: Callable[[TableName], TableSettings],
        warehouse: str,
    ) -> None:
        self._log = log
        self._pipeline = pipeline
        self._clock = clock
        self._config = config
        self._settings_of = settings_of
        self._warehouse = warehouse
        self._covering = Covering(settings_of, lambda: log.lineage)
        self._coverage = _coverage_of(log)
        self._loop = asyncio.get_running_loop()
        self._flushing = 0
        log.on_sealed(self._coverage.sealed)

    def committed(self, commit: Committed) -> None:
        """A table was committed to. Called in the thread of the commit; the coverage lives on the loop."""
        self._loop.call_soon_threadsafe(self.covered, commit.table, commit.marks, commit.snapshot_id)

    def covered(self, physical: TableName, marks: Marks, snapshot_id: int | None) -> None:
        """The same, on the loop."""
        news = self._covering.committed(physical, marks, snapshot_id)
        if news is not None:
            self._coverage.covered(*news)

    def report(self, report: PipelineReport) -> None:
        """The pipeline reported. Delta tables do not commit through the catalog: they cover what their writer says."""
        self._pipeline.told(report)
        for text, told in report.tables.items():
            name = parse_table_name(text)
            if self._settings_of(name).format is Format.DELTA or not self._covering.knows(name):
                self._coverage.covered(name, LogPosition(told.covered))

    def covers(self, segment: SegmentInfo) -> bool:
        """Whether all tables have a segment, and the stream has noted that it saw it."""
        return segment.last <= self._pipeline.report.checkpointed_position and self._coverage.is_covered(segment)

    def tables(self) -> Mapping[str, http.TableStatus]:
        """Each table: logged, covered, and what stands in the way."""
        return {
            str(name): http.TableStatus(
                logged=lag.logged,
                covered=lag.covered,
                lag_changes=lag.changes_behind,
                snapshot_id=self._covering.snapshots.get(name),
                error=self._pipeline.error_of(name),
            )
            for name, lag in self._coverage.lag().items()
        }

    def held(self) -> dict[TableName, LogPosition]:
        """What each table covers of the log."""
        return {name: lag.covered for name, lag in self._coverage.lag().items()}

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
        return min(1.0, self.backlog_bytes() / self._config().log.buffer_bytes_max)

    def breaker(self) -> str | None:
        """The state of the breaker around the commits, as the pipeline told it."""
        return self._pipeline.report.breaker.state

    def persisted_path(self) -> str | None:
        """The warehouse: below it are the tables that a persisted batch is in."""
        return self._warehouse

    def view(self) -> BufferView:
        """The backlog, in the CDC protocol's words."""
        stats = self._log.stats()
        interval_ms = round(self._config().log.flush_interval_s * 1000)
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
            name: http.FlushedTable(covered=table.covered, snapshot_id=table.snapshot_id, error=table.error)
            for name, table in self.tables().items()
        }
        elapsed_ms = round((self._clock.monotonic_s() - began_s) * 1000)
        waits_for = None if complete else self._pipeline.trouble()
        return http.Flushed(
            complete=complete, position=position, elapsed_ms=elapsed_ms, tables=tables, waits_for=waits_for
        )

    def _state(self) -> ServerState:
        stats = self._log.stats()
        if stats.refusing is not None:
            return ServerState.ERROR
        if self._pipeline.is_recovering:
            return ServerState.RECOVERING
        if self._flushing or stats.sealing:
            return ServerState.FLUSHING
        return ServerState.RECEIVING if self._log.durable > self.watermark else ServerState.IDLE


def _coverage_of(log: Log) -> Coverage:
    segments = log.segments()
    coverage = Coverage(start=LogPosition(segments[0].first - 1) if segments else log.sealed)
    for segment in segments:
        coverage.sealed(segment)
    return coverage
