"""Checkpoints for first syncs: the merged rows of a namespace, made by Spark from history tables.

From the history and not from the state: a client must get every value as it was written (a number that became text
when its column did is still a number), and the deletes. A checkpoint goes on from the one before, so its cost follows
what is new and the size of the result, not the length of the history.
"""

import logging
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mainstem.model.errors import NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.commit.lake import Lake
from mainstem.sql import spark_text
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade, CheckpointOrder, split_columns

log = logging.getLogger(__name__)

POLL_S = 1.0
_ANSWER_S_MAX = 10.0
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
    )
    (scratch / DOCUMENT).write_bytes(msgspec.json.encode(made))
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    return made


def _evidence(spark: SparkSession, lake: Lake, order: CheckpointOrder) -> DataFrame:
    """Every write to a column and every delete: `table, row_id, column, value, hlc, source`; a delete has no column."""
    parts = []
    for table in order.tables:
        history = _history(spark, lake, order, table)
        if history is None:
            # Only dead letters so far.
            continue
        changes = history.where(f"_position > {order.before_position} AND _position <= {order.position}")
        parts.append(_of_changes(changes, table))
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


def _history(spark: SparkSession, lake: Lake, order: CheckpointOrder, table: str) -> DataFrame | None:
    if table in order.delta:
        return spark.read.format("delta").load(order.delta[table])
    history = lake.load(TableName(order.namespace, table).history)
    if history is None:
        return None
    history.refresh()
    spark.catalog.refreshTable(history.identifier)
    return spark.table(history.identifier)


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

    def __init__(self, lake: Lake, url: str, token: str | None, begin: Callable[[], None] = lambda: None) -> None:
        self._lake = lake
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
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
                for order in self._orders():
                    make_checkpoint(self._lake.spark, self._lake, order)
            # The thread's edge: the order stands, and is tried again.
            except Exception as error:
                log.warning("no checkpoint: %s", error, exc_info=True)

    def _orders(self) -> list[CheckpointOrder]:
        request = urllib.request.Request(self._url, headers=self._headers)
        with urllib.request.urlopen(request, timeout=_ANSWER_S_MAX) as answer:
            return msgspec.json.decode(answer.read(), type=list[CheckpointOrder])
