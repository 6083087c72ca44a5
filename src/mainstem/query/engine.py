"""Runs queries in the gateway: bounded in number, time, rows and memory, and cancelled when nobody waits any more.

    async with engine.open(request) as running:
        async for batch in running.batches(): ...

Leaving the block ends the query, finished or not. DuckDB works in threads of our own; the event loop only waits.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import duckdb
import msgspec
import pyarrow as pa

from mainstem.model import Conflict, Denied, Invalid, MainstemError, Overloaded
from mainstem.query.binding import Binder, BoundTable, Freshness
from mainstem.query.encode import VARIANT, with_json_marked
from mainstem.query.ports import Lake, Pending, Readable, everything
from mainstem.query.route import EngineName
from mainstem.query.sandbox import SandboxSettings, Session, Sessions
from mainstem.query.statement import Kind, Parser, Statement, quote
from mainstem.query.tables import SnapshotUse, current_snapshot, shared_vectors_sql
from mainstem.runtime.clock import Clock, SystemClock

T = TypeVar("T")

ROWS_DEFAULT = 10_000
ROWS_MAX = 1_000_000
TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000
_BATCH_ROWS = 8_192
# How often a query that must stop is told so: it may be between two statements when it is told first.
_INTERRUPT_EVERY_S = 0.02


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the gateway queries may take. `folder` is the warehouse: what a caller without bounds reads in."""

    folder: str | None = None
    running_max: int = 2
    waiting_max: int = 16
    sandbox: SandboxSettings = SandboxSettings()


class QueryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One query, as its caller wants it."""

    sql: str
    limit: int = ROWS_DEFAULT
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    freshness: Freshness = Freshness.SNAPSHOT
    # Where it runs; None leaves that to the plan.
    engine: EngineName | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= ROWS_MAX:
            raise Invalid(f"limit is out of range. expected=0..{ROWS_MAX} got={self.limit}")
        if not 1 <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise Invalid(f"timeoutMs is out of range. expected=1..{TIMEOUT_MS_MAX} got={self.timeout_ms}")


class Column(msgspec.Struct, frozen=True):
    """A column of the result, with the name of its type in SQL."""

    name: str
    type: str


class Stats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a query took. `bytes` is the size of the result in memory."""

    elapsed_ms: float
    engine: str
    rows: int
    bytes: int
    snapshots: tuple[SnapshotUse, ...]


class Running:
    """A query under way: its columns are known, its rows are read as they are asked for."""

    def __init__(self, execution: "_Execution", request: QueryRequest, tables: Iterable[BoundTable], clock: Clock):
        self._execution = execution
        self._limit = request.limit
        self._clock = clock
        self._started_s = execution.started_s
        self._rows = 0
        self._bytes = 0
        self.truncated = False
        self.snapshots = tuple(table.use() for table in tables)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Names and SQL types."""
        return self._execution.columns

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return self._execution.schema

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, at most as many as asked for; `truncated` says afterwards whether there were more."""
        while (batch := await self._execution.call(self._execution.read)) is not None:
            left = self._limit - self._rows
            if batch.num_rows > left:
                self.truncated = True
                batch = batch.slice(0, left)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            if batch.num_rows:
                yield batch
            if self.truncated:
                return

    def stats(self) -> Stats:
        """What it took so far."""
        return Stats(
            elapsed_ms=round((self._clock.monotonic_s() - self._started_s) * 1000, 3),
            engine="duckdb",
            rows=self._rows,
            bytes=self._bytes,
            snapshots=self.snapshots,
        )


class QueryEngine:
    """DuckDB over the lake, for statements from outside."""

    def __init__(
        self, lake: Lake, settings: EngineSettings, *, pending: Pending | None = None, clock: Clock | None = None
    ) -> None:
        self.parser = Parser()
        self.binder = Binder(lake, pending)
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._sessions = Sessions(settings.sandbox)
        self._threads = ThreadPoolExecutor(settings.running_max, thread_name_prefix="query")
        self._slots = asyncio.Semaphore(settings.running_max)
        self._inside = 0

    @property
    def inside(self) -> int:
        """How many queries run or wait."""
        return self._inside

    async def warm(self) -> None:
        """Have a session ready before the first query needs it: loading the extensions takes some 200 ms."""
        if self._settings.folder is None:
            return
        folders = {self._settings.folder}

        def prepare() -> None:
            self._sessions.give_back(self._sessions.take(folders), reusable=True)

        await asyncio.get_running_loop().run_in_executor(self._threads, prepare)

    @asynccontextmanager
    async def open(self, request: QueryRequest, readable: Readable = everything) -> AsyncIterator[Running]:
        """Check, bind and start a query. Leaving the block stops it if it is not over."""
        started_s = self._clock.monotonic_s()
        statement = self.parser.check(request.sql)
        room = self._settings.running_max + self._settings.waiting_max
        if self._inside >= room:
            raise Overloaded(
                f"too many queries. expected=at most {room} at once got={self._inside + 1}",
                retry_after_s=1.0,
                reason="query_slots",
            )
        self._inside += 1
        execution = _Execution(self._sessions, self._threads, started_s, request.timeout_ms)
        try:
            async with self._slot(request.timeout_ms):
                tables = await self._prepare(statement, request, readable, execution)
                try:
                    yield Running(execution, request, tables, self._clock)
                finally:
                    await execution.end()
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def _slot(self, timeout_ms: int) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(
                f"no room for the query within its time. expected=a slot within {timeout_ms} ms got=none",
                retry_after_s=1.0,
                reason="query_slots",
            ) from None
        try:
            yield
        finally:
            self._slots.release()

    async def _prepare(
        self, statement: Statement, request: QueryRequest, readable: Readable, execution: "_Execution"
    ) -> tuple[BoundTable, ...]:
        if statement.kind is Kind.SHOW_TABLES:
            execution.give(_listing(await self.binder.tables(readable)))
            return ()
        tables = await self.binder.bind(statement, request.freshness, readable)
        folders = self._folders(tables, readable)
        try:
            await execution.call(lambda: execution.start(statement, tables, folders))
        except BaseException:
            await execution.end()
            raise
        return tables

    def _folders(self, tables: Iterable[BoundTable], readable: Readable) -> set[str]:
        needed: set[str] = set().union(*(table.folders() for table in tables))
        whole = self._settings.folder
        # A caller with bounds gets a session that can open nothing but the tables of this very query.
        if readable is everything and whole is not None and all(each.startswith(whole) for each in needed):
            return {whole}
        return needed

    async def close(self) -> None:
        """Give the sessions back. What still runs is stopped by whoever opened it."""
        await asyncio.to_thread(self._threads.shutdown)
        self._sessions.close()


class _Execution:
    """One statement in one session. `start` and `read` run in a worker thread, one at a time."""

    def __init__(self, sessions: Sessions, threads: ThreadPoolExecutor, started_s: float, timeout_ms: int) -> None:
        self.started_s = started_s
        self.columns: tuple[Column, ...] = ()
        self.schema: pa.Schema = pa.schema([])
        self._sessions = sessions
        self._threads = threads
        self._timeout_ms = timeout_ms
        self._deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        self._stop = threading.Event()
        self._session: Session | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._reusable = True

    async def call(self, step: Callable[[], T]) -> T:
        """Run a step in a thread, within the time that is left; stop it where the caller goes away."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, _mapped(step))
        try:
            done, _ = await asyncio.wait({future}, timeout=max(0.0, self._deadline_s - loop.time()))
        except asyncio.CancelledError:
            await self._halt(future)
            raise
        if not done:
            await self._halt(future)
            raise Invalid(
                f"the query took too long. expected=at most {self._timeout_ms} ms", reason="query_timeout"
            )
        return future.result()

    async def _halt(self, future: "asyncio.Future[T]") -> None:
        self._stop.set()
        self._reusable = False
        while not future.done():
            if self._session is not None:
                self._session.connection.interrupt()
            await asyncio.wait({future}, timeout=_INTERRUPT_EVERY_S)
        if not future.cancelled():
            future.exception()

    def start(self, statement: Statement, tables: tuple[BoundTable, ...], folders: set[str]) -> None:
        """Take a session, show it the tables and run the statement up to its first rows."""
        self._session = session = self._sessions.take(folders)
        session.only(table.name for table in tables)
        for number, table in enumerate(tables):
            self._check_stop()
            refuse_misread(session, table)
            table.show(session, f"__mainstem_{number}")
        self._check_stop()
        prefix = {Kind.EXPLAIN: "EXPLAIN ", Kind.EXPLAIN_ANALYZE: "EXPLAIN ANALYZE "}.get(statement.kind, "")
        session.connection.execute(prefix + statement.sql)
        described = session.connection.description or []
        self.columns = tuple(Column(each[0], str(each[1])) for each in described)
        if any(VARIANT in column.type for column in self.columns):
            session.connection.execute(_with_json(statement.sql, self.columns))
        self._reader = session.connection.to_arrow_reader(_BATCH_ROWS)
        self.schema = with_json_marked(self._reader.schema, [column.type for column in self.columns])

    def give(self, table: pa.Table) -> None:
        """Answer with a table that needs no engine."""
        self.columns = tuple(Column(field.name, "VARCHAR") for field in table.schema)
        self._reader = table.to_reader()
        self.schema = table.schema

    def read(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        assert self._reader is not None
        self._check_stop()
        try:
            batch = self._reader.read_next_batch()
        except StopIteration:
            return None
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    async def end(self) -> None:
        """Leave the session to the next query. The rest of the rows is not read."""
        session, self._session = self._session, None
        self._reader = None
        if session is None:
            return
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._threads, self._give_back, session))

    def _give_back(self, session: Session) -> None:
        try:
            self._sessions.give_back(session, reusable=self._reusable)
        except duckdb.Error:
            self._sessions.give_back(session, reusable=False)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Invalid("the query was stopped", reason="query_timeout")


def _with_json(sql: str, columns: Sequence[Column]) -> str:
    """The same rows with each Variant as JSON: Arrow has no such type."""
    if nested := [column.name for column in columns if VARIANT in column.type and column.type != VARIANT]:
        raise Invalid(f"a variant cannot leave inside another value. expected=CAST(… AS JSON) got={', '.join(nested)}")
    names = [f"c{number}" for number in range(len(columns))]
    selected = [
        # A null that is no value of its own stays one.
        f"CASE WHEN {name} IS NOT NULL THEN CAST({name} AS JSON) END AS {quote(column.name)}"
        if column.type == VARIANT
        else f"{name} AS {quote(column.name)}"
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


def _mapped(step: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        try:
            return step()
        except MainstemError:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise error_of(error) from error

    return run


def error_of(error: Exception) -> MainstemError:
    """DuckDB's errors by what the caller can do about them. Paths stay inside."""
    text = str(error).split("\n", 1)[0]
    if isinstance(error, duckdb.PermissionException):
        return Denied("this is not allowed in a query")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return Invalid("the query needs more memory than it may use", reason="query_memory")
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
        return Invalid("the query was stopped", reason="query_timeout")
    if isinstance(error, duckdb.IOException | duckdb.HTTPException) or text.startswith(("IO Error", "HTTP Error")):
        return Conflict("a file of the table could not be read: the snapshot may have expired, ask again")
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return MainstemError("the engine failed on this query")
    return Invalid(f"the query failed. got={text}", reason="sql_error")


def _listing(names: Iterable[tuple[str, str]]) -> pa.Table:
    rows = [tuple(name) for name in names]
    return pa.table(
        {
            "namespace": pa.array([namespace for namespace, _ in rows], pa.string()),
            "name": pa.array([name for _, name in rows], pa.string()),
        }
    )
