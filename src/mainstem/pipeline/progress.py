"""How the pipeline is: what it has done, what fails, since when. Reported to the gateway by HTTP."""

import logging
import resource
import threading
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker
from mainstem.pipeline.channel import Channel
from mainstem.runtime.clock import Clock
from mainstem.wire.reports import MicroBatchStatus, PassStatus, PipelineReport, TableReport

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 2.0
REPORT_TIMEOUT_S = 5.0
PASSES_MAX = 20


class Progress:
    """Collects what every thread of the pipeline does. Safe to use from all of them."""

    def __init__(self, clock: Clock, breaker: Breaker | None = None) -> None:
        self._clock = clock
        self._breaker = breaker or Breaker(clock)
        self._lock = threading.Lock()
        self._state = "starting"
        self._error: str | None = None
        self._batch_id: int | None = None
        self._checkpointed = NOWHERE
        self._tables: dict[TableName, TableReport] = {}
        self._passes: deque[PassStatus] = deque(maxlen=PASSES_MAX)
        self._micro_batches: deque[MicroBatchStatus] = deque(maxlen=PASSES_MAX)
        self._newest = -1
        self._steps: dict[str, float] = {}
        self._totals = dict.fromkeys(
            ("passes", "rows_read", "rows_written", "files", "job_s", "commit_s", "rows_in"), 0.0
        )
        self.changed = threading.Event()

    def passed(self, report: PassStatus) -> None:
        """A pass is over."""
        with self._lock:
            self._totals["passes"] += 1
            self._passes.append(msgspec.structs.replace(report, number=int(self._totals["passes"])))
            for name in self._totals.keys() - {"passes", "rows_in"}:
                self._totals[name] += getattr(report, name)
        self.changed.set()

    def told_by_spark(self, batch_id: int, rows_in: int, steps_ms: Mapping[str, int]) -> None:
        """Spark's progress of its last trigger. Told again, or of a trigger that found nothing new, it says nothing."""
        with self._lock:
            if batch_id <= self._newest or "addBatch" not in steps_ms:
                return
            self._newest = batch_id
            steps = {name: taken_ms / 1000 for name, taken_ms in steps_ms.items()}
            self._micro_batches.append(MicroBatchStatus(batch=str(batch_id), rows_in=rows_in, steps=steps))
            self._totals["rows_in"] += rows_in
            for name, taken_s in steps.items():
                self._steps[name] = self._steps.get(name, 0.0) + taken_s
        self.changed.set()

    def forget(self, table: TableName) -> None:
        """What a table covers is to be looked up again."""
        with self._lock:
            before = self._tables.get(table, TableReport())
            self._tables[table] = msgspec.structs.replace(before, covered=NOWHERE)

    def enter(self, state: str, error: str | None = None) -> None:
        """The process as a whole moves on: starting, warming, running, stopping, stopped, failed."""
        with self._lock:
            self._state, self._error = state, error
        self.changed.set()

    def checkpointed(self, batch_id: int, position: LogPosition) -> None:
        """Spark will not ask again for what is up to here."""
        with self._lock:
            self._batch_id = batch_id
            self._checkpointed = max(self._checkpointed, position)
        self.changed.set()

    def covers(self, table: TableName, position: LogPosition) -> None:
        """A table has come to a position, which ends whatever was wrong with it."""
        with self._lock:
            self._tables[table] = TableReport(covered=position)
        self.changed.set()

    def failed(self, table: TableName, error: str) -> int:
        """An attempt failed; returns how many did in a row."""
        with self._lock:
            before = self._tables.get(table, TableReport())
            since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
            attempts = before.attempts + 1
            self._tables[table] = msgspec.structs.replace(before, error=error, since_ms=since_ms, attempts=attempts)
        self.changed.set()
        return attempts

    def covered(self, table: TableName) -> LogPosition:
        """What a table is known to cover."""
        with self._lock:
            return self._tables.get(table, TableReport()).covered

    def report(self, memory: dict[str, int]) -> PipelineReport:
        """The whole of it, now."""
        with self._lock:
            return PipelineReport(
                state=self._state,
                batch_id=self._batch_id,
                checkpointed_position=self._checkpointed,
                tables={str(name): table for name, table in self._tables.items()},
                memory=memory,
                error=self._error,
                breaker=self._breaker.report(),
                passes=list(self._passes),
                totals=dict(self._totals),
                micro_batches=list(self._micro_batches),
                steps=dict(self._steps),
            )


class Reporter:
    """Posts the report on every change, and every two seconds. The gateway may be away: then it is tried again."""

    def __init__(
        self,
        progress: Progress,
        url: str | None,
        jvm_memory: Callable[[], dict[str, int]],
        token: str | None = None,
    ) -> None:
        self._progress = progress
        self._channel = None if url is None else Channel(url, token)
        self._jvm_memory = jvm_memory
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        if self._channel is not None:
            self._thread.start()

    def stop(self) -> None:
        """Send the last report and end."""
        self._stopping.set()
        self._progress.changed.set()
        if self._thread.is_alive():
            self._thread.join(REPORT_TIMEOUT_S + 1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._progress.changed.wait(REPORT_INTERVAL_S)
            self._progress.changed.clear()
            self._post()
        # What changed while the last report was on its way: a stop must not swallow it.
        self._post()

    def _post(self) -> None:
        assert self._channel is not None
        body = msgspec.json.encode(self._progress.report(self._memory()))
        try:
            self._channel.post("", body, timeout_s=REPORT_TIMEOUT_S)
        except OSError as error:
            # The next report says all this one would have said.
            log.debug("the gateway could not be told", extra={"error": str(error)})

    def _memory(self) -> dict[str, int]:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"python_rss_bytes_max": rss_bytes, **self._jvm_memory()}
