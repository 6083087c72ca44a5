"""Checkpoints for first syncs: the merged rows of a namespace, made by Spark from history tables.

From the history and not from the state: a client must get every value as it was written (a number that became text
when its column did is still a number), and the deletes. A checkpoint goes on from the one before, so its cost follows
what is new and the size of the result, not the length of the history.
"""

import logging
import shutil
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from mainstem.model.errors import NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.changes import literal
from mainstem.pipeline.lake import Lake
from mainstem.wire.checkpoints import DOCUMENT, CheckpointMade, CheckpointOrder

log = logging.getLogger(__name__)

POLL_S = 1.0
_ANSWER_S_MAX = 10.0
_FILES = 4
_ROWS = (
    "table string, row_id string, tombstone struct<hlc: bigint, source: string>, "
    "cells array<struct<column: string, value: string, hlc: bigint, source: string>>"
)


def make_checkpoint(spark: SparkSession, lake: Lake, order: CheckpointOrder) -> CheckpointMade:
    """Make one, whole or not at all. An order that was done before is done already."""
    target = Path(order.folder)
    if (target / DOCUMENT).exists():
        return msgspec.json.decode((target / DOCUMENT).read_bytes(), type=CheckpointMade)
    scratch = target.with_name(target.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    rows = merged(spark, _evidence(spark, lake, order))
    rows.coalesce(_FILES).write.option("compression", "zstd").parquet(scratch.as_uri())
    made = CheckpointMade(
        namespace=order.namespace,
        position=order.position,
        rows=spark.read.schema(_ROWS).parquet(scratch.as_uri()).count(),
    )
    (scratch / DOCUMENT).write_bytes(msgspec.json.encode(made))
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    return made


def _evidence(spark: SparkSession, lake: Lake, order: CheckpointOrder) -> DataFrame:
    """Every write to a column and every delete: `table, row_id, column, value, hlc, source`; a delete has no column."""
    parts = []
    for table in order.tables:
        history = lake.load(TableName(order.namespace, table).history)
        if history is None:
            # Only dead letters so far.
            continue
        history.refresh()
        spark.catalog.refreshTable(history.identifier)
        changes = spark.table(history.identifier).where(
            f"_position > {order.before_position} AND _position <= {order.position}"
        )
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


def _of_changes(changes: DataFrame, table: str) -> DataFrame:
    name = f"{literal(table)} AS table"
    written = changes.where("_op != 'delete'").selectExpr(
        "_key",
        "_hlc",
        "_source",
        "explode(CAST(try_parse_json(_columns) AS map<string, variant>)) AS (column, cell)",
    )
    cells = written.selectExpr(
        name,
        "_key AS row_id",
        "column",
        "coalesce(to_json(cell), 'null') AS value",
        "_hlc AS hlc",
        "_source AS source",
    )
    deletes = changes.where("_op = 'delete'").selectExpr(
        name,
        "_key AS row_id",
        "CAST(NULL AS string) AS column",
        "CAST(NULL AS string) AS value",
        "_hlc AS hlc",
        "_source AS source",
    )
    return cells.unionByName(deletes)


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
    alive = (
        "filter(written, c -> tombstone IS NULL OR struct(c.hlc AS hlc, c.source AS source) > tombstone) AS cells"
    )
    return rows.selectExpr("table", "row_id", "tombstone", alive)


class CheckpointLoop:
    """A thread that asks the gateway what it wants and makes it, one at a time, until it is told to stop."""

    def __init__(
        self, lake: Lake, url: str, token: str | None, begin: Callable[[], None] = lambda: None
    ) -> None:
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
