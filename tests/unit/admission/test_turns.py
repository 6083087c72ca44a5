"""Turns: straight on while there is little, one source after the other beyond that, in order within each."""

import asyncio

import pytest

from mainstem.admission.turns import SourceTurns, TurnSettings
from mainstem.model import Overloaded
from mainstem.model.batch import Admitted, Batch, Encoding
from mainstem.model.change import SourceId


def batch(source: str, sequence: int, size: int = 10) -> Admitted:
    return Admitted(
        Batch(
            source=SourceId(source),
            sequence=sequence,
            count=1,
            encoding=Encoding.CDC_JSON,
            payload=b"x" * size,
            fingerprint=0,
            tables=frozenset(),
        )
    )


class Disk:
    """Takes batches, and is done with them when it is told."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.open: list[asyncio.Future[int]] = []
        self.refusal: Exception | None = None

    def append(self, admitted: Admitted) -> "asyncio.Future[int]":
        if self.refusal is not None:
            raise self.refusal
        self.taken.append((admitted.batch.source, admitted.batch.sequence))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.open.append(future)
        return future

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self.open.pop(0).set_result(len(self.taken))
            for _ in range(3):
                await asyncio.sleep(0)


# Two batches at once, and one of each source where there are several.
SMALL = TurnSettings(on_the_way_bytes_max=20, share_bytes=10, waiting_bytes_max=100)


async def test_nothing_waits_while_there_is_little() -> None:
    disk = Disk()
    turns: SourceTurns[int] = SourceTurns(disk.append)
    outcomes = [turns.enter(batch("a", number)) for number in range(50)]
    assert len(disk.taken) == 50
    await disk.finish(50)
    assert all(outcome.done() for outcome in outcomes)


async def test_sources_take_turns_and_keep_their_order() -> None:
    disk = Disk()
    turns = SourceTurns(disk.append, SMALL)
    outcomes = [turns.enter(batch("flood", number)) for number in range(8)]
    assert disk.taken == [("flood", 0), ("flood", 1)]
    # Who has nothing on its way does not wait for those who have.
    outcomes += [turns.enter(batch(name, number)) for number in (1, 2, 3) for name in ("p", "q")]
    assert disk.taken[2:] == [("p", 1), ("q", 1)]
    await disk.finish(4)
    # One of each, and the flood has no more than its share as long as others are about.
    assert disk.taken[4:] == [("flood", 2), ("p", 2), ("q", 2)]
    await disk.finish(3)
    assert disk.taken[7:] == [("flood", 3), ("p", 3), ("q", 3)]
    await disk.finish(3)
    assert disk.taken[10:] == [("flood", 4), ("flood", 5)]
    await disk.finish(4)
    assert [number for name, number in disk.taken if name == "flood"] == list(range(8))
    assert all(outcome.done() for outcome in outcomes)
    assert turns.waiting_bytes == 0


async def test_many_sources_together_have_no_more_than_all_may_have() -> None:
    disk = Disk()
    turns = SourceTurns(disk.append, SMALL)
    for number in (1, 2):
        for source in range(6):
            turns.enter(batch(f"s{source}", number))
    assert [name for name, _ in disk.taken] == ["s0", "s1", "s2", "s3"]
    for _ in range(12):
        await disk.finish(1)
        assert len(disk.open) <= 4
    assert sorted(disk.taken) == sorted((f"s{source}", number) for number in (1, 2) for source in range(6))


async def test_what_waits_is_bounded_and_who_has_nothing_waiting_comes_first() -> None:
    disk = Disk()
    turns = SourceTurns(disk.append, SMALL)
    for number in range(12):
        turns.enter(batch("flood", number))
    with pytest.raises(Overloaded) as refused:
        turns.enter(batch("flood", 12))
    assert refused.value.reason == "buffer_full"
    polite = turns.enter(batch("polite", 1))
    # Its next one waits in the room that is kept for those who have nothing waiting; the one after that would not.
    turns.enter(batch("polite", 2))
    with pytest.raises(Overloaded):
        turns.enter(batch("polite", 3))
    await disk.finish(4)
    assert polite.done() and len(disk.taken) < 8


async def test_what_the_log_refuses_later_is_told_and_does_not_stop_the_others() -> None:
    disk = Disk()
    turns = SourceTurns(disk.append, SMALL)
    for name in ("a", "b", "a", "b"):
        outcome = turns.enter(batch(name, 1))
    waiting = [turns.enter(batch("a", 3)), outcome]
    assert disk.taken == [("a", 1), ("b", 1)]
    disk.refusal = Overloaded("full", retry_after_s=1)
    await disk.finish(2)
    assert [outcome.done() for outcome in waiting] == [True, True]
    for outcome in waiting:
        with pytest.raises(Overloaded):
            await outcome
    disk.refusal = None
    assert not turns.enter(batch("a", 4)).done()
    assert disk.taken[-1] == ("a", 4)


# Three batches at once, two of each source.
SHARED = TurnSettings(on_the_way_bytes_max=30, share_bytes=20, waiting_bytes_max=100)


async def test_a_batch_does_not_overtake_one_whose_refusal_is_still_on_its_way_to_the_sender() -> None:
    """The log ends several futures at once, and their callbacks run later, one after the other."""
    disk = Disk()
    turns: SourceTurns[int] = SourceTurns(disk.append, SHARED)
    others = [turns.enter(batch("b", number)) for number in (1, 2)]
    first = turns.enter(batch("a", 1))
    second = turns.enter(batch("a", 2))
    assert disk.taken == [("b", 1), ("b", 2), ("a", 1)]
    # The callbacks of the others run first, and make room.
    for outcome in disk.open[:2]:
        outcome.set_result(0)
    disk.open[2].set_exception(Overloaded("no", retry_after_s=1))
    # Nor may one come in before them.
    with pytest.raises(Overloaded, match="an earlier batch was refused"):
        turns.enter(batch("a", 3))
    told: list[int] = []

    def come_again(_: object) -> None:
        # Told of the refusal of the second: now the sender knows of all.
        told.append(2)

    second.add_done_callback(come_again)
    await asyncio.gather(*others)
    with pytest.raises(Overloaded):
        await first
    for _ in range(5):
        if told:
            break
        with pytest.raises(Overloaded, match="an earlier batch was refused"):
            turns.enter(batch("a", 3))
        await asyncio.sleep(0)
    assert isinstance(second.exception(), Overloaded)
    await asyncio.sleep(0)
    assert disk.taken == [("b", 1), ("b", 2), ("a", 1)]
    turns.enter(batch("a", 1))
    turns.enter(batch("a", 2))
    assert disk.taken[3:] == [("a", 1), ("a", 2)]
