"""The Structured Streaming query over the sealed segments.

Spark's file source sees a new segment within a trigger, hands its rows to us as a frame, and remembers in its
checkpoint what it has handed over. The frame is what a pass processes.

A query ends where the segments' place cannot be reached. It is then started again, as soon as the breaker lets it.
"""

import logging
import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from mainstem.model.position import LogPosition
from mainstem.pipeline.breaker import Breaker, is_store_trouble
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.passes.stores import for_spark
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.source.gathering import Gathering
from mainstem.pipeline.source.rows import SEGMENT_SCHEMA
from mainstem.runtime.clock import Clock

log = logging.getLogger(__name__)

# Segments that one micro-batch takes at most: bounds what a pass holds, and how long the other tables wait for it. That
# is about two million changes; a burst of so many in two passes costs a fifth more.
BATCH_BYTES_MAX = 64 << 20
# How soon a query is started again that the store's trouble ended.
RESTART_S = 1.0
_MESSAGE_LENGTH_MAX = 500


class SegmentStream:
    """One running query. `watch` is to be called now and then: it sees finished batches, Spark's progress, failures."""

    def __init__(
        self,
        carrier: Carrier,
        progress: Progress,
        trigger_s: float,
        *,
        breaker: Breaker,
        clock: Clock,
        gathering: Gathering,
    ) -> None:
        self._carrier = carrier
        self._gathering = gathering
        self._progress = progress
        self._trigger_s = trigger_s
        self._breaker = breaker
        self._clock = clock
        self._query: StreamingQuery | None = None
        self._start: Callable[[], StreamingQuery] | None = None
        self._restart_at_s = 0.0
        # What the batch covered that foreachBatch returned from last; Spark's own commit of it comes after.
        self._carried: tuple[int, LogPosition] | None = None
        self._idle = threading.Lock()
        # The newest micro-batch of which Spark's progress was handed on.
        self._told = -1
        # Whether Spark has once found that there is nothing left to hand over.
        self.is_drained = False

    def start(self, spark: SparkSession, segments: str, checkpoint: str) -> None:
        """Start the query over a folder of segments; it runs until `stop`."""
        source = (
            spark.readStream.schema(SEGMENT_SCHEMA)
            .option("pathGlobFilter", "*.parquet")
            .option("maxBytesPerTrigger", str(BATCH_BYTES_MAX))
            # Spark remembers the names of files up to this age. Older ones that a table still needs are read beside the
            # frame (see `carrier`), so this bounds its memory and loses nothing.
            .option("maxFileAge", "1d")
        )
        interval = f"{max(1, round(self._trigger_s * 1000))} milliseconds"

        def start() -> StreamingQuery:
            writer = source.parquet(for_spark(segments)).writeStream.queryName("segments").foreachBatch(self._batch)
            writer = writer.option("checkpointLocation", for_spark(checkpoint))
            return writer.trigger(processingTime=interval).start()

        self._start = start
        self._query = start()

    def watch(self) -> None:
        """Report what Spark has checkpointed since the last look; raise what ended the query, unless the store did."""
        if self._query is None:
            self._restart()
            return
        # In this order: once it has failed there is no more progress, and the next query knows nothing of this one's.
        failure = self._query.exception()
        carried, last = self._carried, self._query.lastProgress
        if last is not None:
            self.is_drained = self.is_drained or "addBatch" not in last.durationMs
            self._tell(self._query, last)
        if carried is not None and last is not None and int(last["batchId"]) >= carried[0]:
            self._carried = None if self._carried == carried else self._carried
            self._progress.checkpointed(*carried)
        if failure is not None:
            self._ended_by(failure)

    def _tell(self, query: StreamingQuery, last: StreamingQueryProgress) -> None:
        """Hand on Spark's progress. Between two looks several micro-batches may have ended."""
        for each in [last] if last.batchId <= self._told + 1 else query.recentProgress:
            self._progress.told_by_spark(each.batchId, each.numInputRows, each.durationMs)
            # A trigger that found nothing has the number of the next micro-batch.
            if "addBatch" in each.durationMs:
                self._told = max(self._told, each.batchId)

    def _restart(self) -> None:
        if self._clock.monotonic_s() < self._restart_at_s or not self._breaker.allow():
            return
        # Whether the store is back is told by the first pass, or by the next failure.
        self._breaker.undecided()
        assert self._start is not None
        try:
            self._query = self._start()
        except Exception as error:
            self._ended_by(error)

    def _ended_by(self, error: Exception) -> None:
        if not is_store_trouble(error):
            raise error
        self._query = None
        self._restart_at_s = self._clock.monotonic_s() + RESTART_S
        self._breaker.failed(f"{type(error).__name__}: {error}"[:_MESSAGE_LENGTH_MAX])
        log.warning("the stream of segments ended and is started again", exc_info=error)

    def stop(self, before: Callable[[], None]) -> None:
        """Let the batch in hand end, then the query. `before` is what makes it end."""
        before()
        self._gathering.stop()
        with self._idle:
            if self._query is not None:
                self._query.stop()

    def _batch(self, changes: DataFrame, batch_id: int) -> None:
        with self._idle:
            last = self._carrier.carry(changes, file_names(changes), str(batch_id))
            self._carried = (batch_id, last)
            # Spark lists the segments for the next micro-batch once this returns.
            self._gathering.wait(last)


def file_names(frame: DataFrame) -> list[str]:
    """The names of the files that a micro-batch reads.

    Spark hands the micro-batch over as a plan that has lost its source; its partitions still know their files.
    """
    names = []
    for partition in frame._jdf.queryExecution().toRdd().partitions():
        for file in partition.files():
            names.append(str(file.toPath().getName()))
    return names
