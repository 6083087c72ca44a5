"""A pass without a Spark job: DuckDB on the driver reads the segments and writes the files, one call commits them.

A Spark job costs half a second before it reads its first row, and several times DuckDB's time per row after that. For
what one machine does in a second or two it is the wrong tool; for what is large, elsewhere, partitioned, or of types
that only Spark reads, it stays the only one. Both ways keep the same rule: the marks are in the commit of the rows.

Every method may decline. It has then written nothing, or only what the marks let the next attempt see.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.manifest import DataFile

from mainstem.model.change import SOURCE_TIME_MS_MAX, SOURCE_TIME_MS_MIN
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.changes import may_not_fit
from mainstem.pipeline.datafiles import write_rows
from mainstem.pipeline.driver_sql import DriverSql, local_path, text_list, text_of
from mainstem.pipeline.keyindex import KeyIndex
from mainstem.pipeline.lake import Marks
from mainstem.pipeline.linking import link_segment
from mainstem.pipeline.lookup import DRIVER_ROWS_MAX, LiveFiles
from mainstem.pipeline.merge import DELETE
from mainstem.pipeline.places import Finder
from mainstem.pipeline.plainrows import are_plain, are_whole_and_newer, typed_rows
from mainstem.pipeline.quickcatalog import QuickCatalog, QuickTable
from mainstem.pipeline.quickcommit import QuickCommits, new_data_location
from mainstem.pipeline.segments import Segment, TableSlice
from mainstem.tables.evolution import Evolution, plan_evolution
from mainstem.tables.layout import KEY, POSITION
from mainstem.tables.parquet import writer_options
from mainstem.tables.settings import TableSettings

_HISTORY = (
    "position AS _position, hlc AS _hlc, op AS _op, key AS _key, columns AS _columns, before AS _before,"
    " source AS _source, batch_sequence AS _batch_sequence, sequence AS _sequence, id AS _id,"
    " make_timestamptz(arrival_ms * 1000) AS _time,"
    f" CASE WHEN source_time_ms BETWEEN {SOURCE_TIME_MS_MIN} AND {SOURCE_TIME_MS_MAX}"
    " THEN make_timestamptz(source_time_ms * 1000) END AS _source_time, metadata AS _metadata"
)


class DriverPass:
    """Writes what is small enough: slices of up to `rows_max` changes. More is Spark's."""

    def __init__(
        self, sql: DriverSql, catalog: QuickCatalog, commits: QuickCommits, side_jobs: Executor, rows_max: int
    ) -> None:
        self._sql = sql
        self._finder = Finder(sql)
        self._catalog = catalog
        self._commits = commits
        # Where the history is written, and old rows are looked up, while the caller's thread writes the state.
        self._side_jobs = side_jobs
        self._rows_max = rows_max

    def marks(self, name: TableName) -> Marks:
        """The marks of a physical table, from memory where it is known; none where it does not exist."""
        table = self._catalog.table(name)
        return Marks() if table is None else table.marks()

    def forget(self, name: TableName) -> None:
        """Somebody else wrote to this logical table."""
        self._catalog.forget(name, name.history)

    def write(self, run: TableSlice, settings: TableSettings) -> bool:
        """Write a slice into its state and history. False: tables, schema or rows need more than this."""
        # A table that is to be partitioned may have to become so with this very slice.
        if run.errors or settings.partition or not self._takes(run):
            return False
        state = self._suited(run.table) if settings.state else None
        history = self._suited(run.table.history) if settings.history else None
        if (settings.state and state is None) or (settings.history and history is None):
            return False
        if state is None:
            return history is not None and self.append_history(run)
        before = state.marks()
        seen = run.columns if before.position < run.last else {}
        plan = plan_evolution(state.columns(), seen, settings)
        if plan.touches_schema or not self._can_replace(state, run, plan, before):
            return False
        if history is None:
            return self.replace_rows(run, plan)
        beside = self._side_jobs.submit(self.append_history, run)
        try:
            is_written = self.replace_rows(run, plan)
        finally:
            # Never leave a writer running behind a failure: the next attempt would race it.
            failure = beside.exception()
        if failure is not None:
            raise failure
        return is_written and beside.result()

    def append_history(self, run: TableSlice) -> bool:
        """Append the changes as they came."""
        history = self._suited(run.table.history) if self._takes(run) else None
        if history is None:
            return False
        before = history.marks()
        if before.position < run.last:
            added, copied = [], []
            for segment in run.segments:
                file = link_segment(history, run.table, segment, before.position)
                added.extend([] if file is None else [file])
                copied.extend([segment] if file is None else [])
            if copied:
                query = f"SELECT {_HISTORY} FROM ({_changes(run, before.position, copied)})"
                added += self._write(history, query, {}, run.count)
            self._commits.commit(history, added, [], before.advanced(run.last, run.hlc_max))
        return True

    def replace_rows(self, run: TableSlice, plan: Evolution) -> bool:
        """Put each key's last row in place of its old one."""
        state = self._suited(run.table) if self._takes(run) else None
        if state is None:
            return False
        before = state.marks()
        if before.position >= run.last:
            return True
        if not self._can_replace(state, run, plan, before):
            return False
        files = self._commits.live_files(state)
        if files.only_spark or files.rows > DRIVER_ROWS_MAX:
            return False
        keys = self._keys(run, before.position)
        finding = self._side_jobs.submit(self._old_rows, state, files, keys)
        try:
            upserts = self._upserts(run, before.position, plan, keys)
            added = self._write(state, upserts, {"batch_keys": keys}, keys.num_rows)
        except Exception as error:
            if finding.exception() is None:
                self._commits.discard(finding.result()[1])
            # A row that a strict reader does not take: a name that stands twice in it, say. Spark knows what to do.
            if isinstance(error, duckdb.InvalidInputException | duckdb.ConversionException):
                return False
            raise
        finally:
            finding.exception()
        index, deletes = finding.result()
        after = self._commits.commit(state, added, deletes, before.advanced(run.last, run.hlc_max))
        if index is not None:
            location = added[0].file_path if added else None
            self._finder.keep(run.table, after.snapshot_id, index, keys, location, self._side_jobs)
        return True

    def _old_rows(
        self, state: QuickTable, files: LiveFiles, keys: pa.Table
    ) -> tuple[KeyIndex | None, list[DataFile]]:
        """The table's index, and a delete file with the places of the keys' rows; none where they have none."""
        index = self._finder.take(state, files)
        places = self._finder.find(state, files, index, keys)
        return index, [self._commits.delete_file(state, places)] if places.num_rows else []

    def _upserts(self, run: TableSlice, after: LogPosition, plan: Evolution, keys: pa.Table) -> str:
        upserts = f"SELECT * FROM ({_changes(run, after)}) c"
        if keys.num_rows < run.count:
            upserts += f" SEMI JOIN batch_keys k ON c.position = k.{POSITION}"
        return typed_rows(f"{upserts} WHERE c.op <> {text_of(DELETE)}", plan.columns)

    def _keys(self, run: TableSlice, after: LogPosition) -> pa.Table:
        """The keys of the slice, each with its hashes and the position of its last change."""
        last = f"SELECT key AS {KEY}, max(position) AS {POSITION} FROM ({_changes(run, after)}) GROUP BY key"
        with self._sql.cursor() as cursor:
            return cursor.execute(f"SELECT *, {self._finder.hashes_of(KEY)} FROM ({last})").to_arrow_table()

    def _write(self, table: QuickTable, query: str, tables: dict[str, pa.Table], rows: int) -> list[DataFile]:
        """A query's rows, so many at most, as a data file of the table's; none where there are no rows."""
        location = new_data_location(table)
        path = Path(local_path(location) or "")
        options = writer_options(table.properties)
        if not write_rows(self._sql, path, table.field_ids(), query, tables, options, rows):
            return []
        return [self._commits.data_file(table, location, path)]

    def _takes(self, run: TableSlice) -> bool:
        return run.count <= self._rows_max and all(local_path(path) is not None for path in run.paths)

    def _suited(self, name: TableName) -> QuickTable | None:
        table = self._catalog.table(name)
        return table if table is not None and table.is_plain and local_path(new_data_location(table)) else None

    def _can_replace(self, state: QuickTable, run: TableSlice, plan: Evolution, before: Marks) -> bool:
        if before.position >= run.last:
            return True
        is_readable = bool(plan.columns) and not may_not_fit(plan) and are_plain(plan.columns, run.columns)
        return is_readable and are_whole_and_newer(run, plan.columns, before)


def _changes(run: TableSlice, after: LogPosition, segments: Sequence[Segment] | None = None) -> str:
    """The table's rows of a slice, or of some of its segments, past a position; without what the sealer refused."""
    chosen = run.segments if segments is None else segments
    paths = text_list(path for path in (local_path(str(segment.path)) for segment in chosen) if path)
    return (
        f"SELECT * FROM read_parquet({paths}, hive_partitioning = false)"
        f' WHERE namespace = {text_of(run.table.namespace)} AND "table" = {text_of(run.table.table)}'
        f" AND position > {int(after)} AND position <= {int(run.last)} AND error IS NULL"
    )
