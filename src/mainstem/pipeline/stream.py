"""The Structured Streaming query over the sealed segments.

Spark's file source sees a new segment within a trigger, calls us, and remembers in its checkpoint what it has handed
over. The rows are read from the segments themselves (see `carrier`): the frame that `foreachBatch` passes is a finished
plan, into which no filter on a table or a position could be pushed.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mainstem.model.position import LogPosition
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.changes import SEGMENT_SCHEMA
from mainstem.pipeline.progress import Progress


class SegmentStream:
    """One running query. `watch` is to be called now and then: it sees finished batches, and failures."""

    def __init__(self, carrier: Carrier, progress: Progress, trigger_s: float) -> None:
        self._carrier = carrier
        self._progress = progress
        self._trigger_s = trigger_s
        self._query: StreamingQuery | None = None
        # What the batch covered that foreachBatch returned from last; Spark's own commit of it comes after.
        self._carried: tuple[int, LogPosition] | None = None
        self._idle = threading.Lock()

    def start(self, spark: SparkSession, segments_dir: Path, checkpoint_dir: Path) -> None:
        """Start the query; it runs until `stop`."""
        segments_dir.mkdir(parents=True, exist_ok=True)
        segments = spark.readStream.schema(SEGMENT_SCHEMA).option("pathGlobFilter", "*.parquet")
        writer = segments.parquet(str(segments_dir)).writeStream.queryName("segments").foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", str(checkpoint_dir))
        self._query = writer.trigger(processingTime=f"{max(1, round(self._trigger_s * 1000))} milliseconds").start()

    def watch(self) -> None:
        """Report what Spark has checkpointed since the last look; raise what ended the query."""
        assert self._query is not None
        failure = self._query.exception()
        if failure is not None:
            raise failure
        carried, last = self._carried, self._query.lastProgress
        if carried is not None and last is not None and int(last["batchId"]) >= carried[0]:
            self._carried = None if self._carried == carried else self._carried
            self._progress.checkpointed(*carried)

    def stop(self, before: Callable[[], None]) -> None:
        """Let the batch in hand end, then the query. `before` is what makes it end."""
        before()
        with self._idle:
            if self._query is not None:
                self._query.stop()

    def _batch(self, _: DataFrame, batch_id: int) -> None:
        with self._idle:
            self._carried = (batch_id, self._carrier.carry(self._trigger_s))
