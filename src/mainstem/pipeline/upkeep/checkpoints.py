"""Checkpoints for first syncs: the merged rows of a namespace, made by Spark from history tables.

From the history and not from the state: a client must get every value as it was written (a number that became text
when its column did is still a number), and the deletes. A checkpoint goes on from the one before, so its cost follows
what is new and the size of the result, not the length of the history.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mainstem.model.errors import NotFound
from mainstem.model.names import TableName
from mainstem.model.position import Lineage, LogId, LogPosition
from mainstem.pipeline.channel import Channel
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.commit.own_files import own_delta_rows, own_rows
from mainstem.runtime.backoff import doubled
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.sql import spark_text
from mainstem.tables.layout import LOG
from mainstem.tables.origins import Origins
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade, CheckpointOrder, split_columns

log = logging.getLogger(__name__)

POLL_S = 1.0
_ANSWER_S_MAX = 10.0
_RETRY_S_MIN, _RETRY_S_MAX = 1.0, 300.0
_FILES = 4
_PORTION_CHARS = 16 * 1024 * 1024
_CELLS = "row_id string, column string, value string, hlc bigint, source string"
_ROWS = (
    "table string, row_id string, tombstone struct<hlc: bigint, source: string>, "
    "cells array<struct<column: string, value: string, hlc: bigint, source: string>>"
)


def make_checkpoint(spark: SparkSession, lake: Lake, order: CheckpointOrder) -> CheckpointMade:
    """Make one, whole or not at all. An order that was done before is done already."""
    target = Path(order.folder)
    if (target / DOCUMENT).exists():
        done = msgspec.json.decode((target / DOCUMENT).read_bytes(), type=CheckpointMade)
        if done.version >= VERSION and done.log == order.log:
            return done
    scratch = target.with_name(target.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    rows = merged(spark, _evidence(spark, lake, order))
    rows.coalesce(_FILES).write.option("compression", "zstd").parquet(scratch.as_uri())
    made = CheckpointMade(
        namespace=order.namespace,
        position=order.position,
        rows=spark.read.schema(_ROWS).parquet(scratch.as_uri()).count(),
        version=VERSION,
        log=order.log,
        held=order.held,
    )
    (scratch / DOCUMENT).write_bytes(msgspec.json.encode(made))
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    return made


def _evidence(spark: SparkSession, lake: Lake, order: CheckpointOrder) -> DataFrame:
    """Every write to a column and every delete: `table, row_id, column, value, hlc, source`; a delete has no column.

    Ours up to the position, and all that other logs wrote: no pull answers with those.
    """
    parts, lineage = [], Lineage(tuple(order.lineage))
    seen = _held_before(order)
    for table in order.tables:
        history = _history(spark, lake, order, table)
        if history is None:
            # Only dead letters so far.
            continue
        origins = Origins(LOG in history.columns, order.unlogged.get(table, {}))
        ours = f"{origins.of_ours(lineage)} AND _position > {order.before_position} AND _position <= {order.position}"
        others = origins.of_others(lineage, seen.get(table))
        parts.append(_of_changes(history.where(f"({ours}) OR {others}"), table))
    if order.before_folder is not None:
        before = spark.read.schema(_ROWS).parquet(Path(order.before_folder).as_uri())
        cells = before.selectExpr("table", "row_id", "explode(cells) AS cell")
        parts.append(
            cells.selectExpr("table", "row_id", "cell.column AS column", "cell.value", "cell.hlc", "cell.source")
        )
        parts.append(
            before.where("tombstone IS NOT NULL").selectExpr(
                "table",
                "row_id",
                "CAST(NULL AS string) AS column",
                "CAST(NULL AS string) AS value",
                "tombstone.hlc",
                "tombstone.source",
            )
        )
    if not parts:
        raise NotFound(f"a namespace has no changes yet. got={order.namespace}")
    evidence = parts[0]
    for part in parts[1:]:
        evidence = evidence.unionByName(part)
    return evidence


def _held_before(order: CheckpointOrder) -> dict[str, dict[LogId, LogPosition]]:
    if order.before_folder is None:
        return {}
    return msgspec.json.decode((Path(order.before_folder) / DOCUMENT).read_bytes(), type=CheckpointMade).held


def _history(spark: SparkSession, lake: Lake, order: CheckpointOrder, table: str) -> DataFrame | None:
    if table in order.delta:
        return own_delta_rows(spark.read.format("delta").load(order.delta[table]), order.delta[table])
    history = lake.load(TableName(order.namespace, table).history)
    if history is None:
        return None
    history.refresh()
    spark.catalog.refreshTable(history.identifier)
    return own_rows(spark.table(history.identifier), str(history.java.location()))


def _of_changes(changes: DataFrame, table: str) -> DataFrame:
    name = f"{spark_text(table)} AS table"
    written = changes.where("_op != 'delete'").select("_key", "_columns", "_hlc", "_source")
    cells = written.mapInArrow(split_rows, _CELLS).selectExpr(name, "*")
    deletes = changes.where("_op = 'delete'").selectExpr(
        name,
        "_key AS row_id",
        "CAST(NULL AS string) AS column",
        "CAST(NULL AS string) AS value",
        "_hlc AS hlc",
        "_source AS source",
    )
    return cells.unionByName(deletes)


def split_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a history as cells, in an executor's Python worker: `row_id, column, value, hlc, source`.

    Not by Spark's own functions: they lose a row whose JSON repeats a name, and write numbers anew.
    """
    for batch in batches:
        texts = batch.column("_columns").to_pylist()
        for start, end in _portions(texts):
            yield _cells_of(batch.slice(start, end - start), texts[start:end])


def _portions(texts: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Cut a batch by the size of its texts: what is made of a portion is in memory twice."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text or "")
        if size > _PORTION_CHARS:
            yield start, index + 1
            start, size = index + 1, 0
    if start < len(texts):
        yield start, len(texts)


def _cells_of(rows: pa.RecordBatch, texts: Sequence[str | None]) -> pa.RecordBatch:
    places: list[int] = []
    names: list[str] = []
    values: list[str] = []
    for place, text in enumerate(texts):
        columns = split_columns(text)
        places += [place] * len(columns)
        names += columns
        values += [value.decode() for value in columns.values()]
    repeated = rows.take(pa.array(places, pa.int64()))
    cells = [repeated.column("_key"), pa.array(names, pa.string()), pa.array(values, pa.string())]
    cells += [repeated.column("_hlc"), repeated.column("_source")]
    return pa.RecordBatch.from_arrays(cells, ["row_id", "column", "value", "hlc", "source"])


def merged(spark: SparkSession, evidence: DataFrame) -> DataFrame:
    """The merge rule: per column the highest (clock, source), unless a delete is as new."""
    winners = spark.sql(
        "SELECT table, row_id, column, max(struct(hlc, source, value)) AS cell FROM {evidence} "
        "GROUP BY table, row_id, column",
        evidence=evidence,
    )
    rows = spark.sql(
        "SELECT table, row_id,"
        " max(CASE WHEN column IS NULL THEN struct(cell.hlc AS hlc, cell.source AS source) END) AS tombstone,"
        " collect_list(CASE WHEN column IS NOT NULL THEN"
        " struct(column, cell.value AS value, cell.hlc AS hlc, cell.source AS source) END) AS written"
        " FROM {winners} GROUP BY table, row_id",
        winners=winners,
    )
    alive = "filter(written, c -> tombstone IS NULL OR struct(c.hlc AS hlc, c.source AS source) > tombstone) AS cells"
    return rows.selectExpr("table", "row_id", "tombstone", alive)


class CheckpointLoop:
    """A thread that asks the gateway what it wants and makes it, one at a time, until it is told to stop."""

    def __init__(
        self,
        lake: Lake,
        url: str,
        token: str | None,
        begin: Callable[[], None] = lambda: None,
        *,
        make: Callable[[SparkSession, Lake, CheckpointOrder], object] = make_checkpoint,
        clock: Clock | None = None,
    ) -> None:
        self._lake = lake
        self._make = make
        self._clock = clock or SystemClock()
        # Namespaces whose checkpoint failed: how often in a row, and when it is tried again.
        self._failed: dict[str, tuple[int, float]] = {}
        self._gateway = Channel(url, token)
        self._begin = begin
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin. The thread is not waited for: a checkpoint that is cut off is made again."""
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()

    def _run(self) -> None:
        self._begin()
        while not self._stopping.wait(POLL_S):
            try:
                self.make(self._orders())
            # The thread's edge: the orders stand, and are asked for again.
            except Exception as error:
                log.warning("no checkpoints: %s", error, exc_info=True)

    def make(self, orders: Iterable[CheckpointOrder]) -> None:
        """Make what is ordered. One that fails is tried again later, and holds no other up."""
        for order in orders:
            failures, not_before_s = self._failed.get(order.namespace, (0, 0.0))
            if self._clock.monotonic_s() < not_before_s:
                continue
            try:
                self._make(self._lake.spark, self._lake, order)
            # The edge of one order: what is in a namespace's tables is its writers' doing.
            except Exception as error:
                wait_s = doubled(failures + 1, _RETRY_S_MIN, _RETRY_S_MAX)
                self._failed[order.namespace] = failures + 1, self._clock.monotonic_s() + wait_s
                log.warning("no checkpoint of %s: %s", order.namespace, error, exc_info=True)
            else:
                self._failed.pop(order.namespace, None)

    def _orders(self) -> list[CheckpointOrder]:
        return msgspec.json.decode(self._gateway.get(timeout_s=_ANSWER_S_MAX), type=list[CheckpointOrder])
