"""Runs the gateway's jobs of maintenance: asks for one, does it, tells how it goes. One at a time, beside the lanes."""

import logging
import threading
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from mainstem.model.errors import MainstemError
from mainstem.model.names import TableName
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.runtime.clock import Clock
from mainstem.tables.maintenance import Step
from mainstem.wire.jobs import Job, JobNews, JobOrder, JobState

log = logging.getLogger(__name__)

WAIT_S = 20.0
PAUSE_S = 2.0
TELL_INTERVAL_S = 0.5
_ANSWER_S_MAX = 10.0
_MESSAGE_LENGTH_MAX = 500

T = TypeVar("T")


class Link:
    """The gateway, for jobs. The pipeline always asks; nobody connects to it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def next(self, worker: str) -> Job | None:
        """The next job; None where there is none for a while."""
        query = urllib.parse.urlencode({"worker": worker, "waitS": WAIT_S})
        body = self._ask("GET", f"{self._url}?{query}", None, WAIT_S + _ANSWER_S_MAX)
        return msgspec.json.decode(body, type=Job) if body else None

    def tell(self, job: Job, news: JobNews) -> JobOrder:
        """Tell how a job goes; the answer says whether to go on."""
        body = self._ask("POST", f"{self._url}/{job.id}", msgspec.json.encode(news), _ANSWER_S_MAX)
        return msgspec.json.decode(body, type=JobOrder)

    def _ask(self, method: str, url: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(url, body, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content: bytes = answer.read()
            return content


class JobRunner:
    """A thread that does one job after the other until it is told to stop.

    `maintenance` is called for the first job, in the thread of the jobs: it takes a session of its own.
    """

    def __init__(self, link: Link, maintenance: Callable[[], Maintenance], clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._make_maintenance = maintenance
        self._maintenance: Maintenance | None = None
        self._worker = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._cancelled = False
        self._told_s = 0.0

    def stop(self) -> None:
        """Begin nothing more. What is in hand ends with its group or step, or dies with the process: it is repeated."""
        self._stopping.set()

    def run(self) -> None:
        """Do jobs until stopped."""
        while not self._stopping.is_set():
            try:
                job = self._link.next(self._worker)
            except (OSError, msgspec.DecodeError) as error:
                log.debug("no jobs from the gateway: %s", error)
                self._stopping.wait(PAUSE_S)
                continue
            if job is not None:
                self._do(job)

    def _do(self, job: Job) -> None:
        self._cancelled = False
        progress: dict[str, dict[str, int]] = {}

        def on_progress(step: Step, done: Mapping[str, int]) -> None:
            progress[str(step)] = _camel(done)
            self._tell(job, JobNews(state=JobState.RUNNING, progress=dict(progress)))

        namespace, _, table = job.table.rpartition(".")
        try:
            self._maintenance = self._maintenance or self._make_maintenance()
            results = self._maintenance.run(
                TableName(namespace, table),
                [Step(step) for step in job.steps],
                changes=job.settings,
                partitions=job.partitions,
                dry_run=job.dry_run,
                force=job.force,
                on_progress=on_progress,
                go_on=lambda: not (self._cancelled or self._stopping.is_set()),
            )
            ended = {step: _camel(done) for step, done in results.items()}
            news = JobNews(state=JobState.DONE, progress=ended)
        except Exception as error:
            # The edge of a job: whatever is wrong with one stays with it.
            log.exception("maintenance failed", extra={"table": job.table})
            message = str(error) if isinstance(error, MainstemError) else f"{type(error).__name__}: {error}"
            news = JobNews(state=JobState.FAILED, progress=progress, error=message[:_MESSAGE_LENGTH_MAX])
        if news.state is JobState.DONE and self._stopping.is_set():
            # Cut short: the next pipeline takes it up again.
            return
        self._tell(job, news)

    def _tell(self, job: Job, news: JobNews) -> None:
        now_s = self._clock.monotonic_s()
        if news.state is JobState.RUNNING and now_s - self._told_s < TELL_INTERVAL_S:
            return
        self._told_s = now_s
        try:
            self._cancelled = self._cancelled or not self._link.tell(job, news).go_on
        except (OSError, msgspec.DecodeError) as error:
            # It is asked again when this process is gone; the work itself is in the tables.
            log.warning("the gateway could not be told of a job: %s", error)


def _camel(done: Mapping[str, int]) -> dict[str, int]:
    """Numbers as the JSON of this server names them."""
    return {_camel_name(name): value for name, value in done.items()}


def _camel_name(name: str) -> str:
    """`files_read` as `filesRead`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
