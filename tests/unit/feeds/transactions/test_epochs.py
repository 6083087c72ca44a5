"""Transactions of version 2 (KIP-890): every end gives the producer its next epoch."""

import pytest

from mainstem.feeds.transactions.coordinator import EPOCH_MAX
from mainstem.feeds.transactions.states import Reason, Refused, State
from tests.unit.feeds.transactions.test_transactions import P0, World


async def test_every_end_gives_the_next_epoch_and_the_old_one_is_fenced() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    assert await world.transactions.end("t", producer, epoch, commits=True, bumps=True) == (producer, epoch + 1)
    assert world.marked == [(P0, producer, epoch + 1, True)]
    with pytest.raises(Refused) as caught:
        await world.transactions.add("t", producer, epoch, partitions=[P0])
    assert caught.value.reason is Reason.FENCED
    await world.transactions.add("t", producer, epoch + 1, partitions=[P0])
    assert await world.transactions.end("t", producer, epoch + 1, commits=False, bumps=True) == (producer, epoch + 2)


async def test_an_end_whose_answer_was_lost_is_answered_again_and_no_other() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    first = await world.transactions.end("t", producer, epoch, commits=True, bumps=True)
    assert await world.transactions.end("t", producer, epoch, commits=True, bumps=True) == first
    assert len(world.marked) == 1
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=False, bumps=True)
    assert caught.value.reason is Reason.INVALID_STATE
    # Once the next one is open, whoever asks with the epoch before it is a zombie.
    await world.transactions.add("t", *first, partitions=[P0])
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=True, bumps=True)
    assert caught.value.reason is Reason.FENCED


async def test_an_end_that_a_crash_interrupted_is_answered_after_it() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    world.markers_fail = True
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=True, bumps=True)
    assert caught.value.reason is Reason.CONCURRENT
    after = World(world.section)
    await after.transactions.recover()
    assert after.state() is State.COMPLETE_COMMIT
    assert await after.transactions.end("t", producer, epoch, commits=True, bumps=True) == (producer, epoch + 1)
    assert after.settled == [(producer, True)]


async def test_an_abort_of_nothing_gives_the_next_epoch_and_a_commit_of_nothing_is_refused() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=True, bumps=True)
    assert caught.value.reason is Reason.INVALID_STATE
    assert await world.transactions.end("t", producer, epoch, commits=False, bumps=True) == (producer, epoch + 1)
    assert world.marked == []


@pytest.mark.parametrize("is_open", [True, False])
async def test_epochs_that_come_to_their_end_bring_a_new_id(is_open: bool) -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    while epoch < EPOCH_MAX:
        producer, epoch = await world.transactions.end("t", producer, epoch, commits=False, bumps=True)
    if is_open:
        await world.transactions.add("t", producer, epoch, partitions=[P0])
    new, zero = await world.transactions.end("t", producer, epoch, commits=False, bumps=True)
    assert (new != producer, zero) == (True, 0)
    # The marker is the old id's, and so is a second asking.
    assert world.marked == ([(P0, producer, EPOCH_MAX + 1, False)] if is_open else [])
    assert await world.transactions.end("t", producer, epoch, commits=False, bumps=True) == (new, 0)
    await world.transactions.add("t", new, 0, partitions=[P0])


async def test_who_was_too_late_is_fenced_also_where_ends_give_epochs() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    world.clock.advance(2)
    await world.transactions.tick(world.clock.monotonic_s())
    assert world.state() is State.COMPLETE_ABORT
    for commits in (True, False):
        with pytest.raises(Refused) as caught:
            await world.transactions.end("t", producer, epoch, commits=commits, bumps=True)
        assert caught.value.reason is Reason.FENCED
