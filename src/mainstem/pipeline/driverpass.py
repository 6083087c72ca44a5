"""A pass without a Spark job: DuckDB on the driver reads the segments and writes the files, Iceberg commits them.

A Spark job costs half a second before it reads its first row, and several times DuckDB's time per row after that. For
what one machine does in a second or two it is the wrong tool; for what is large, elsewhere, partitioned or of types
that only Spark reads, it stays the only one. Both ways keep the same rule: the marks are in the commit of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.datafiles import takes_files, write_file
from mainstem.pipeline.driver_sql import DriverSql, local_path, text_list, text_of
from mainstem.pipeline.lake import LakeTable, Marks, commit
from mainstem.pipeline.merge import DELETE
from mainstem.pipeline.plainrows import are_plain, typed_rows
from mainstem.pipeline.rowdelta import RowDeltaUpsert
from mainstem.pipeline.segments import TableSlice
from mainstem.tables.evolution import Column
from mainstem.tables.layout import POSITION

_HISTORY = (
    "position AS _position, hlc AS _hlc, op AS _op, key AS _key, columns AS _columns, before AS _before,"
    " source AS _source, batch_sequence AS _batch_sequence, sequence AS _sequence, id AS _id,"
    " CAST(make_timestamp(arrival_ms * 1000) AS TIMESTAMPTZ) AS _time,"
    " CAST(make_timestamp(source_time_ms * 1000) AS TIMESTAMPTZ) AS _source_time, metadata AS _metadata"
)


@dataclass(frozen=True, slots=True)
class DriverPass:
    """Writes what is small enough. `rows_max` is the largest slice that it takes; more is Spark's."""

    sql: DriverSql
    upsert: RowDeltaUpsert
    rows_max: int

    def takes(self, run: TableSlice) -> bool:
        """Whether the slice is small enough and on this machine."""
        return run.count <= self.rows_max and all(local_path(path) is not None for path in run.paths)

    def append_history(self, history: LakeTable, run: TableSlice, after: LogPosition | None, marks: Marks) -> bool:
        """Append the changes past `after` as they came, and say so; False where the table is not for this way."""
        if not takes_files(history):
            return False
        file = write_file(self.sql, history, f"SELECT {_HISTORY} FROM ({_changes(run, after)})")
        append = history.java.newFastAppend() if file is None else history.java.newAppend().appendFile(file)
        for name, value in marks.summary().items():
            append.set(name, value)
        commit(append)
        return True

    def replace_whole_rows(
        self,
        state: LakeTable,
        keys: pa.Table,
        run: TableSlice,
        after: LogPosition | None,
        columns: Sequence[Column],
        marks: Marks,
    ) -> bool:
        """Put each key's last row in place of its old one; False where Spark has to do it, and nothing is written."""
        if not takes_files(state) or not are_plain(columns, run.columns):
            return False
        upserts = (
            f"SELECT * FROM ({_changes(run, after)}) c"
            f" SEMI JOIN batch_keys k ON c.position = k.{POSITION} WHERE c.op <> {text_of(DELETE)}"
        )
        try:
            file = write_file(self.sql, state, typed_rows(upserts, columns), {"batch_keys": keys})
        except (duckdb.InvalidInputException, duckdb.ConversionException):
            # A row that a strict reader does not take: a name that stands twice in it, say. Spark knows what to do.
            return False
        self.upsert.replace(state, keys, [] if file is None else [file], marks)
        return True


def _changes(run: TableSlice, after: LogPosition | None) -> str:
    """The table's rows of the slice past a position, without those that the sealer refused."""
    condition = _of_table(run.table)
    if after is not None:
        condition += f" AND position > {int(after)}"
    paths = text_list(path for path in map(local_path, run.paths) if path)
    return (
        f"SELECT * FROM read_parquet({paths}, hive_partitioning = false)"
        f" WHERE {condition} AND position <= {int(run.last)} AND error IS NULL"
    )


def _of_table(table: TableName) -> str:
    return f'namespace = {text_of(table.namespace)} AND "table" = {text_of(table.table)}'
