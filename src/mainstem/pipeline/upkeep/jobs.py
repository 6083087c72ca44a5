"""Runs the gateway's jobs, maintenance and loads: asks for one, does it, tells how it goes. One at a time, beside the
lanes."""

import logging
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from mainstem.model.errors import Invalid, MainstemError
from mainstem.model.names import TableName
from mainstem.pipeline.channel import Channel
from mainstem.pipeline.session.spark import join_session
from mainstem.pipeline.upkeep.loading import Loading
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.pipeline.upkeep.steps import Done
from mainstem.runtime.clock import Clock
from mainstem.tables.maintenance import Step
from mainstem.wire.jobs import LOAD_STEP, Job, JobNews, JobOrder, JobState

log = logging.getLogger(__name__)

WAIT_S = 20.0
PAUSE_S = 2.0
TELL_INTERVAL_S = 0.5
_ANSWER_S_MAX = 10.0
_MESSAGE_LENGTH_MAX = 500


class Link:
    """The gateway, for jobs."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._gateway = Channel(url, token)

    def next(self, worker: str) -> Job | None:
        """The next job; None where there is none for a while."""
        query = urllib.parse.urlencode({"worker": worker, "waitS": WAIT_S})
        body = self._gateway.get(f"?{query}", timeout_s=WAIT_S + _ANSWER_S_MAX)
        return msgspec.json.decode(body, type=Job) if body else None

    def tell(self, job: Job, news: JobNews) -> JobOrder:
        """Tell how a job goes; the answer says whether to go on."""
        body = self._gateway.post(f"/{job.id}", msgspec.json.encode(news), timeout_s=_ANSWER_S_MAX)
        return msgspec.json.decode(body, type=JobOrder)


class JobRunner:
    """A thread that does one job after the other until it is told to stop.

    `maintenance` and `loading` are called for the first job of theirs, in the thread of the jobs: each takes a session
    of its own.
    """

    def __init__(
        self,
        link: Link,
        maintenance: Callable[[], Maintenance],
        clock: Clock,
        loading: Callable[[], Loading] | None = None,
    ) -> None:
        self._link = link
        self._clock = clock
        self._make_maintenance = maintenance
        self._maintenance: Maintenance | None = None
        self._make_loading = loading
        self._loading: Loading | None = None
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

        def on_progress(step: str, done: Mapping[str, int]) -> None:
            progress[str(step)] = _camel(done)
            self._tell(job, JobNews(state=JobState.RUNNING, progress=dict(progress)))

        try:
            results = self._results(job, on_progress)
            ended = {step: _camel(done) for step, done in results.items()}
            news = JobNews(state=JobState.DONE, progress=ended)
        except Exception as error:
            # The edge of a job: whatever is wrong with one stays with it.
            log.exception("a job failed", extra={"table": job.table})
            message = str(error) if isinstance(error, MainstemError) else f"{type(error).__name__}: {error}"
            news = JobNews(state=JobState.FAILED, progress=progress, error=message[:_MESSAGE_LENGTH_MAX])
        if news.state is JobState.DONE and self._stopping.is_set():
            # Cut short: the next pipeline takes it up again.
            return
        self._tell(job, news)

    def _results(self, job: Job, on_progress: Callable[[str, Mapping[str, int]], None]) -> dict[str, Done]:
        namespace, _, table = job.table.rpartition(".")
        name = TableName(namespace, table)

        def go_on() -> bool:
            return not (self._cancelled or self._stopping.is_set())

        if job.load is not None:
            if self._make_loading is None:
                raise Invalid("this pipeline loads no files")
            self._loading = self._loading or self._make_loading()
            join_session(self._loading.spark)
            done = self._loading.run(name, job.load, on_progress=partial(on_progress, LOAD_STEP), go_on=go_on)
            return {LOAD_STEP: done}
        self._maintenance = self._maintenance or self._make_maintenance()
        join_session(self._maintenance.spark)
        return self._maintenance.run(
            name,
            [Step(step) for step in job.steps],
            changes=job.settings,
            partitions=job.partitions,
            dry_run=job.dry_run,
            force=job.force,
            on_progress=on_progress,
            go_on=go_on,
        )

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
