"""One statement in one session: started, read batch by batch, put away. Runs in the sandbox process only."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import duckdb
import pyarrow as pa

from mainstem.model import Conflict, Denied, Invalid, MainstemError
from mainstem.query.binding import BoundTable
from mainstem.query.sandbox.encode import VARIANT, with_json_marked
from mainstem.query.sandbox.orders import FRAME_BYTES_MAX, Column, Run
from mainstem.query.sandbox.session import Session, Sessions
from mainstem.query.statements.statement import Kind
from mainstem.query.tables import current_snapshot, shared_vectors_sql
from mainstem.sql import duckdb_name

T = TypeVar("T")

_BATCH_ROWS = 8_192
# A frame has the schema too, and padding between the columns.
_BATCH_BYTES_MAX = FRAME_BYTES_MAX // 2
_PREFIXES = {Kind.EXPLAIN: "EXPLAIN ", Kind.EXPLAIN_ANALYZE: "EXPLAIN ANALYZE "}


class Execution:
    """A statement that runs."""

    def __init__(self, sessions: Sessions) -> None:
        self.columns: tuple[Column, ...] = ()
        self.schema: pa.Schema = pa.schema([])
        self._sessions = sessions
        self._session: Session | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._cut: deque[pa.RecordBatch] = deque()

    def start(self, order: Run) -> None:
        """Take a session, show it the tables and run the statement up to its first rows."""
        self._session = session = self._sessions.take(order.folders)
        session.only(table.name for table in order.tables)
        for number, table in enumerate(order.tables):
            refuse_misread(session, table)
            table.show(session, f"__mainstem_{number}")
        sql = order.statement.sql
        session.connection.execute(_PREFIXES.get(order.statement.kind, "") + sql)
        described = session.connection.description or []
        self.columns = tuple(Column(each[0], str(each[1])) for each in described)
        if any(VARIANT in column.type for column in self.columns):
            session.connection.execute(_with_json(sql, self.columns))
        self._reader = session.connection.to_arrow_reader(_BATCH_ROWS)
        self.schema = with_json_marked(self._reader.schema, [column.type for column in self.columns])

    def read(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        assert self._reader is not None, "nothing was started"
        if not self._cut:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return None
            self._cut.extend(cut(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)))
        return self._cut.popleft()

    def end(self, *, reusable: bool) -> None:
        """Leave the session to the next query. The rest of the rows is not read."""
        session, self._session, self._reader = self._session, None, None
        self._cut.clear()
        if session is None:
            return
        try:
            self._sessions.give_back(session, reusable=reusable)
        except duckdb.Error:
            self._sessions.give_back(session, reusable=False)


def cut(batch: pa.RecordBatch, bytes_max: int = _BATCH_BYTES_MAX) -> list[pa.RecordBatch]:
    """The batch in pieces that each fit a frame. Raises Invalid for a row that does not."""
    if batch.nbytes <= bytes_max:
        return [batch]
    if batch.num_rows == 1:
        raise Invalid(
            f"a row is too large. expected=at most {bytes_max} bytes got={batch.nbytes}", reason="query_memory"
        )
    half = batch.num_rows // 2
    return [*cut(batch.slice(0, half), bytes_max), *cut(batch.slice(half), bytes_max)]


def _with_json(sql: str, columns: Sequence[Column]) -> str:
    """The same rows with each Variant as JSON: Arrow has no such type."""
    if nested := [column.name for column in columns if VARIANT in column.type and column.type != VARIANT]:
        raise Invalid(f"a variant cannot leave inside another value. expected=CAST(… AS JSON) got={', '.join(nested)}")
    names = [f"c{number}" for number in range(len(columns))]
    selected = [
        # A null that is no value of its own stays one.
        f"CASE WHEN {name} IS NOT NULL THEN CAST({name} AS JSON) END AS {duckdb_name(column.name)}"
        if column.type == VARIANT
        else f"{name} AS {duckdb_name(column.name)}"
        for name, column in zip(names, columns, strict=True)
    ]
    return f"SELECT {', '.join(selected)} FROM ({sql.rstrip().rstrip(';')}\n) AS answered({', '.join(names)})"


def refuse_misread(session: Session, table: BoundTable) -> None:
    """Refuse a table that DuckDB 1.5 would read wrongly without a word: several deletion vectors in one file."""
    loaded = table.loaded
    if loaded is None or int(loaded.metadata.get("format-version", 1)) < 3:
        return
    snapshot = current_snapshot(loaded.metadata)
    if snapshot is None or str((snapshot.get("summary") or {}).get("total-delete-files", "1")) == "0":
        return
    shared = session.connection.execute(shared_vectors_sql(loaded)).fetchone()
    if shared and shared[0]:
        raise Invalid(
            f"this table needs Spark: its deletion vectors share files, which DuckDB misreads. got={table.name}",
            reason="needs_spark",
        )


def mapped(step: Callable[[], T]) -> T:
    """Run a step; whatever fails in it is an error of ours."""
    try:
        return step()
    except MainstemError:
        raise
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        raise error_of(error) from error


def error_of(error: BaseException) -> MainstemError:
    """DuckDB's errors by what the caller can do about them. Paths stay inside."""
    text = str(error).split("\n", 1)[0]
    if isinstance(error, duckdb.PermissionException):
        return Denied("this is not allowed in a query")
    if _is_out_of_memory(error, text):
        return Invalid("the query needs more memory than it may use", reason="query_memory")
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
        return Invalid("the query was stopped", reason="query_timeout")
    if isinstance(error, duckdb.IOException | duckdb.HTTPException) or text.startswith(("IO Error", "HTTP Error")):
        return Conflict("a file of the table could not be read: the snapshot may have expired, ask again")
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return MainstemError("the engine failed on this query")
    return Invalid(f"the query failed. got={text}", reason="sql_error")


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    # pyarrow's own is a MemoryError too.
    return isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory Error" in text
