"""How the pipeline is: what it has done, what fails, since when. Reported to the gateway by HTTP."""

import logging
import resource
import threading
import urllib.request
from collections import deque
from collections.abc import Callable

import msgspec

from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.breaker import Breaker, BreakerReport
from mainstem.runtime.clock import Clock

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 2.0
REPORT_TIMEOUT_S = 5.0
PASSES_MAX = 20


class TableProgress(msgspec.Struct, frozen=True):
    """One table. `error` is why its last attempt failed, `since_ms` when the first of those attempts did."""

    covered: LogPosition = NOWHERE
    error: str | None = None
    since_ms: int | None = None
    attempts: int = 0


class PassReport(msgspec.Struct, frozen=True):
    """What one pass did: the changes that the executors read, the rows and files that they wrote, and the seconds."""

    batch: str
    tables: int
    rows_read: int
    rows_written: int
    files: int
    job_s: float
    commit_s: float


class Report(msgspec.Struct, frozen=True):
    """What the gateway is told."""

    state: str
    batch_id: int | None
    checkpointed_position: LogPosition
    tables: dict[str, TableProgress]
    memory: dict[str, int]
    error: str | None = None
    breaker: BreakerReport = BreakerReport()
    # The newest passes, the last one last; and all since the start, added up.
    passes: list[PassReport] = []
    totals: dict[str, float] = {}


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
        self._tables: dict[TableName, TableProgress] = {}
        self._passes: deque[PassReport] = deque(maxlen=PASSES_MAX)
        self._totals = dict.fromkeys(("passes", "rows_read", "rows_written", "files", "job_s", "commit_s"), 0.0)
        self.changed = threading.Event()

    def passed(self, report: PassReport) -> None:
        """A pass is over."""
        with self._lock:
            self._passes.append(report)
            self._totals["passes"] += 1
            for name in self._totals.keys() - {"passes"}:
                self._totals[name] += getattr(report, name)
        self.changed.set()

    def forget(self, table: TableName) -> None:
        """What a table covers is to be looked up again."""
        with self._lock:
            before = self._tables.get(table, TableProgress())
            self._tables[table] = TableProgress(NOWHERE, before.error, before.since_ms, before.attempts)

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
            self._tables[table] = TableProgress(position)
        self.changed.set()

    def failed(self, table: TableName, error: str) -> int:
        """An attempt failed; returns how many did in a row."""
        with self._lock:
            before = self._tables.get(table, TableProgress())
            since_ms = before.since_ms if before.since_ms is not None else self._clock.now_ms()
            self._tables[table] = TableProgress(before.covered, error, since_ms, before.attempts + 1)
            attempts = self._tables[table].attempts
        self.changed.set()
        return attempts

    def covered(self, table: TableName) -> LogPosition:
        """What a table is known to cover."""
        with self._lock:
            return self._tables.get(table, TableProgress()).covered

    def report(self, memory: dict[str, int]) -> Report:
        """The whole of it, now."""
        with self._lock:
            tables = {str(name): table for name, table in self._tables.items()}
            breaker = self._breaker.report()
            return Report(
                self._state,
                self._batch_id,
                self._checkpointed,
                tables,
                memory,
                self._error,
                breaker,
                list(self._passes),
                dict(self._totals),
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
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._jvm_memory = jvm_memory
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        if self._url is not None:
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
        assert self._url is not None
        body = msgspec.json.encode(self._progress.report(self._memory()))
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=REPORT_TIMEOUT_S) as answer:
                answer.read()
        except OSError as error:
            # The next report says all this one would have said.
            log.debug("the gateway could not be told", extra={"error": str(error)})

    def _memory(self) -> dict[str, int]:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"python_rss_bytes_max": rss_bytes, **self._jvm_memory()}
