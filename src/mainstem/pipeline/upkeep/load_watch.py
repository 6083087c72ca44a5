"""Tells how far Spark's tasks are while they load, and stops them where the load is cancelled."""

import threading
import uuid
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

WATCH_S = 0.5

OnLoaded = Callable[[Mapping[str, int]], None]


class Watched:
    """A block whose jobs of Spark are watched."""

    def __init__(self, spark: SparkSession, size: int, on_progress: OnLoaded, go_on: Callable[[], bool]) -> None:
        self._context = spark.sparkContext
        self._size = size
        self._on_progress = on_progress
        self._go_on = go_on
        self._group = f"load-{uuid.uuid4()}"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="load-watch", daemon=True)

    def __enter__(self) -> None:
        self._context.setJobGroup(self._group, "load", interruptOnCancel=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            self._context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _watch(self) -> None:
        while not self._done.wait(WATCH_S):
            done, tasks = self._tasks()
            self._on_progress({"bytes": self._size, "tasks_done": done, "tasks": tasks})
            if not self._go_on():
                self._context.cancelJobGroup(self._group)
                return

    def _tasks(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        done = tasks = 0
        for job_id in tracker.getJobIdsForGroup(self._group):
            job = tracker.getJobInfo(job_id)
            for stage_id in () if job is None else job.stageIds:
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        return done, tasks
