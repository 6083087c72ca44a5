"""Runs queries for the gateway: bounded in number, time, rows and memory, and cancelled when the client leaves.

    async with engine.open(request) as running:
        async for batch in running.batches(): ...

Leaving the block ends the query, finished or not. The SQL runs in a sandbox process (`processes`), which is killed
where the query does not end in time; here it is only said what to run, and the rows are passed on.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from mainstem.model import Invalid, Overloaded
from mainstem.query.binding import Binder, BoundTable, Freshness
from mainstem.query.ports import Lake, Pending, Readable, everything
from mainstem.query.route import EngineName
from mainstem.query.sandbox.orders import Column, Run
from mainstem.query.sandbox.processes import Sandboxes, SandboxProcess
from mainstem.query.sandbox.session import SandboxSettings
from mainstem.query.statements.questions import Statements
from mainstem.query.statements.statement import Kind, Statement
from mainstem.query.tables import SnapshotUse
from mainstem.runtime.clock import Clock, SystemClock

__all__ = ["Column", "EngineSettings", "QueryEngine", "QueryRequest", "Running", "Stats"]

T = TypeVar("T")

ROWS_DEFAULT = 10_000
ROWS_MAX = 1_000_000
TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000
# How often a query that must stop is looked after: its process may only just be starting when it is killed first.
_KILL_EVERY_S = 0.02


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
    # Stages of a pipeline, for documents in the rows: Spark alone runs them, and only where the query is large.
    stages: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= ROWS_MAX:
            raise Invalid(f"limit is out of range. expected=0..{ROWS_MAX} got={self.limit}")
        if not 1 <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise Invalid(f"timeoutMs is out of range. expected=1..{TIMEOUT_MS_MAX} got={self.timeout_ms}")


class Stats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a query took. `bytes` is the size of the result in memory."""

    elapsed_ms: float
    engine: str
    rows: int
    bytes: int
    snapshots: tuple[SnapshotUse, ...]


class BoundQuery(NamedTuple):
    """A checked statement, and its tables at the snapshots that it is planned on and runs on."""

    statement: Statement
    tables: tuple[BoundTable, ...]


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
        self,
        lake: Lake,
        settings: EngineSettings,
        *,
        pending: Pending | None = None,
        clock: Clock | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        """`sandboxes`: processes that somebody else opened, and closes."""
        self.binder = Binder(lake, pending)
        # One more than queries run: a statement can always be looked at.
        self.sandboxes = sandboxes or Sandboxes(settings.sandbox, settings.folder, settings.running_max + 1)
        self._owns_sandboxes = sandboxes is None
        self.statements = Statements(self.sandboxes)
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(settings.running_max, thread_name_prefix="query")
        self._slots = asyncio.Semaphore(settings.running_max)
        self._inside = 0

    @property
    def inside(self) -> int:
        """How many queries run or wait."""
        return self._inside

    async def warm(self) -> None:
        """Have every process ready before the first query needs one: its start takes half a second."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self.sandboxes.warm)

    async def bind(self, request: QueryRequest, readable: Readable = everything) -> BoundQuery:
        """Check a query, and say which snapshots it reads."""
        statement = await self.statements.check(request.sql)
        if statement.kind is Kind.SHOW_TABLES:
            return BoundQuery(statement, ())
        return BoundQuery(statement, await self.binder.bind(statement, request.freshness, readable))

    @asynccontextmanager
    async def open(
        self, request: QueryRequest, readable: Readable = everything, bound: BoundQuery | None = None
    ) -> AsyncIterator[Running]:
        """Start a query, bound now where it was not before. Leaving the block stops it if it is not over."""
        started_s = self._clock.monotonic_s()
        bound = await self.bind(request, readable) if bound is None else bound
        room = self._settings.running_max + self._settings.waiting_max
        if self._inside >= room:
            raise Overloaded(
                f"too many queries. expected=at most {room} at once got={self._inside + 1}",
                retry_after_s=1.0,
                reason="query_slots",
            )
        self._inside += 1
        execution = _Execution(self.sandboxes, self._threads, started_s, request.timeout_ms)
        try:
            async with self._slot(request.timeout_ms):
                await self._start(bound, readable, execution)
                try:
                    yield Running(execution, request, bound.tables, self._clock)
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

    async def _start(self, bound: BoundQuery, readable: Readable, execution: "_Execution") -> None:
        if bound.statement.kind is Kind.SHOW_TABLES:
            execution.give(_listing(await self.binder.tables(readable)))
            return
        folders = self._folders(bound.tables, readable)
        try:
            order = Run(bound.statement, tuple(table.lean() for table in bound.tables), frozenset(folders))
            await execution.call(lambda: execution.start(order))
        except BaseException:
            await execution.end()
            raise

    def _folders(self, tables: Iterable[BoundTable], readable: Readable) -> set[str]:
        needed: set[str] = set().union(*(table.folders() for table in tables))
        whole = self._settings.folder
        # A caller with bounds gets a session that can open nothing but the tables of this very query.
        if readable is everything and whole is not None and all(each.startswith(whole) for each in needed):
            return {whole}
        return needed

    async def close(self) -> None:
        """End the processes. What still runs in one ends with it."""
        if self._owns_sandboxes:
            await asyncio.to_thread(self.sandboxes.close)
        await self.statements.close()
        await asyncio.to_thread(self._threads.shutdown)


class _Execution:
    """One statement in one process. `start` and `read` run in a worker thread, one at a time."""

    def __init__(self, sandboxes: Sandboxes, threads: ThreadPoolExecutor, started_s: float, timeout_ms: int) -> None:
        self.started_s = started_s
        self.columns: tuple[Column, ...] = ()
        self.schema: pa.Schema = pa.schema([])
        self._sandboxes = sandboxes
        self._threads = threads
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + timeout_ms / 1000
        self._stop = threading.Event()
        self._process: SandboxProcess | None = None
        self._given: pa.RecordBatchReader | None = None

    async def call(self, step: Callable[[], T]) -> T:
        """Run a step in a thread, within the time that is left; stop it where the caller goes away."""
        future = self._loop.run_in_executor(self._threads, step)
        try:
            done, _ = await asyncio.wait({future}, timeout=self._left_s())
        except asyncio.CancelledError:
            await self._halt(future)
            raise
        if not done:
            await self._halt(future)
            raise Invalid(f"the query took too long. expected=at most {self._timeout_ms} ms", reason="query_timeout")
        return future.result()

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._loop.time())

    async def _halt(self, future: "asyncio.Future[T]") -> None:
        """End the process: there is SQL that no interrupt reaches."""
        self._stop.set()
        while not future.done():
            if self._process is not None:
                self._process.kill()
            await asyncio.wait({future}, timeout=_KILL_EVERY_S)
        if not future.cancelled():
            future.exception()

    def start(self, order: Run) -> None:
        """Run the statement up to its first rows."""
        self._process = process = self._sandboxes.take()
        self._check_stop()
        self.columns, self.schema = process.start(order, self._left_s())

    def give(self, table: pa.Table) -> None:
        """Answer with a table that needs no engine."""
        self.columns = tuple(Column(field.name, "VARCHAR") for field in table.schema)
        self._given = table.to_reader()
        self.schema = table.schema

    def read(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        self._check_stop()
        if self._given is not None:
            return next(self._given, None)
        assert self._process is not None
        return self._process.next(self._left_s())

    async def end(self) -> None:
        """Leave the process to the next query. The rest of the rows is not read."""
        process, self._process = self._process, None
        self._given = None
        if process is not None:
            await asyncio.shield(self._loop.run_in_executor(self._threads, self._sandboxes.free, process))

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Invalid("the query was stopped", reason="query_timeout")


def _listing(names: Iterable[tuple[str, str]]) -> pa.Table:
    rows = [tuple(name) for name in names]
    return pa.table(
        {
            "namespace": pa.array([namespace for namespace, _ in rows], pa.string()),
            "name": pa.array([name for _, name in rows], pa.string()),
        }
    )
