"""Putting a batch's new rows in place of the old ones of the same keys, in one step that readers see.

An `Upsert` gets the batch's keys, each once (see `keys`), and the rows that shall stand for them; a key without a row
is gone. The marks go into the same commit as the rows. If it fails or dies on the way, main has not moved.
"""

import uuid
from collections.abc import Mapping
from typing import ClassVar, Protocol

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from mainstem.model.errors import Conflict
from mainstem.pipeline.keys import as_frame
from mainstem.pipeline.lake import MAIN, LakeTable, Marks, commit, is_conflict, quoted
from mainstem.pipeline.session import own_session
from mainstem.tables.layout import KEY

BRANCH = "mainstem_ingest"


class Upsert(Protocol):
    """One way to replace the rows of some keys."""

    @property
    def table_properties(self) -> Mapping[str, str]:
        """What a table must have from its creation on to be written this way."""

    def apply(self, table: LakeTable, keys: pa.Table, rows: DataFrame, marks: Marks) -> None:
        """Delete the keys' old rows and add the new ones. Raises Conflict where the table changed meanwhile."""


def append(table: LakeTable, rows: DataFrame, marks: Marks, branch: str | None = None) -> None:
    """Append with the marks in the commit."""
    target = table.identifier if branch is None else f"{table.identifier}.{quoted('branch_' + branch)}"
    try:
        rows.writeTo(target).options(**marks.options()).append()
    except (Py4JJavaError, PySparkException) as error:
        raise _as_conflict(error) from error


class BranchUpsert:
    """Plain SQL on a branch: delete the old rows, append the new ones, then let main jump to the branch's end.

    A delete-only MERGE is an inner join, so the batch's keys are broadcast and the table is read once, key column
    only. It needs no internal class and runs on a cluster as it is.
    """

    table_properties: ClassVar[Mapping[str, str]] = {}

    def apply(self, table: LakeTable, keys: pa.Table, rows: DataFrame, marks: Marks) -> None:
        head = table.snapshot_id
        if head is None:
            append(table, rows, marks)
            return
        # Whatever a crash left on the branch is dropped here.
        manage = table.java.manageSnapshots()
        start = manage.replaceBranch if BRANCH in set(table.java.refs()) else manage.createBranch
        commit(start(BRANCH, head))
        _delete_keys(table, keys, f"{table.identifier}.{quoted('branch_' + BRANCH)}")
        append(table, rows, marks, BRANCH)
        table.refresh()
        if table.snapshot_id != head:
            raise Conflict(f"main moved during an upsert. table={table.name} expected={head} got={table.snapshot_id}")
        commit(table.java.manageSnapshots().fastForwardBranch(MAIN, BRANCH).removeBranch(BRANCH))


class MergeUpsert:
    """One plain MERGE: the reference that the faster ways are tested against. It reads the whole table."""

    table_properties: ClassVar[Mapping[str, str]] = {}

    def apply(self, table: LakeTable, keys: pa.Table, rows: DataFrame, marks: Marks) -> None:
        spark = own_session(rows.sparkSession)
        for name, value in marks.summary().items():
            spark.conf.set(f"spark.sql.iceberg.snapshot-property.{name}", value)
        view = _view_name()
        every_key = as_frame(rows.sparkSession, keys, KEY).withColumnRenamed(KEY, "__batch_key")
        batch = every_key.join(rows, every_key["__batch_key"] == rows[KEY], "left")
        batch.createOrReplaceGlobalTempView(view)
        names = [quoted(name) for name in rows.columns]
        try:
            spark.catalog.refreshTable(table.identifier)
            spark.sql(
                f"MERGE INTO {table.identifier} t USING global_temp.{view} s ON t.{KEY} = s.__batch_key"
                f" WHEN MATCHED AND s.{KEY} IS NULL THEN DELETE"
                f" WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)}"
                f" WHEN NOT MATCHED AND s.{KEY} IS NOT NULL THEN"
                f" INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
            )
        except (Py4JJavaError, PySparkException) as error:
            raise _as_conflict(error) from error
        finally:
            spark.catalog.dropGlobalTempView(view)
        table.refresh()


def _delete_keys(table: LakeTable, keys: pa.Table, target: str) -> None:
    spark = table.lake.spark
    view = _view_name()
    as_frame(spark, keys, KEY).createOrReplaceTempView(view)
    try:
        spark.sql(
            f"MERGE INTO {target} t USING (SELECT /*+ BROADCAST(k) */ k.{KEY} FROM {view} k) s ON t.{KEY} = s.{KEY}"
            " WHEN MATCHED THEN DELETE"
        )
    except (Py4JJavaError, PySparkException) as error:
        raise _as_conflict(error) from error
    finally:
        spark.catalog.dropTempView(view)


def _view_name() -> str:
    return f"mainstem_{uuid.uuid4().hex}"


def _as_conflict(error: BaseException) -> BaseException:
    if is_conflict(error):
        return Conflict(f"commit lost a race: {str(error)[:500]}")
    return error


