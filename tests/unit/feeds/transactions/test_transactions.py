"""Transactions: every state and event, fencing, time-outs, and ends that a crash interrupts."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from mainstem.feeds.transactions.coordinator import EPOCH_MAX, GROUPS_MAX, RECORDS_MAX, Transactions
from mainstem.feeds.transactions.section import Aborted, Batch, PartitionKey, TransactionsSection
from mainstem.feeds.transactions.settings import TransactionSettings
from mainstem.feeds.transactions.states import TABLE, Event, Reason, Refused, State, after
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import Change, SourceId
from mainstem.model.errors import Overloaded
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import ManualClock

SOURCE = SourceId("kafka/journal")
P0: PartitionKey = (b"t" * 16, 0)
P1: PartitionKey = (b"t" * 16, 1)


class World:
    """A coordinator with a journal and partitions in memory, any of which may fail."""

    def __init__(self, section: TransactionsSection | None = None, **settings: int) -> None:
        self.section = section or TransactionsSection()
        self.clock = ManualClock()
        self.marked: list[tuple[PartitionKey, int, int, bool]] = []
        self.settled: list[tuple[int, bool]] = []
        self.journal_fails = self.markers_fail = False
        self._id = 100
        self.transactions = Transactions(
            self.section,
            self,
            self,
            new_producer_id=self._new_id,
            settled_offsets=self._settled_offsets,
            namespace="kafka",
            source=SOURCE,
            clock=self.clock,
            settings=TransactionSettings(**settings),
        )

    async def _new_id(self) -> int:
        self._id += 1
        return self._id

    def _settled_offsets(self, producer_id: int, commits: bool) -> list[Change]:
        self.settled.append((producer_id, commits))
        return []

    async def append(self, changes: Sequence[Change]) -> None:
        if self.journal_fails:
            raise Overloaded("the disk is full", retry_after_s=1)
        header = BatchHeader(
            first=LogPosition(1),
            count=1,
            hlc_first=Hlc(1),
            arrival_ms=0,
            source=SOURCE,
            sequence=0,
            fingerprint=0,
            encoding=Encoding.CHANGES,
        )
        for change in msgspec.msgpack.decode(msgspec.msgpack.encode(list(changes)), type=list[Change]):
            self.section.apply(change, header)

    async def write(self, key: PartitionKey, producer_id: int, epoch: int, *, commits: bool) -> None:
        if self.markers_fail:
            raise Overloaded("the disk is full", retry_after_s=1)
        self.marked.append((key, producer_id, epoch, commits))

    def state(self, name: str = "t") -> State:
        found = self.transactions.get(name)
        assert found is not None
        return found.state


def test_the_table_is_complete_and_ends_are_final() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}
    for state, event in TABLE:
        found = TABLE[state, event]
        if isinstance(found, Reason):
            with pytest.raises(Refused) as caught:
                after(state, event)
            assert caught.value.reason is found
        else:
            assert after(state, event) is found
    # Once decided, nothing but the markers leads on, and only to that end.
    assert {TABLE[State.PREPARE_COMMIT, event] for event in Event if event is not Event.MARKED} <= set(Reason)
    assert {TABLE[State.PREPARE_ABORT, event] for event in Event if event is not Event.MARKED} <= set(Reason)


@pytest.mark.parametrize("commits", [True, False])
async def test_an_end_is_marked_everywhere_once_and_may_be_asked_for_again(commits: bool) -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0, P1], groups=["g"])
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    assert world.state() is State.ONGOING
    world.transactions.check_produce(producer, epoch, P1, 1)
    world.transactions.check_offsets("t", producer, epoch, "g")
    await world.transactions.end("t", producer, epoch, commits=commits)
    assert world.state() is (State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT)
    assert world.marked == [(P0, producer, epoch, commits), (P1, producer, epoch, commits)]
    assert world.settled == [(producer, commits)]
    await world.transactions.end("t", producer, epoch, commits=commits)
    assert len(world.marked) == 2
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=not commits)
    assert caught.value.reason is Reason.INVALID_STATE


async def test_the_next_with_a_name_fences_the_one_before() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    heir, heir_epoch = await world.transactions.init("t", 1000)
    assert heir == producer
    assert heir_epoch > epoch
    assert world.marked == [(P0, producer, epoch + 1, False)], "what was open is aborted, and its producer fenced"
    for call in (
        world.transactions.add("t", producer, epoch, partitions=[P0]),
        world.transactions.end("t", producer, epoch, commits=True),
        world.transactions.init("t", 1000, producer, epoch),
    ):
        with pytest.raises(Refused) as caught:
            await call
        assert caught.value.reason is Reason.FENCED
    with pytest.raises(Refused) as caught:
        world.transactions.check_produce(producer, epoch, P0, 1)
    assert caught.value.reason is Reason.FENCED
    with pytest.raises(Refused) as caught:
        await world.transactions.add("t", 7, epoch, partitions=[P0])
    assert caught.value.reason is Reason.INVALID_MAPPING


async def test_records_need_an_open_transaction_that_their_partition_takes_part_in() -> None:
    world = World(open_bytes_max=100)
    producer, epoch = await world.transactions.init("t", 1000)
    with pytest.raises(Refused) as caught:
        world.transactions.check_produce(producer, epoch, P0, 1)
    assert caught.value.reason is Reason.INVALID_STATE
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    world.transactions.check_produce(producer, epoch, P0, 100)
    for key, size, reason in ((P1, 1, Reason.INVALID_STATE), (P0, 101, Reason.TOO_LARGE)):
        with pytest.raises(Refused) as caught:
            world.transactions.check_produce(producer, epoch, key, size)
        assert caught.value.reason is reason
    with pytest.raises(Refused) as caught:
        world.transactions.check_produce(55, 0, P0, 1)
    assert caught.value.reason is Reason.INVALID_MAPPING


async def test_an_epoch_that_is_used_up_is_followed_by_another_producer_id() -> None:
    world = World()
    producer, _ = await world.transactions.init("t", 1000)
    known = world.transactions.get("t")
    assert known is not None
    world.section.transactions["t"] = msgspec.structs.replace(known, epoch=EPOCH_MAX)
    again, epoch = await world.transactions.init("t", 1000)
    assert (again != producer, epoch) == (True, 0)


async def test_what_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    world.clock.advance(0.9)
    await world.transactions.tick(world.clock.monotonic_s())
    assert world.state() is State.ONGOING
    world.clock.advance(0.2)
    await world.transactions.tick(world.clock.monotonic_s())
    assert world.state() is State.COMPLETE_ABORT
    with pytest.raises(Refused) as caught:
        await world.transactions.end("t", producer, epoch, commits=True)
    assert caught.value.reason is Reason.FENCED


async def test_a_decision_is_carried_out_after_a_failure_and_after_a_restart() -> None:
    for restarts in (False, True):
        world = World()
        producer, epoch = await world.transactions.init("t", 1000)
        await world.transactions.add("t", producer, epoch, partitions=[P0])
        world.markers_fail = True
        with pytest.raises(Refused) as caught:
            await world.transactions.end("t", producer, epoch, commits=True)
        assert caught.value.reason is Reason.CONCURRENT
        assert world.state() is State.PREPARE_COMMIT
        if restarts:
            section = TransactionsSection()
            section.load(world.section.dump())
            world = World(section)
            await world.transactions.recover()
        else:
            world.markers_fail = False
            world.clock.advance(2)
            await world.transactions.tick(world.clock.monotonic_s())
        assert world.state() is State.COMPLETE_COMMIT
        assert world.marked == [(P0, producer, epoch, True)]
        assert world.settled == [(producer, True)]


async def test_what_could_not_be_written_did_not_happen() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    world.journal_fails = True
    with pytest.raises(Refused) as caught:
        await world.transactions.add("t", producer, epoch, partitions=[P0])
    assert caught.value.reason is Reason.NOT_AVAILABLE
    assert world.state() is State.EMPTY


async def test_bounds() -> None:
    world = World(names_max=1, timeout_ms_max=1000, partitions_max=1)
    for name, timeout_ms, reason in (
        ("t", 1001, Reason.INVALID_TIMEOUT),
        ("t", 0, Reason.INVALID_TIMEOUT),
        ("", 10, Reason.INVALID_REQUEST),
        ("x" * 256, 10, Reason.INVALID_REQUEST),
    ):
        with pytest.raises(Refused) as caught:
            await world.transactions.init(name, timeout_ms)
        assert caught.value.reason is reason
    producer, epoch = await world.transactions.init("t", 1000)
    with pytest.raises(Refused) as caught:
        await world.transactions.init("u", 1000)
    assert caught.value.reason is Reason.NOT_AVAILABLE
    with pytest.raises(Refused) as caught:
        await world.transactions.add("t", producer, epoch, partitions=[P0, P1])
    assert caught.value.reason is Reason.TOO_LARGE


async def test_one_name_does_one_thing_at_a_time() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    ends = [world.transactions.end("t", producer, epoch, commits=True) for _ in range(3)]
    found = await asyncio.gather(*ends, return_exceptions=True)
    late = [each for each in found if isinstance(each, Refused)]
    assert all(each.reason is Reason.CONCURRENT for each in late)
    assert {each for each in found if not isinstance(each, BaseException)} == {(producer, epoch)}
    assert len(world.marked) == 1


async def test_old_names_are_forgotten() -> None:
    world = World(expiry_s=10)
    await world.transactions.init("t", 1000)
    world.clock.advance(11)
    assert await world.transactions.expire() == 1
    assert world.transactions.get("t") is None


# The records of open transactions


def batch(base: int, producer: int, count: int = 2) -> Batch:
    return Batch(base, base + count, count, producer, b"x" * 10)


def test_the_last_stable_offset_and_the_aborted_list() -> None:
    section = TransactionsSection()
    assert section.stable(P0, 50) == 50
    section.apply_records(P0, batch(10, 1))
    section.apply_records(P0, batch(20, 2))
    section.apply_records(P0, batch(30, 1))
    assert section.stable(P0, 50) == 10
    section.apply_marker(P0, 1, 32, LogPosition(9), commits=False)
    assert section.stable(P0, 50) == 20
    assert section.aborted(P0, 0, 11) == [Aborted(10, 32, 1)]
    assert section.aborted(P0, 33, 50) == []
    assert [each.base for each in section.of_producer(P0, 2)] == [20]
    section.apply_marker(P0, 2, 33, LogPosition(12), commits=True)
    assert section.stable(P0, 50) == 50
    assert section.aborted(P0, 0, 50) == [Aborted(10, 32, 1)]
    # Until the marker is sealed its records are in no segment.
    assert [each.base for each in section.held_from(P0, 0)] == [20]
    again = TransactionsSection()
    again.load(section.dump())
    assert (again.held_from(P0, 0), again.open_bytes) == (section.held_from(P0, 0), 10)
    section.sealed(LogPosition(11))
    assert section.held_from(P0, 0)
    section.sealed(LogPosition(12))
    assert not section.held_from(P0, 0)
    assert section.open_bytes == 0
    assert section.knows(P0)
    section.forget_all_but(())
    assert not section.knows(P0)


async def test_a_transaction_that_could_not_be_committed_is_refused_while_it_is_written() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, partitions=[P0])
    world.section.apply_records(P0, Batch(0, RECORDS_MAX - 1, RECORDS_MAX - 1, producer, b"x"))
    world.transactions.check_produce(producer, epoch, P0, 1, 1)
    with pytest.raises(Refused) as caught:
        world.transactions.check_produce(producer, epoch, P0, 1, 2)
    assert caught.value.reason is Reason.TOO_LARGE


async def test_the_groups_of_a_transaction_are_bounded() -> None:
    world = World()
    producer, epoch = await world.transactions.init("t", 1000)
    await world.transactions.add("t", producer, epoch, groups=[str(number) for number in range(GROUPS_MAX)])
    for more in (["one more"], ["g" * 256]):
        with pytest.raises(Refused) as caught:
            await world.transactions.add("t", producer, epoch, groups=more)
        assert caught.value.reason is Reason.TOO_LARGE


async def test_a_start_with_a_full_disk_finishes_transactions_later() -> None:
    world = World()
    for name in ("t", "u"):
        producer, epoch = await world.transactions.init(name, 1000)
        await world.transactions.add(name, producer, epoch, partitions=[P0])
        world.markers_fail = True
        with pytest.raises(Refused):
            await world.transactions.end(name, producer, epoch, commits=True)
        world.markers_fail = False
    section = TransactionsSection()
    section.load(world.section.dump())
    world = World(section)
    world.markers_fail = True
    await world.transactions.recover()
    assert world.state("t") is world.state("u") is State.PREPARE_COMMIT
    world.markers_fail = False
    world.clock.advance(2)
    await world.transactions.tick(world.clock.monotonic_s())
    assert world.state("t") is world.state("u") is State.COMPLETE_COMMIT
