"""Threads for requests that block: results, failures, the bound, and threads that end with their pool."""

import asyncio
import gc
import threading

import pytest

from mainstem.doors.http.threads import Threads

WAIT_S_MAX = 60.0


async def test_a_result_and_a_failure() -> None:
    threads = Threads(2)
    assert await threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: "again") == "again"


async def test_as_many_at_a_time_as_are_allowed() -> None:
    threads = Threads(3)
    gate = threading.Barrier(3)
    running: list[int] = []

    def call() -> None:
        running.append(threading.get_ident())
        # Passed by three at a time: a fourth thread would be seen, a missing one would not end.
        gate.wait(WAIT_S_MAX)

    await asyncio.gather(*(threads.run(call) for _ in range(9)))
    assert len(running) == 9
    assert len(set(running)) == 3


async def test_one_after_the_other_needs_one_thread() -> None:
    threads = Threads(8)
    assert len({await threads.run(threading.get_ident) for _ in range(20)}) == 1


async def test_a_call_goes_on_where_nobody_waits_for_it() -> None:
    threads = Threads(1)
    has_begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        has_begun.set()
        may_end.wait(WAIT_S_MAX)
        has_ended.set()

    task = asyncio.create_task(threads.run(call))
    await asyncio.to_thread(has_begun.wait, WAIT_S_MAX)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    assert await threads.run(lambda: "next") == "next"
    assert has_ended.is_set()


def test_threads_end_with_their_pool() -> None:
    async def use() -> list[threading.Thread]:
        pool, gate = Threads(4), threading.Barrier(4)

        def call() -> threading.Thread:
            gate.wait(WAIT_S_MAX)
            return threading.current_thread()

        return await asyncio.gather(*(pool.run(call) for _ in range(4)))

    used = set(asyncio.run(use()))
    assert len(used) == 4
    gc.collect()
    for thread in used:
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive()
