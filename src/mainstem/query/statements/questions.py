"""What is asked about a statement without running it: is it allowed, what would it scan, how does Spark say it.

DuckDB folds constants when it plans (`SELECT list_sort(range(300000000))` is worked out then), and a short statement
may parse into gigabytes (GROUP BY CUBE, again and again). So this is done in a sandbox process too, one at a time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mainstem.model import Invalid, Overloaded, TableName
from mainstem.query.sandbox import orders
from mainstem.query.sandbox.processes import Sandboxes, SandboxProcess
from mainstem.query.statements.predicates import Scan
from mainstem.query.statements.spark_sql import SparkStatement
from mainstem.query.statements.statement import Statement

T = TypeVar("T")

# Well above what the longest statement takes that a person or a program writes.
ANSWER_S_MAX = 10.0
WAITING_MAX = 64
# Statements that were found good, by their text: dashboards ask the same again and again.
KEPT_MAX = 256
KEPT_LENGTH_MAX = 10_000


class Statements:
    """Statements from outside, looked at in a sandbox process."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statements")
        self._waiting = 0
        self._good: OrderedDict[str, Statement] = OrderedDict()

    async def check(self, sql: str) -> Statement:
        """Parse and check a statement. Raises Invalid where it is no SQL, Denied where it would do more than read."""
        if sql in self._good:
            self._good.move_to_end(sql)
            return self._good[sql]
        statement = await self._ask(orders.Check(sql), Statement)
        if len(sql) <= KEPT_LENGTH_MAX:
            self._good[sql] = statement
            if len(self._good) > KEPT_MAX:
                self._good.popitem(last=False)
        return statement

    async def scans(self, sql: str, tables: Mapping[TableName, Mapping[str, str]]) -> tuple[Scan, ...]:
        """The scans that a checked statement makes over tables with these columns."""
        return await self._ask(orders.PlanScans(sql, dict(tables)), tuple[Scan, ...])

    async def for_spark(self, statement: Statement, names: Collection[TableName] = ()) -> SparkStatement:
        """A checked statement in Spark's SQL. Raises Invalid for the reason `not_portable` where it has none."""
        return await self._ask(orders.Translate(statement, frozenset(names)), SparkStatement)

    async def close(self) -> None:
        """Wait for the answer that is under way."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _ask(self, order: orders.Order, kind: type[T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(
                f"too many statements wait to be looked at. expected=at most {WAITING_MAX}",
                retry_after_s=1.0,
                reason="query_slots",
            )
        self._waiting += 1
        lent: list[SandboxProcess] = []
        try:
            return await self._within_time(lambda: self._answer(order, kind, lent), lent)
        finally:
            self._waiting -= 1

    async def _within_time(self, step: Callable[[], T], lent: list[SandboxProcess]) -> T:
        # Counted from when it is looked at: those who wait for others before them are bounded by their number.
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def run() -> T:
            loop.call_soon_threadsafe(began.set)
            return step()

        future = loop.run_in_executor(self._thread, run)
        try:
            await began.wait()
            done, _ = await asyncio.wait({future}, timeout=ANSWER_S_MAX)
            if done:
                return future.result()
        except asyncio.CancelledError:
            if future.cancel():
                raise
            await _halted(future, lent)
            raise
        await _halted(future, lent)
        message = f"the statement takes too long to plan. expected=at most {ANSWER_S_MAX} s"
        raise Invalid(message, reason="query_timeout")

    def _answer(self, order: orders.Order, kind: type[T], lent: list[SandboxProcess]) -> T:
        process = self._sandboxes.take()
        lent.append(process)
        try:
            return process.ask(order, kind, ANSWER_S_MAX)
        finally:
            # One that still lives has nothing of the statement: it answered, or it refused.
            self._sandboxes.give_back(process, reusable=True)


async def _halted(future: "asyncio.Future[T]", lent: list[SandboxProcess]) -> None:
    """Kill the process that is busy with it, and wait until its thread has heard of that."""
    while not future.done():
        for process in lent:
            process.kill()
        await asyncio.wait({future}, timeout=0.02)
    if not future.cancelled():
        future.exception()
