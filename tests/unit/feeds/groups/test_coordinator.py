"""The coordinator with a journal that can be held up, fail and be replayed: nothing is told before it is durable."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from mainstem.feeds.groups.classic_values import Join, Protocol
from mainstem.feeds.groups.coordinator import Coordinator
from mainstem.feeds.groups.entries import Offset
from mainstem.feeds.groups.modern_values import Beat, Topic
from mainstem.feeds.groups.offsets import PENDING_MAX, Committer, Offsets
from mainstem.feeds.groups.outbox import Outbox
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.section import GroupsSection, Writer
from mainstem.feeds.groups.settings import GroupSettings
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import Change, SourceId
from mainstem.model.errors import Invalid, Overloaded
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import ManualClock

SOURCE = SourceId("kafka/journal")


class MemoryJournal:
    """A log in memory, whose disk can be slow or full."""

    def __init__(self, section: GroupsSection, clock: ManualClock) -> None:
        self.section = section
        self.clock = clock
        self.batches: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails = False
        # No batch with an entry of this group is taken.
        self.too_large = ""

    async def append(self, changes: Sequence[Change]) -> None:
        await self.open.wait()
        if self.fails:
            raise Overloaded("the disk is full", retry_after_s=1)
        if self.too_large and any((change.columns or {}).get("group") == self.too_large for change in changes):
            raise Invalid("payload is too large")
        payload = msgspec.msgpack.encode(list(changes))
        self.batches.append(payload)
        replay(self.section, payload, self.clock.now_ms())


def replay(section: GroupsSection, payload: bytes, now_ms: int) -> None:
    header = BatchHeader(
        first=LogPosition(1),
        count=1,
        hlc_first=Hlc(1),
        arrival_ms=now_ms,
        source=SOURCE,
        sequence=0,
        fingerprint=0,
        encoding=Encoding.CHANGES,
    )
    for change in msgspec.msgpack.decode(payload, type=list[Change]):
        section.apply(change, header)


class World:
    def __init__(self, clock: ManualClock, section: GroupsSection, settings: GroupSettings) -> None:
        self.clock = clock
        self.section = section
        self.journal = MemoryJournal(section, clock)
        self.outbox = Outbox(self.journal)
        writer = Writer("kafka", SOURCE)
        self._ids = 0
        self.topics = {"a": Topic("id-a", 4)}
        self.groups = Coordinator(
            section,
            self.outbox,
            writer,
            topics=lambda: self.topics,
            clock=clock,
            new_id=self._new_id,
            settings=settings,
        )
        self.groups.start()
        self.offsets = Offsets(self.groups, section, self.outbox, writer, clock=clock)

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    async def join(self) -> tuple[str, int]:
        join = Join(
            member_id="",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(Protocol("range", b"m"),),
        )
        with pytest.raises(Refused) as caught:
            await self.groups.join("g", join)
        joined = await self.groups.join("g", msgspec.structs.replace(join, member_id=str(caught.value)))
        return joined.member_id, joined.generation


@asynccontextmanager
async def running(
    section: GroupsSection | None = None, clock: ManualClock | None = None, **settings: int
) -> AsyncIterator[World]:
    options = GroupSettings(**({"rebalance_delay_ms": 0} | settings))
    world = World(clock or ManualClock(), section or GroupsSection(), options)
    task = asyncio.ensure_future(world.outbox.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def an_offset(offset: int, topic: str = "a", partition: int = 0, group: str = "g") -> Offset:
    return Offset(group=group, topic=topic, partition=partition, offset=offset, metadata="note", leader_epoch=3)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_assignment_is_told_only_once_it_is_durable() -> None:
    async with running() as world:
        member, generation = await world.join()
        world.journal.open.clear()
        sync = asyncio.ensure_future(world.groups.sync("g", member, generation, None, [(member, b"1")]))
        again = asyncio.ensure_future(world.groups.sync("g", member, generation, None, []))
        await turns()
        assert not sync.done()
        assert not again.done(), "also one that asks while it is being written"
        world.journal.open.set()
        assert (await sync).assignment == (await again).assignment == b"1"


async def test_a_commit_is_answered_and_seen_only_once_it_is_durable() -> None:
    async with running() as world:
        world.journal.open.clear()
        commit = asyncio.ensure_future(world.offsets.commit(Committer(group="g"), [an_offset(5)]))
        await turns()
        assert not commit.done()
        assert world.offsets.get("g", ("a", 0)) is None
        world.journal.open.set()
        await commit
        found = world.offsets.get("g", ("a", 0))
        assert found is not None
        assert (found.offset, found.metadata, found.leader_epoch) == (5, "note", 3)


async def test_a_commit_that_the_disk_refused_changes_nothing() -> None:
    async with running() as world:
        await world.offsets.commit(Committer(group="g"), [an_offset(5)])
        world.journal.fails = True
        with pytest.raises(Refused) as caught:
            await world.offsets.commit(Committer(group="g"), [an_offset(9)])
        assert caught.value.reason is Reason.NOT_AVAILABLE
        assert world.offsets.get("g", ("a", 0)).offset == 5  # type: ignore[union-attr]
        world.journal.fails = False
        await world.offsets.commit(Committer(group="g"), [an_offset(9)])
        assert world.offsets.get("g", ("a", 0)).offset == 9  # type: ignore[union-attr]


@pytest.mark.parametrize("from_dump", [False, True])
async def test_a_group_and_its_offsets_outlive_a_restart(from_dump: bool) -> None:
    async with running() as world:
        member, generation = await world.join()
        await world.groups.sync("g", member, generation, None, [(member, b"mine")])
        await world.offsets.commit(Committer(group="g", member_id=member, generation=generation), [an_offset(7)])
        told = await world.groups.beat(
            "new", Beat(member_id="m", epoch=0, topics=("a",), rebalance_timeout_ms=1000, owned=frozenset())
        )
        batches, clock = world.journal.batches, world.clock
        dumped = world.section.dump()
    section = GroupsSection()
    if from_dump:
        section.load(dumped)
    else:
        for batch in batches:
            replay(section, batch, clock.now_ms())
    async with running(section) as again:
        again.groups.heartbeat("g", member, generation, None)
        assert (await again.groups.sync("g", member, generation, None, [])).assignment == b"mine"
        await again.offsets.commit(Committer(group="g", member_id=member, generation=generation), [an_offset(8)])
        beat = await again.groups.beat("new", Beat(member_id="m", epoch=told.epoch))
        assert (beat.epoch, beat.assignment) == (told.epoch, None)
        assert [(each.group, each.state) for each in again.groups.overview()] == [("g", "Stable"), ("new", "Stable")]


async def test_offsets_of_a_transaction_count_when_it_commits_and_never_when_it_aborts() -> None:
    async with running() as world:
        await world.offsets.commit(Committer(group="g"), [an_offset(1)])
        for producer, is_committed, expected in ((7, False, 1), (8, True, 20)):
            await world.offsets.commit_later(Committer(group="g"), producer, [an_offset(20)])
            assert world.offsets.unstable("g") == {("a", 0)}
            assert world.offsets.get("g", ("a", 0)).offset == 1  # type: ignore[union-attr]
            await world.outbox.write("g", world.offsets.settled(producer, is_committed=is_committed))
            assert world.offsets.get("g", ("a", 0)).offset == expected  # type: ignore[union-attr]
            assert not world.offsets.unstable("g")
    again = GroupsSection()
    again.load(world.section.dump())
    assert again.offsets == world.section.offsets
    assert again.offset_count == world.section.offset_count == 1


async def test_the_offsets_of_a_transaction_are_bounded() -> None:
    async with running() as world:
        many = [msgspec.structs.replace(an_offset(1), partition=number) for number in range(PENDING_MAX)]
        await world.offsets.commit_later(Committer(group="g"), 7, many)
        # Those that it has may move on.
        await world.offsets.commit_later(Committer(group="g"), 7, many[:1])
        for committer, reason in ((Committer(group="h"), Reason.NOT_AVAILABLE), (Committer(group=""), None)):
            with pytest.raises(Refused) as caught:
                await world.offsets.commit_later(
                    committer, 7, [msgspec.structs.replace(an_offset(1), group=committer.group)]
                )
            assert caught.value.reason is (reason or Reason.INVALID_GROUP_ID)


async def test_a_write_that_is_too_large_fails_alone() -> None:
    async with running() as world:
        # While the first is written the others gather for one write.
        world.journal.open.clear()
        world.journal.too_large = "b"
        tasks = []
        for name in "abc":
            tasks.append(asyncio.create_task(world.offsets.commit(Committer(group=name), [an_offset(1, group=name)])))
            await turns()
        world.journal.open.set()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, Refused) for each in told] == [False, True, False]


async def test_offsets_expire_a_time_after_the_last_member_left() -> None:
    async with running(offsets_retention_s=100) as world:
        member, generation = await world.join()
        await world.groups.sync("g", member, generation, None, [])
        await world.offsets.commit(Committer(group="g", member_id=member, generation=generation), [an_offset(7)])
        await world.offsets.commit(Committer(group="simple"), [an_offset(1, group="simple")])
        world.clock.advance(101)
        assert await world.offsets.expire() == 1, "only what nobody in a group committed"
        world.groups.leave("g", [(member, None)])
        await turns()
        world.clock.advance(99)
        assert await world.offsets.expire() == 0
        world.clock.advance(2)
        assert await world.offsets.expire() == 1
        assert not world.groups.overview()


async def test_groups_are_deleted_when_nobody_is_in_them() -> None:
    async with running() as world:
        member, generation = await world.join()
        await world.groups.sync("g", member, generation, None, [])
        await world.offsets.commit(Committer(group="g", member_id=member, generation=generation), [an_offset(7)])
        for group, reason in (("g", Reason.NOT_EMPTY), ("other", Reason.NOT_FOUND), ("", Reason.INVALID_GROUP_ID)):
            with pytest.raises(Refused) as caught:
                await world.groups.delete(group)
            assert caught.value.reason is reason
        world.groups.leave("g", [(member, None)])
        await world.groups.delete("g")
        assert not world.groups.exists("g")
        assert not world.section.offset_count


async def test_the_numbers_of_groups_and_offsets_are_bounded() -> None:
    async with running(groups_max=1, offsets_max=2) as world:
        await world.join()
        join = Join(
            member_id="",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(Protocol("range", b"m"),),
        )
        with pytest.raises(Refused) as caught:
            await world.groups.join("h", join)
        assert caught.value.reason is Reason.GROUP_FULL
        with pytest.raises(Refused) as caught:
            await world.offsets.commit(Committer(group="h"), [an_offset(1, group="h")])
        assert caught.value.reason is Reason.GROUP_FULL
    async with running(offsets_max=2) as world:
        await world.offsets.commit(Committer(group="g"), [an_offset(1), an_offset(1, partition=1)])
        with pytest.raises(Refused) as caught:
            await world.offsets.commit(Committer(group="g"), [an_offset(1, partition=2)])
        assert caught.value.reason is Reason.NOT_AVAILABLE
        # At the bound a group still goes on, and makes room.
        await world.offsets.commit(Committer(group="g"), [an_offset(2), an_offset(2, partition=1)])
        await world.offsets.forget("g", [("a", 1)])
        await world.offsets.commit(Committer(group="g"), [an_offset(1, partition=2)])
        assert world.section.offset_count == 2


async def test_the_notes_of_offsets_are_bounded_by_their_bytes() -> None:
    def noted(partition: int, note: str) -> Offset:
        return msgspec.structs.replace(an_offset(1, partition=partition), metadata=note)

    async with running(offset_notes_bytes_max=100) as world:
        await world.offsets.commit(Committer(group="g"), [noted(0, "x" * 60), noted(1, "é" * 15)])
        assert world.section.note_bytes == 90
        for later in (False, True):
            with pytest.raises(Refused) as caught:
                if later:
                    await world.offsets.commit_later(Committer(group="g"), 7, [noted(2, "x" * 11)])
                else:
                    await world.offsets.commit(Committer(group="g"), [noted(2, "x" * 11)])
            assert caught.value.reason is Reason.NOT_AVAILABLE
        await world.offsets.commit(Committer(group="g"), [noted(0, "y" * 60)])
        await world.offsets.commit(Committer(group="g"), [noted(0, "")])
        await world.offsets.commit_later(Committer(group="g"), 7, [noted(2, "x" * 60)])
        assert world.section.note_bytes == 90
        restored = GroupsSection()
        restored.load(world.section.dump())
        assert (restored.note_bytes, restored.offset_count) == (90, 3)


async def test_time_passes_by_itself() -> None:
    async with running() as world:
        member, generation = await world.join()
        await world.groups.sync("g", member, generation, None, [])
        world.clock.advance(10)
        world.groups.tick(world.clock.monotonic_s())
        assert not world.groups.has_members("g")


async def test_a_group_without_members_may_change_its_protocol() -> None:
    async with running() as world:
        member, generation = await world.join()
        await world.groups.sync("g", member, generation, None, [])
        beat = Beat(member_id="m", epoch=0, topics=("a",), rebalance_timeout_ms=1000, owned=frozenset())
        with pytest.raises(Refused) as caught:
            await world.groups.beat("g", beat)
        assert caught.value.reason is Reason.NOT_FOUND
        world.groups.leave("g", [(member, None)])
        await world.groups.beat("g", beat)
        with pytest.raises(Refused) as caught:
            await world.join()
        assert caught.value.reason is Reason.INCONSISTENT_PROTOCOL
