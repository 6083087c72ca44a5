"""Requests of one source, one after the other, and none past one that failed."""

import asyncio

import pytest

from mainstem.doors.ingest.lanes import Lanes
from mainstem.model import Overloaded


class Broken(Exception):
    pass


async def take(lanes: Lanes, source: str, marks: list[int], into: list[int], fails_at: int | None = None) -> None:
    async with lanes.turn(source, marks) as turn:
        for mark in marks:
            await asyncio.sleep(0)
            if mark == fails_at:
                raise Broken
            into.append(mark)
            turn.done += 1


async def test_requests_of_a_source_take_turns_and_those_of_others_do_not() -> None:
    lanes, order = Lanes(), list[int]()
    async with lanes.turn("other", [0]):
        await asyncio.gather(*(take(lanes, "a", [10 * n, 10 * n + 1, 10 * n + 2], order) for n in range(3)))
    assert order == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert len(lanes) == 0


async def test_what_is_under_way_behind_a_failed_request_is_refused_and_so_is_what_comes_before_it_again() -> None:
    lanes, order = Lanes(), list[int]()
    outcomes = await asyncio.gather(
        take(lanes, "a", [1, 2, 3], order, fails_at=2),
        take(lanes, "a", [4], order),
        take(lanes, "b", [100], order),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [Broken, Overloaded, type(None)]
    with pytest.raises(Overloaded, match="has to come again first"):
        await take(lanes, "a", [4], order)
    # In other cuts: with what was durable already, and what follows.
    await take(lanes, "a", [1, 2, 3, 4], order)
    await take(lanes, "a", [5], order)
    assert [mark for mark in order if mark < 100] == [1, 1, 2, 3, 4, 5]
    assert len(lanes) == 0


async def test_a_poster_that_goes_away_in_the_middle_is_waited_for() -> None:
    lanes, order, at_work = Lanes(), list[int](), asyncio.Event()

    async def hangs() -> None:
        async with lanes.turn("a", [1, 2]):
            at_work.set()
            await asyncio.Future()

    gone = asyncio.create_task(hangs())
    await at_work.wait()
    gone.cancel()
    with pytest.raises(Overloaded):
        await take(lanes, "a", [3], order)
    await take(lanes, "a", [1, 2], order)
    await take(lanes, "a", [3], order)
    assert order == [1, 2, 3]


async def test_a_request_that_is_given_up_holds_the_others_up_for_its_time_only() -> None:
    lanes, order = Lanes(retry_s_max=0.01), list[int]()
    with pytest.raises(Broken):
        await take(lanes, "a", [1], order, fails_at=1)
    assert len(lanes) == 1
    async with asyncio.timeout(10):
        while len(lanes):
            await asyncio.sleep(0.005)
    await take(lanes, "a", [2], order)
    assert order == [2]
