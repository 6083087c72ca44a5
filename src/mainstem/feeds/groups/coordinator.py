"""All groups of a server: finds or makes the group of a request, lets its state machine decide, and keeps the time.

What is durable is the section's; what is written passes the outbox. A request that has to wait (a join for the others,
a sync for the leader) is a future that the group's answer resolves.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from mainstem.feeds.groups.classic import ClassicGroup
from mainstem.feeds.groups.classic_values import Answer, Join, Joined, State, Synced
from mainstem.feeds.groups.deadlines import Deadlines
from mainstem.feeds.groups.entries import GoneEntry, GroupEntry
from mainstem.feeds.groups.matching import Matches
from mainstem.feeds.groups.modern import ModernGroup
from mainstem.feeds.groups.modern_values import JOINS, Beat, Told, Topics
from mainstem.feeds.groups.outbox import Outbox, settle
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.section import GroupsSection, Writer
from mainstem.feeds.groups.settings import GroupSettings
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock

T = TypeVar("T")
GROUP_ID_CHARS_MAX = 255
# How long the timer sleeps where nothing is due: a new deadline wakes it anyway.
_IDLE_S = 60.0

Group = ClassicGroup | ModernGroup


class Overview(msgspec.Struct, frozen=True):
    """A group in a list of them."""

    group: str
    state: str
    # `classic` or `consumer`.
    kind: str
    protocol_type: str


class Coordinator:
    """Belongs to the event loop. `run` keeps the time and does the writing."""

    def __init__(
        self,
        section: GroupsSection,
        outbox: Outbox,
        writer: Writer,
        *,
        topics: Callable[[], Topics],
        clock: Clock,
        new_id: Callable[[str], str],
        settings: GroupSettings | None = None,
    ) -> None:
        self.settings = settings or GroupSettings()
        self._section = section
        self._outbox = outbox
        self._writer = writer
        self._topics = topics
        self._matches = Matches()
        self._clock = clock
        self._new_id = new_id
        self._groups: dict[str, Group] = {}
        self._deadlines = Deadlines()
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Make the groups of what is durable. Once, when the log is open."""
        now_s = self._clock.monotonic_s()
        for group_id, kept in self._section.groups.items():
            group: Group
            if isinstance(kept.entry, GroupEntry):
                group = ClassicGroup(group_id, self.settings, self._new_id)
                group.restore(kept.entry, now_s)
            else:
                group = ModernGroup(group_id, self.settings)
                group.restore(kept.entry, now_s)
                for member in self._section.members.get(group_id, {}).values():
                    group.restore(member, now_s)
            self._groups[group_id] = group
            self._note_due(group)

    async def run(self) -> None:
        """Let time pass for the groups, until cancelled."""
        while True:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            self.tick(now_s)
            next_s = self._deadlines.next_s()
            wait_s = _IDLE_S if next_s is None else min(_IDLE_S, max(0.0, next_s - now_s))
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        while (group_id := self._deadlines.pop(now_s)) is not None:
            group = self._groups.get(group_id)
            if group is None:
                continue
            due_s = group.due_s()
            if due_s is not None and due_s <= now_s:
                if isinstance(group, ClassicGroup):
                    group.tick(now_s)
                else:
                    group.tick(self._topics(), self._matches.of(group, self._topics()), now_s)
            self._settle(group)

    # The classic protocol

    async def join(self, group_id: str, asked: Join) -> Joined:
        """Be in a group, of its next generation. Raises Refused."""
        settings = self.settings
        if not settings.session_timeout_ms_min <= asked.session_timeout_ms <= settings.session_timeout_ms_max:
            expected = f"{settings.session_timeout_ms_min}..{settings.session_timeout_ms_max}"
            message = f"session time-out. expected={expected} ms got={asked.session_timeout_ms}"
            raise Refused(Reason.INVALID_SESSION_TIMEOUT, message)
        group = self._classic_to_join(group_id, asked)
        future: asyncio.Future[Joined] = self._future()
        try:
            group.join(asked, future, self._clock.monotonic_s())
        finally:
            self._settle(group)
        return await future

    async def sync(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        assignments: Sequence[tuple[str, bytes]],
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Synced:
        """Hear what to do in a generation. Raises Refused."""
        group = self._classic(group_id)
        future: asyncio.Future[Synced] = self._future()
        try:
            group.sync(
                member_id,
                generation,
                instance_id,
                assignments,
                future,
                self._clock.monotonic_s(),
                protocol_type=protocol_type,
                protocol=protocol,
            )
        finally:
            self._settle(group)
        return await future

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> None:
        """Stay in a group. Raises Refused."""
        # It only moves a deadline further away, so no member need be told.
        self._classic(group_id).heartbeat(member_id, generation, instance_id, self._clock.monotonic_s())

    def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[Refused | None]:
        """Go out of a group; what became of each. Raises Refused where there is no such group."""
        group = self._classic(group_id)
        answers: list[Refused | None] = []
        for member_id, instance_id in members:
            try:
                group.leave(member_id, instance_id, self._clock.monotonic_s())
                answers.append(None)
            except Refused as refused:
                answers.append(refused)
        self._settle(group)
        return answers

    # The newer protocol

    async def beat(self, group_id: str, beat: Beat) -> Told:
        """A heartbeat of the newer protocol. Raises Refused."""
        self._check_id(group_id)
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup) and group.state is State.EMPTY and beat.epoch == JOINS:
            # Its offsets stay: only the way to share the work is another one from here on.
            group = None
        if group is None:
            if beat.epoch != JOINS:
                raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={beat.member_id:.100}")
            self._check_room(group_id)
            group = ModernGroup(group_id, self.settings)
        if isinstance(group, ClassicGroup):
            raise Refused(Reason.NOT_FOUND, "the group is of the classic protocol, and has members")
        topics = self._topics()
        matches = self._matches.of(group, topics, beat.regex)
        told = group.beat(beat, topics, matches, self._clock.monotonic_s())
        self._groups[group_id] = group
        return await self._after_entries(group, told)

    # What tools ask

    def get(self, group_id: str) -> Group | None:
        """A group, as it is now."""
        return self._groups.get(group_id)

    def overview(self) -> list[Overview]:
        """Every group that there is, also those of which only offsets are known."""
        found = [
            Overview(name, str(group.state), "classic", group.protocol_type or "")
            if isinstance(group, ClassicGroup)
            else Overview(name, str(group.state), "consumer", "consumer")
            for name, group in self._groups.items()
        ]
        found += [
            Overview(name, str(State.EMPTY), "classic", "")
            for name in self._section.offsets
            if name not in self._groups
        ]
        return sorted(found, key=lambda each: each.group)

    def exists(self, group_id: str) -> bool:
        """Whether there is such a group."""
        return group_id in self._groups or group_id in self._section.offsets

    def has_members(self, group_id: str) -> bool:
        """Whether somebody is in it."""
        group = self._groups.get(group_id)
        return group is not None and bool(group.members)

    async def delete(self, group_id: str) -> None:
        """Remove a group with its offsets. Raises Refused where it has members or does not exist."""
        self._check_id(group_id)
        if not self.exists(group_id):
            raise Refused(Reason.NOT_FOUND, f"no such group. got={group_id:.100}")
        if self.has_members(group_id):
            raise Refused(Reason.NOT_EMPTY, f"the group has members. got={group_id:.100}")
        places = self._section.offsets.get(group_id, {})
        changes = [self._writer.no_offset(group_id, place) for place in places]
        await self._outbox.write(group_id, [*changes, *self._writer.entries([GoneEntry(group=group_id)])])
        group = self._groups.get(group_id)
        # Somebody may have joined while it was written: then only the offsets are gone.
        if group is not None and not group.members:
            group.die()
            self._groups.pop(group_id, None)

    async def forget_if_idle(self, group_id: str) -> None:
        """Remove a group that has neither members nor offsets."""
        if not self.has_members(group_id) and group_id not in self._section.offsets and self.exists(group_id):
            await self.delete(group_id)

    def check_new(self, group_id: str) -> None:
        """Whether there may be such a group. Raises Refused."""
        self._check_id(group_id)
        self._check_room(group_id)

    # Parts

    def _check_id(self, group_id: str) -> None:
        if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
            message = f"group id. expected=1 to {GROUP_ID_CHARS_MAX} characters got={len(group_id)}"
            raise Refused(Reason.INVALID_GROUP_ID, message)

    def _check_room(self, group_id: str) -> None:
        if group_id not in self._section.offsets and len(self._groups) >= self.settings.groups_max:
            raise Refused(Reason.GROUP_FULL, f"groups. expected=at most {self.settings.groups_max}")

    def _classic(self, group_id: str) -> ClassicGroup:
        self._check_id(group_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such group of the classic protocol. got={group_id:.100}")
        return group

    def _classic_to_join(self, group_id: str, asked: Join) -> ClassicGroup:
        self._check_id(group_id)
        group = self._groups.get(group_id)
        if isinstance(group, ModernGroup) and group.members:
            raise Refused(Reason.INCONSISTENT_PROTOCOL, "the group is of the newer protocol, and has members")
        if isinstance(group, ClassicGroup):
            return group
        if asked.member_id:
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={asked.member_id:.100}")
        self._check_room(group_id)
        made = ClassicGroup(group_id, self.settings, self._new_id)
        self._groups[group_id] = made
        return made

    def _future(self) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().create_future()

    def _settle(self, group: Group) -> None:
        """Send what a group has to say, once what it wrote is durable."""
        entries, group.entries = group.entries, []
        changes = self._writer.entries(entries)
        answers = group.answers if isinstance(group, ClassicGroup) else []
        if isinstance(group, ClassicGroup):
            group.answers = []
        if answers or changes:
            self._outbox.send(group.group_id, changes, partial(_tell, answers), partial(_fail, answers))
        self._note_due(group)

    async def _after_entries(self, group: Group, said: T) -> T:
        entries, group.entries = group.entries, []
        self._note_due(group)
        changes = self._writer.entries(entries)
        try:
            await self._outbox.write(group.group_id, changes)
        except MainstemError as error:
            raise Refused(Reason.NOT_AVAILABLE, f"the group could not be written: {error}") from error
        return said

    def _note_due(self, group: Group) -> None:
        if self._deadlines.add(group.group_id, group.due_s()):
            self._wake.set()


def _tell(answers: Iterable[Answer]) -> None:
    for answer in answers:
        settle(_future_of(answer), answer.said)


def _fail(answers: Iterable[Answer], error: MainstemError) -> None:
    for answer in answers:
        refused = Refused(Reason.NOT_AVAILABLE, f"the group could not be written: {error}")
        settle(_future_of(answer), answer.said if isinstance(answer.said, Refused) else refused)


def _future_of(answer: Answer) -> "asyncio.Future[Any]":
    """Requests wait under their own futures here."""
    future = answer.ticket
    assert isinstance(future, asyncio.Future)
    return future
