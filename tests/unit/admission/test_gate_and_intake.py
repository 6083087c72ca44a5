"""The gate and the way in: every batch at most once, every refusal named, nothing remembered of what was refused."""

import asyncio
from typing import Any

import pytest

from mainstem.admission import Dedup, Duplicate, Gate, Intake, Limits, OutOfSequence, TooLarge
from mainstem.model import Admitted, Batch, Encoding, Invalid, Overloaded, SourceId, TableName
from mainstem.runtime.clock import ManualClock
from tests.harness.memory_lake import MemoryLake

A = SourceId("a")


def batch(sequence: int = 1, fingerprint: int = 1, **changed: Any) -> Batch:
    values: dict[str, Any] = {
        "source": A,
        "sequence": sequence,
        "count": 1,
        "encoding": Encoding.CDC_JSON,
        "payload": b"[{}]",
        "fingerprint": fingerprint,
        "tables": frozenset(),
    }
    return Batch(**(values | changed))


class World:
    def __init__(self, *, by_hand: bool = True) -> None:
        self.clock = ManualClock()
        self.dedup = Dedup(self.clock)
        self.gate = Gate(self.dedup, Limits(payload_bytes_max=100, event_bytes_max=50, events_max=10))
        self.lake = MemoryLake(self.dedup, self.clock, by_hand=by_hand)
        self.intake = Intake(self.gate, self.lake)


def test_a_batch_within_the_limits_is_admitted() -> None:
    world = World()
    assert world.gate.admit(batch()) == Admitted(batch())


@pytest.mark.parametrize(
    ("changed", "reason", "size_max"),
    [
        ({"payload": b"x" * 101}, "payload_too_large", 100),
        ({"count": 11}, "payload_too_large", 10),
        ({"count": 0}, "invalid_format", None),
        ({"source": SourceId("")}, "invalid_format", None),
        ({"source": SourceId("s" * 257)}, "invalid_format", None),
        ({"source": SourceId("a\nb")}, "invalid_format", None),
        # Other doors make up sources of their own.
        ({"source": SourceId("kafka/journal")}, "invalid_format", None),
        ({"source": SourceId("mongo/1"), "encoding": Encoding.DELTAS}, "invalid_format", None),
        ({"fingerprint": 1 << 32}, "invalid_format", None),
        ({"fingerprint": -1}, "invalid_format", None),
    ],
)
def test_what_is_too_much_or_malformed_is_refused(changed: dict[str, Any], reason: str, size_max: int | None) -> None:
    with pytest.raises(Invalid) as caught:
        World().gate.admit(batch(**changed))
    assert caught.value.reason == reason
    assert getattr(caught.value, "size_max", None) == size_max


def test_an_event_that_is_too_large_is_refused() -> None:
    limits = World().gate.limits
    limits.check_event(50)
    with pytest.raises(TooLarge) as caught:
        limits.check_event(51)
    assert (caught.value.reason, caught.value.size_max) == ("event_too_large", 50)


def test_table_names_are_parsed_once_and_the_cache_is_bounded() -> None:
    gate = Gate(Dedup(ManualClock()), Limits(names_cached_max=3))
    assert gate.tables({"orders", "public.users"}) == {TableName("default", "orders"), TableName("public", "users")}
    for number in range(20):
        assert gate.tables([f"t{number}"]) == {TableName("default", f"t{number}")}
    for bad in ("", "a_history", "x/y", "t" * 200, "phones.sync_rules"):
        with pytest.raises(Invalid):
            gate.tables([bad])


async def test_a_durable_batch_is_a_duplicate_and_a_refused_one_is_not() -> None:
    world = World()
    ticket = world.intake.take(batch())
    world.lake.fail(Overloaded("disk full", retry_after_s=1))
    assert ticket.outcome is not None
    with pytest.raises(Overloaded):
        await ticket.outcome
    again = world.intake.take(batch())
    assert not again.duplicate
    world.lake.make_durable()
    assert again.outcome is not None
    appended = await again.outcome
    assert (appended.first, appended.last) == (1, 1)
    assert world.intake.take(batch()).duplicate
    assert world.gate.admit(batch()) == Duplicate(batch())
    assert len(world.lake.batches) == 1


async def test_a_batch_under_way_is_joined_not_appended_twice() -> None:
    world = World()
    first, second = world.intake.take(batch()), world.intake.take(batch())
    assert second.duplicate
    assert not first.duplicate
    assert second.outcome is first.outcome
    assert len(world.lake.pending) == 1
    world.lake.make_durable()
    await world.intake.settled(A)
    assert world.intake.under_way_count == 0
    assert len(world.lake.batches) == 1


async def test_a_batch_under_way_with_other_changes_is_refused() -> None:
    world = World()
    world.intake.take(batch(1))
    world.intake.take(batch(2))
    with pytest.raises(OutOfSequence, match="next=3"):
        world.intake.take(batch(1, fingerprint=9))


async def test_between_durable_and_told_a_retry_is_still_a_duplicate() -> None:
    world = World()
    world.intake.take(batch())
    world.lake.make_durable()
    # No turn of the event loop since: the outcome's callbacks have not run.
    assert world.intake.take(batch()).duplicate


async def test_persisted_stops_below_what_is_under_way() -> None:
    world = World()
    world.intake.take(batch(1))
    world.intake.take(batch(3))
    world.lake.make_durable()
    await world.intake.settled(A)
    world.intake.take(batch(2))
    world.dedup.settle(A, world.lake.durable)
    assert world.intake.persisted(A) == 1
    world.lake.make_durable()
    await world.intake.settled(A)
    assert world.intake.persisted(A) == 1
    world.dedup.settle(A, world.lake.durable)
    assert world.intake.persisted(A) == 3


async def test_a_log_whose_append_is_a_coroutine_keeps_the_order() -> None:
    class Slow:
        def __init__(self, lake: MemoryLake) -> None:
            self.lake = lake

        async def append(self, admitted: Admitted) -> Any:
            return await self.lake.append(admitted)

    world = World(by_hand=False)
    intake = Intake(world.gate, Slow(world.lake))
    tickets = [intake.take(batch(sequence)) for sequence in range(1, 20)]
    await asyncio.wait([ticket.outcome for ticket in tickets if ticket.outcome is not None])
    assert [taken.sequence for taken in world.lake.batches] == list(range(1, 20))
