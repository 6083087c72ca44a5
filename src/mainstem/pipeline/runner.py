"""The pipeline's process: starts Spark, keeps the stream up, says how it is, and leaves cleanly.

It holds no state of its own: Spark's checkpoint and the tables' snapshots are all there is, so it may be killed at any
line. It goes when it is told to (SIGTERM), when its standard input ends, or when the process that started it dies.
While Spark starts and warms up it goes at once; later the pass in hand has a few seconds to end, and is repeated if it
does not.
"""

import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mainstem.model.errors import Conflict, Invalid, MainstemError
from mainstem.model.names import TableName
from mainstem.pipeline.breaker import Breaker
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import CATALOG, Lake
from mainstem.pipeline.commit.places import PlaceFinder
from mainstem.pipeline.delta.maintenance import DeltaMaintenance
from mainstem.pipeline.delta.place import delta_lake
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.delta.writer import DeltaWriter
from mainstem.pipeline.passes.stores import make_folder
from mainstem.pipeline.plan.declared import bring_up_to_date
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.plan.writer import Writer
from mainstem.pipeline.progress import Progress, Reporter
from mainstem.pipeline.session.spark import SessionSettings, build_session, join_pool
from mainstem.pipeline.session.warmup import WARM_CATALOG, warm_catalog, warm_up, warm_workers
from mainstem.pipeline.settings import PipelineSettings
from mainstem.pipeline.source.gathering import Gathering
from mainstem.pipeline.source.segments import SegmentFolder
from mainstem.pipeline.source.stream import BATCH_BYTES_MAX, SegmentStream
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.checkpoints import CheckpointLoop
from mainstem.pipeline.upkeep.jobs import JobRunner, Link
from mainstem.pipeline.upkeep.loading import Loading
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.pipeline.upkeep.queries import QueryRunner
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.runtime.lifetime import die_with_parent
from mainstem.tables.settings import Format

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.1
# After this long without an end of the work in hand, the process goes anyway: a pass may be repeated. The gateway
# waits for it when it stops, and service managers wait for ten seconds.
STOP_S_MAX = 3.5


def run(settings: PipelineSettings) -> None:
    """Carry segments into tables until told to stop. Raises what ended it otherwise."""
    clock = SystemClock()
    stop = _Stop()
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.told)
    threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()
    breaker = Breaker(clock, failures_max=settings.breaker_failures, open_s=settings.breaker_open_s)
    progress = Progress(clock, breaker)
    spark: list[SparkSession] = []
    reporter = Reporter(progress, settings.report_url, lambda: _jvm_memory(spark[0]) if spark else {}, settings.token)
    reporter.start()
    try:
        with _only_one(settings.checkpoint_dir.parent):
            spark.append(_session(settings))
            _run(settings, spark[0], progress, breaker, clock, stop)
        progress.enter("stopped")
    except Exception as error:
        progress.enter("failed", f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        reporter.stop()
        if spark:
            spark[0].stop()


def _run(
    settings: PipelineSettings,
    spark: SparkSession,
    progress: Progress,
    breaker: Breaker,
    clock: Clock,
    stop: "_Stop",
) -> None:
    lake = Lake(spark)
    turns = Turns()
    finder = PlaceFinder()
    delta = delta_lake(settings, clock, lake.application)
    store = dict(settings.catalog_properties)
    folder = SegmentFolder(settings.segments_dir, store)
    refuses = settings.dropped_tables == "refuse"

    def writer_for(name: TableName) -> Writer:
        table = settings.table(name, folder.kind_of(name), lambda: found_format(name, lake, delta))
        if table.format is Format.DELTA:
            if delta is None:
                raise Invalid(f"no place for Delta tables. table={name} expected=delta_url")
            return DeltaWriter(
                delta, spark, name, table, lineage=settings.lineage, finder=finder, refuses_dropped=refuses
            )
        return IcebergWriter(
            lake, name, table, lineage=settings.lineage, finder=finder, store=store, refuses_dropped=refuses
        )

    make_folder(settings.segments_dir, store)
    if not folder.list():
        # Where segments wait, the first pass warms Spark up just as well.
        progress.enter("warming")
        if settings.is_local:
            warm_up(spark)
        else:
            warm_workers(spark)
    _apply_configuration(settings, lake)
    # Others' catalogs take several tables' commits at once, and may keep some of them: table by table is told exactly.
    commits = IcebergCommits(lake, has_transactions=settings.catalog_rest is None)
    carrier = Carrier(spark, folder, writer_for, commits, progress, clock, store=store, breaker=breaker, turns=turns)
    gathering = Gathering(folder, clock, bytes_max=BATCH_BYTES_MAX)
    stream = SegmentStream(carrier, progress, settings.trigger_s, breaker=breaker, clock=clock, gathering=gathering)
    stream.start(spark, settings.segments_dir, str(settings.checkpoint_dir))
    progress.enter("running")
    helpers: list[JobRunner | QueryRunner | CheckpointLoop] = []
    loading = _loads(settings, lake, delta, turns, clock, folder, progress)
    helpers += _start_jobs(settings, lake, delta, turns, clock, loading)
    helpers += _start_queries(settings, lake)
    helpers += _start_checkpoints(settings, lake)
    stop.finish_first()
    is_caught_up = False
    try:
        while not stop.wait(WATCH_INTERVAL_S):
            stream.watch()
            if stream.is_drained and not is_caught_up:
                # Tables that a crash left behind, whose segments Spark had handed over before. With new segments they
                # come along by themselves.
                _catch_up(carrier, "start")
                is_caught_up = True
            else:
                _catch_up(carrier, "catch-up")
    finally:
        progress.enter("stopping")
        stop.go_at_last()
        for helper in helpers:
            helper.stop()
        stream.stop(before=carrier.stop)


def found_format(name: TableName, lake: Lake, delta: DeltaLake | None) -> Format | None:
    """In which format a table exists already; None where it does not."""
    if delta is not None and (delta.load(name) or delta.load(name.history)):
        return Format.DELTA
    return Format.ICEBERG if lake.load(name) or lake.load(name.history) else None


def _catch_up(carrier: Carrier, batch: str) -> None:
    """Bring tables on that were left behind. Where their segments cannot be reached now, they are later."""
    try:
        if batch == "start" or carrier.is_behind():
            carrier.carry(None, (), batch)
    except OSError as error:
        log.warning("the segments cannot be reached: %s", error)


def _apply_configuration(settings: PipelineSettings, lake: Lake) -> None:
    """What the configuration says of tables may have changed since they were made."""
    for name, table in settings.tables.items():
        try:
            bring_up_to_date(lake, name, table)
        except (MainstemError, Py4JJavaError) as error:
            # The table is written all the same, as it is.
            log.warning("the configuration of a table could not be applied: %s", error, extra={"table": str(name)})


def _start_checkpoints(settings: PipelineSettings, lake: Lake) -> list[CheckpointLoop]:
    if settings.checkpoints_url is None:
        return []
    loop = CheckpointLoop(lake, settings.checkpoints_url, settings.token, lambda: join_pool(lake.spark, "checkpoints"))
    loop.start()
    return [loop]


def _loads(
    settings: PipelineSettings,
    lake: Lake,
    delta: DeltaLake | None,
    turns: Turns,
    clock: Clock,
    folder: SegmentFolder,
    progress: Progress,
) -> Callable[[], Loading]:
    """What puts files into tables without the log, made for its first job."""

    def loading() -> Loading:
        made = Loading(
            lake,
            turns,
            clock,
            places=settings.load_from,
            settings_of=lambda name: settings.table(name, "", lambda: found_format(name, lake, delta)),
            kind_of=folder.kind_of,
            covered=progress.covered,
            lineage=settings.lineage,
            store=settings.catalog_properties,
            delta=delta,
        )
        join_pool(made.spark, "jobs")
        return made

    return loading


def _start_jobs(
    settings: PipelineSettings,
    lake: Lake,
    delta: DeltaLake | None,
    turns: Turns,
    clock: Clock,
    loading: Callable[[], Loading],
) -> list[JobRunner]:
    """Maintain tables beside the stream. The thread is not waited for: a job that is cut off is done again."""
    if settings.jobs_url is None:
        return []

    def maintenance() -> Maintenance:
        of_delta = None if delta is None else DeltaMaintenance(delta, lake.spark, turns, settings.maintenance)
        made = Maintenance(lake, turns, settings.maintenance, clock, of_delta, settings.catalog_properties)
        join_pool(made.spark, "jobs")
        return made

    runner = JobRunner(Link(settings.jobs_url, settings.token), maintenance, clock, loading)
    threading.Thread(target=runner.run, name="jobs", daemon=True).start()
    return [runner]


def _start_queries(settings: PipelineSettings, lake: Lake) -> list[QueryRunner]:
    """Answer queries beside the stream."""
    if settings.queries_url is None:
        return []
    runner = QueryRunner(settings.queries_url, settings.token, lake)
    runner.start()
    return [runner]


def _session(settings: PipelineSettings) -> SparkSession:
    rest = {
        "type": "rest",
        "uri": settings.catalog_uri,
        "warehouse": "lake",
        # A table that was dropped, or changed by another engine, must not live on in a cache.
        "cache-enabled": "false",
        # A call per scan and commit, to a gateway that keeps metrics of its own.
        "rest-metrics-reporting-enabled": "false",
        **settings.catalog_properties,
        **(settings.catalog_rest or {}),
    }
    if settings.catalog_rest is not None and "warehouse" not in settings.catalog_rest:
        # That is what our own is called.
        del rest["warehouse"]
    session = build_session(
        SessionSettings(
            app="mainstem-pipeline",
            master=settings.master,
            driver_memory=settings.driver_memory,
            jars=settings.jars,
            python=sys.executable,
            catalogs={CATALOG: rest, WARM_CATALOG: warm_catalog()},
            ui_port=settings.ui_port,
            store=settings.catalog_properties,
            more=settings.spark,
            archive=settings.class_archive,
        )
    )
    session.sparkContext.setLogLevel("ERROR")
    if settings.token is not None and settings.catalog_rest is None:
        # Not among the settings that Spark is started with: those stand in the JVM's command line.
        session.conf.set(f"spark.sql.catalog.{CATALOG}.token", settings.token)
        session.conf.set(f"spark.sql.catalog.{CATALOG}.token-refresh-enabled", "false")
    return session


class _only_one:  # noqa: N801 — read as a statement
    """Holds the folder's lock: two pipelines on one checkpoint would commit the same changes twice."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pipeline.lock"
        self._file: TextIO | None = None

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"another pipeline works on this folder. lock={self._path}") from error

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()


class _Stop(threading.Event):
    """Set by a signal. Until the stream runs there is no work in hand to finish: the signal ends the process at once.

    Starting Spark and warming it up take up to half a minute, and the main thread looks at no event meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._finishes_first = False
        self._is_leaving = False
        self._watchdog: threading.Timer | None = None

    def told(self, *_: object) -> None:
        """The signal's handler, in the main thread."""
        self.set()
        self.go_at_last()
        if not self._finishes_first and not self._is_leaving:
            # Once: what is cleaned up on the way out is not to be cut short.
            self._is_leaving = True
            raise SystemExit(0)

    def finish_first(self) -> None:
        """From now on the work in hand is finished before the process goes."""
        self._finishes_first = True

    def go_at_last(self) -> None:
        """End the process in a few seconds, whatever hangs then: a pass, Spark's own end, a thread that waits."""
        if self._watchdog is None:
            self._watchdog = threading.Timer(STOP_S_MAX, os._exit, (1,))
            self._watchdog.daemon = True
            self._watchdog.start()


def _watch_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # The process that started this one is gone: stop as for a SIGTERM.
    os.kill(os.getpid(), signal.SIGTERM)


def _jvm_memory(spark: SparkSession) -> dict[str, int]:
    jvm: Any = spark._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    total, free = int(runtime.totalMemory()), int(runtime.freeMemory())
    memory = {"jvm_heap_bytes": total - free, "jvm_heap_bytes_max": int(runtime.maxMemory())}
    try:
        pid = int(jvm.java.lang.ProcessHandle.current().pid())
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        memory["jvm_rss_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    return memory
