"""The third wall: SQL runs in a process of its own, which the system bounds and the gateway kills and replaces."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.model import Invalid, MainstemError
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.plan import Planner, PlanRequest
from mainstem.query.sandbox import orders
from mainstem.query.sandbox.execution import cut
from mainstem.query.sandbox.processes import Sandboxes, SandboxProcess
from mainstem.query.sandbox.session import SandboxSettings
from mainstem.query.statements.statement import Statement
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

MEGABYTE = 1024 * 1024
SETTINGS = SandboxSettings(memory_bytes_max=128 * MEGABYTE, process_bytes_max=512 * MEGABYTE, threads=1)
# One call of one function: nothing inside it looks whether it was interrupted.
UNINTERRUPTIBLE = "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"
# Planning works it out: a constant.
HUGE = "SELECT list_sort(range(300000000))"
CUBE = f"(SELECT 1 FROM range(3) GROUP BY CUBE ({', '.join(f'c{number}' for number in range(15))}))"
# Ninety thousand characters that parse into some gigabytes.
BOMB = f"SELECT {', '.join([CUBE] * 900)}"


def rss_bytes(pid: int | str = "self", field: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


async def run(engine: QueryEngine, sql: str, **settings: Any) -> list[Any]:
    async with engine.open(QueryRequest(sql=sql, **settings)) as running:
        return [row async for batch in running.batches() for row in batch.to_pylist()]


async def plan(engine: QueryEngine, sql: str) -> object:
    return await Planner(engine.binder, engine.statements).plan(PlanRequest(sql=sql))


async def translate(engine: QueryEngine, sql: str) -> object:
    return await engine.statements.for_spark(await engine.statements.check(sql))


@pytest.fixture
async def small(catalog: FolderCatalog) -> AsyncIterator[QueryEngine]:
    engine = QueryEngine(FolderLake(catalog), EngineSettings(folder=f"{catalog.folder}/", sandbox=SETTINGS))
    yield engine
    await engine.close()


@pytest.mark.parametrize(
    ("ask", "sql"),
    [
        (run, HUGE),
        (run, f"EXPLAIN {HUGE}"),
        (run, "SELECT list_aggregate(range(300000000), 'sum')"),
        (run, "SELECT length(string_agg(repeat('x', 1000000), '')) FROM range(2000)"),
        (run, "SELECT max(len(list_transform(range(200000000), x -> x * 2)))"),
        (plan, HUGE),
        (run, BOMB),
        (plan, BOMB),
        (translate, BOMB),
    ],
)
async def test_a_query_that_wants_the_whole_memory_takes_none_of_the_gateways(
    small: QueryEngine, ask: Callable[[QueryEngine, str], Any], sql: str
) -> None:
    before = rss_bytes()
    try:
        await ask(small, sql)
    except Invalid as error:
        assert error.reason in ("query_memory", "query_timeout", "sql_syntax")
    else:
        # DuckDB leaves a constant as it is that it cannot work out while it plans.
        assert sql.startswith("EXPLAIN") or ask is plan
    assert rss_bytes() - before < 64 * MEGABYTE
    # Whoever is idle now has stayed below its bound, or is a new process.
    for pid in small.sandboxes.pids:
        assert rss_bytes(pid, "VmHWM") < 800 * MEGABYTE
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]


@pytest.mark.parametrize("ask", [run, plan])
async def test_the_gateways_loop_goes_on_while_a_statement_is_looked_at(
    small: QueryEngine, ask: Callable[[QueryEngine, str], Any]
) -> None:
    task = asyncio.ensure_future(ask(small, BOMB))
    longest_s = 0.0
    while not task.done():
        began_s = time.monotonic()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.monotonic() - began_s)
    assert task.exception() is not None
    assert longest_s < 1.0


async def test_a_query_that_no_interrupt_reaches_is_killed_at_its_time_limit(small: QueryEngine) -> None:
    await small.warm()
    before = set(small.sandboxes.pids)
    began_s = time.monotonic()
    with pytest.raises(Invalid) as caught:
        await run(small, UNINTERRUPTIBLE, timeout_ms=300)
    assert caught.value.reason == "query_timeout"
    # On its own it takes a minute.
    assert time.monotonic() - began_s < 10
    assert small.sandboxes.replaced == 1
    assert len(set(small.sandboxes.pids) - before) == 1, "another has taken its place"
    assert len(before - set(small.sandboxes.pids)) == 1
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]


async def test_a_query_whose_caller_leaves_is_killed(small: QueryEngine) -> None:
    task = asyncio.ensure_future(run(small, UNINTERRUPTIBLE))
    while small.inside == 0:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]


async def test_a_process_that_dies_is_a_named_error_and_the_next_query_runs(small: QueryEngine) -> None:
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]
    (pid,) = small.sandboxes.pids
    async with small.open(QueryRequest(sql="SELECT * FROM range(10000000)", limit=1_000_000)) as running:
        with pytest.raises(Invalid) as caught:
            async for _ in running.batches():
                os.kill(pid, signal.SIGKILL)
    assert caught.value.reason == "query_memory"
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]


async def test_truncated_results_keep_their_process(small: QueryEngine) -> None:
    for _ in range(3):
        assert len(await run(small, "SELECT * FROM range(100000000000)", limit=10)) == 10
    assert small.sandboxes.replaced == 0
    assert len(small.sandboxes.pids) == 1


async def test_a_process_that_ran_short_of_memory_is_replaced(small: QueryEngine) -> None:
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]
    (before,) = small.sandboxes.pids
    with pytest.raises(Invalid) as caught:
        await run(small, "SELECT list(range) FROM range(100000000)")
    assert caught.value.reason == "query_memory"
    (after,) = small.sandboxes.pids
    assert after != before
    assert await run(small, "SELECT 42 AS n") == [{"n": 42}]


def test_a_process_has_nothing_of_the_gateways_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("MAINSTEM_PIPELINE_TOKEN", "hush")
    process = SandboxProcess(SETTINGS, None)
    try:
        assert process.ask(orders.Check("SELECT 1"), Statement, 30).sql == "SELECT 1"
        assert b"hush" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        process.close()


def test_a_process_does_not_outlive_the_gateway() -> None:
    parent = (
        "from mainstem.query.sandbox.processes import SandboxProcess\n"
        "from mainstem.query.sandbox import orders\n"
        "from mainstem.query.sandbox.session import SandboxSettings\n"
        "from mainstem.query.statements.statement import Statement\n"
        "process = SandboxProcess(SandboxSettings(threads=1), None)\n"
        f"statement = process.ask(orders.Check({UNINTERRUPTIBLE!r}), Statement, 30)\n"
        "print(process.pid, flush=True)\n"
        "process.start(orders.Run(statement, (), frozenset()), 120)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        child = int(gateway.stdout.readline())
        gateway.kill()
    descriptor = os.pidfd_open(child) if Path(f"/proc/{child}").exists() else None
    if descriptor is not None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(30_000), "it still runs"
        os.close(descriptor)


def test_a_process_that_does_not_start_is_not_the_statements_fault() -> None:
    process = SandboxProcess(SandboxSettings(extensions=("nowhere",)), None)
    with pytest.raises(MainstemError, match="did not start") as caught:
        process.ask(orders.Check("SELECT 1"), Statement, 30)
    assert not isinstance(caught.value, Invalid)
    process.close()


def test_a_batch_is_cut_until_it_fits_a_frame() -> None:
    batch = pa.record_batch({"text": ["x" * 1000] * 100})
    pieces = cut(batch, 10_000)
    assert sum(piece.num_rows for piece in pieces) == 100
    assert all(piece.nbytes <= 10_000 for piece in pieces)
    with pytest.raises(Invalid) as caught:
        cut(batch, 500)
    assert caught.value.reason == "query_memory"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"J",
        b"J\x00\x00\x00\x05{",
        # More than a frame may have: it is not even read.
        b"R" + (orders.FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
)
def test_an_answer_that_is_cut_off_or_too_large_is_none(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(answer)
        assert orders.take_answer(ours) is None


def test_errors_keep_their_kind_and_an_unknown_one_is_a_fault() -> None:
    failure = orders.failure_of(Invalid("no", reason="sql_error"))
    found = failure.error()
    assert isinstance(found, Invalid)
    assert (found.reason, str(found)) == ("sql_error", "no")
    assert type(orders.Failure("SystemExit", "x").error()) is MainstemError


def test_no_more_are_kept_than_the_bound() -> None:
    sandboxes = Sandboxes(SETTINGS, None, 1)
    first, second = sandboxes.take(), sandboxes.take()
    sandboxes.give_back(first, reusable=True)
    sandboxes.give_back(second, reusable=True)
    assert sandboxes.pids == [first.pid]
    assert not second.is_alive
    sandboxes.close()
    assert not first.is_alive
