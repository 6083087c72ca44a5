"""The pipeline as the gateway sees it: what its supervisor says of the process, and what the process reports itself."""

from collections.abc import Callable

from mainstem.app.config import Config
from mainstem.app.spark.supervisor import ChildStatus
from mainstem.doors.admin import server as http
from mainstem.model import TableName
from mainstem.runtime.clock import Clock
from mainstem.wire.reports import PipelineReport

_NO_CHILD = ChildStatus(running=False, pid=None, restarts=0, last_exit=None, last_exit_ms=None, last_lines=[])


class PipelineSeen:
    """Knows nothing of a process until `attach`: a gateway answers before Spark is started, and without Spark."""

    def __init__(self, clock: Clock, *, is_wanted: bool) -> None:
        self._clock = clock
        self.is_wanted = is_wanted
        self.report = PipelineReport(state="starting" if is_wanted else "off")
        self._reported_ms: int | None = None
        self._child: Callable[[], ChildStatus] = lambda: _NO_CHILD
        self._restart: Callable[[Config], None] = lambda config: None

    def attach(self, child: Callable[[], ChildStatus], restart: Callable[[Config], None]) -> None:
        """There is a process now: how it is, and how it is started again with other settings."""
        self._child = child
        self._restart = restart

    def restart(self, config: Config) -> None:
        """Start it again: it reads its settings when it starts."""
        self._restart(config)

    def told(self, report: PipelineReport) -> None:
        """The pipeline reported."""
        self.report = report
        self._reported_ms = self._clock.now_ms()

    @property
    def is_recovering(self) -> bool:
        """Whether it ran before, and does not run now."""
        child = self._child()
        return self.is_wanted and child.restarts > 0 and not child.running

    def error_of(self, name: TableName) -> str | None:
        """What stands in the way of a table."""
        told = self.report.tables.get(str(name))
        return None if told is None else told.error

    def status(self) -> http.PipelineStatus:
        """Both views of it together."""
        child = self._child()
        report = self.report
        return http.PipelineStatus(
            state=self._state(child),
            running=child.running,
            pid=child.pid,
            restarts=child.restarts,
            last_exit=child.last_exit,
            last_exit_ms=child.last_exit_ms,
            last_lines=child.last_lines,
            reported_ms=self._reported_ms,
            checkpointed=report.checkpointed_position,
            memory=report.memory,
            error=report.error,
            circuit_breaker=report.breaker,
            passes=report.passes,
            totals=report.totals,
            micro_batches=report.micro_batches,
            steps=report.steps,
        )

    def trouble(self) -> str | None:
        """Why no change comes into a table, in words; None where a process runs."""
        child = self._child()
        if child.running or not self.is_wanted:
            is_off = not self.is_wanted and self.report.state == "off"
            return "a pipeline, which this server was started without" if is_off else None
        return "a pipeline, which is down" + (f": {child.last_exit}" if child.last_exit else "")

    def _state(self, child: ChildStatus) -> str:
        if self.is_wanted and not child.running:
            return "down"
        # What the one before it reported last is not true of a process that was started since.
        is_new = child.last_exit_ms is not None and (self._reported_ms or 0) < child.last_exit_ms
        return "starting" if self.is_wanted and is_new else self.report.state
