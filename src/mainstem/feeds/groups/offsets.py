"""Committed offsets: taken from members who may, answered once durable, forgotten when they are not needed any more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from mainstem.feeds.groups.classic import ClassicGroup
from mainstem.feeds.groups.coordinator import GROUP_ID_CHARS_MAX, Coordinator
from mainstem.feeds.groups.entries import Offset
from mainstem.feeds.groups.outbox import CHANGES_MAX, Outbox
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.section import GroupsSection, Place, Writer, note_bytes
from mainstem.model.change import Change
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock

# Offsets that one transaction commits, which is one batch: with the longest notes that are allowed half of what fits.
PENDING_MAX = 5_000


class Committer(msgspec.Struct, frozen=True, kw_only=True):
    """Who commits. Without a member: somebody who assigns partitions to itself, or an administrator."""

    group: str
    member_id: str = ""
    # The epoch, in the newer protocol.
    generation: int = -1
    instance_id: str | None = None
    # Whether its request says which epoch it is of, where the group is of the newer protocol.
    knows_epochs: bool = True

    @property
    def is_nobody(self) -> bool:
        """Whether it is in no group."""
        return not self.member_id and self.generation < 0 and self.instance_id is None


class Offsets:
    """Belongs to the event loop."""

    def __init__(
        self, coordinator: Coordinator, section: GroupsSection, outbox: Outbox, writer: Writer, *, clock: Clock
    ) -> None:
        self._coordinator = coordinator
        self._section = section
        self._outbox = outbox
        self._writer = writer
        self._clock = clock
        # Offsets on their way to the log: they take room as well.
        self._coming = 0
        self._coming_bytes = 0

    async def commit(self, committer: Committer, offsets: Sequence[Offset]) -> None:
        """Make offsets durable. Raises Refused."""
        self._check(committer)
        known = self.all_of(committer.group)
        had = [known.get((each.topic, each.partition)) for each in offsets]
        with self._room(offsets, had):
            await self._write(committer.group, [self._writer.offset(self._stamped(each)) for each in offsets])

    async def commit_later(self, committer: Committer, producer_id: int, offsets: Sequence[Offset]) -> None:
        """Make offsets durable that count if a producer's transaction commits. Raises Refused."""
        if not committer.is_nobody:
            self._check(committer)
        elif not committer.group or len(committer.group) > GROUP_ID_CHARS_MAX:
            raise Refused(Reason.INVALID_GROUP_ID, f"group id. expected=1 to {GROUP_ID_CHARS_MAX} characters")
        had = self._section.pending.get(producer_id, {})
        new = {(each.group, (each.topic, each.partition)) for each in offsets}
        if len(had.keys() | new) > PENDING_MAX:
            # They are written together with the transaction's end: more would be refused there, again and again.
            raise Refused(Reason.NOT_AVAILABLE, f"offsets of a transaction. expected=at most {PENDING_MAX}")
        changes = [self._writer.pending(producer_id, self._stamped(each)) for each in offsets]
        before = [had.get((each.group, (each.topic, each.partition))) for each in offsets]
        with self._room(offsets, before):
            await self._write(committer.group, changes)

    def settled(self, producer_id: int, *, is_committed: bool) -> list[Change]:
        """What a transaction's end means for the offsets in it: to be written with that end."""
        pending = self._section.pending.get(producer_id, {})
        return self._writer.settled(producer_id, list(pending.values()), is_committed=is_committed)

    def get(self, group: str, place: Place) -> Offset | None:
        """How far a group is in a partition."""
        return self._section.offsets.get(group, {}).get(place)

    def all_of(self, group: str) -> Mapping[Place, Offset]:
        """How far a group is everywhere."""
        return self._section.offsets.get(group, {})

    def unstable(self, group: str) -> frozenset[Place]:
        """Partitions in which an open transaction may yet move the group."""
        return frozenset(place for places in self._section.pending.values() for name, place in places if name == group)

    def groups(self) -> Iterable[str]:
        """Every group that has offsets."""
        return self._section.offsets.keys()

    async def forget(self, group: str, places: Iterable[Place]) -> None:
        """Remove offsets. Who may, and whether the group is still there, the caller has asked."""
        known = self.all_of(group)
        await self._write(group, [self._writer.no_offset(group, place) for place in places if place in known])

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: one made later under its name begins anew."""
        for group in list(self.groups()):
            await self.forget(group, [place for place in self.all_of(group) if place[0] == topic])

    async def expire(self) -> int:
        """Forget what is not needed any more; how many offsets that were.

        A group's offsets stay as long as somebody is in it, and for the retention after the last one left. Those of
        somebody who was never in a group stay for as long after each was committed.
        """
        now_ms = self._clock.now_ms()
        before_ms = now_ms - self._coordinator.settings.offsets_retention_s * 1000
        count = 0
        for group in {*self.groups(), *(each.group for each in self._coordinator.overview())}:
            if self._coordinator.has_members(group):
                continue
            kept = self._section.groups.get(group)
            if kept is not None and kept.at_ms > before_ms:
                continue
            old = [place for place, each in self.all_of(group).items() if each.committed_ms <= before_ms]
            await self.forget(group, old)
            count += len(old)
            await self._coordinator.forget_if_idle(group)
        return count

    def _check(self, committer: Committer) -> None:
        group = self._coordinator.get(committer.group)
        now_s = self._clock.monotonic_s()
        if group is None:
            if not committer.group:
                raise Refused(Reason.INVALID_GROUP_ID, "group id. expected=one got=none")
            if committer.generation >= 0 or committer.member_id:
                raise Refused(Reason.ILLEGAL_GENERATION, f"no such group. got={committer.group:.100}")
            self._coordinator.check_new(committer.group)
        elif isinstance(group, ClassicGroup):
            group.check_commit(committer.member_id, committer.generation, committer.instance_id, now_s)
        else:
            group.check_commit(committer.member_id, committer.generation, now_s, is_new_enough=committer.knows_epochs)

    def _stamped(self, offset: Offset) -> Offset:
        return msgspec.structs.replace(offset, committed_ms=self._clock.now_ms())

    @contextmanager
    def _room(self, offsets: Sequence[Offset], had: Sequence[Offset | None]) -> Iterator[None]:
        """Hold room for offsets until they are written. What takes the place of another needs only what it is larger
        by. Raises Refused where there is none."""
        settings = self._coordinator.settings
        count = sum(each is None for each in had)
        size = sum(max(0, note_bytes(new) - note_bytes(old)) for new, old in zip(offsets, had, strict=True))
        if count and self._section.offset_count + self._coming + count > settings.offsets_max:
            raise Refused(Reason.NOT_AVAILABLE, f"offsets of all groups. expected=at most {settings.offsets_max}")
        if size and self._section.note_bytes + self._coming_bytes + size > settings.offset_notes_bytes_max:
            message = f"notes of all offsets. expected=at most {settings.offset_notes_bytes_max} bytes"
            raise Refused(Reason.NOT_AVAILABLE, message)
        self._coming += count
        self._coming_bytes += size
        try:
            yield
        finally:
            self._coming -= count
            self._coming_bytes -= size

    async def _write(self, group: str, changes: list[Change]) -> None:
        try:
            for first in range(0, len(changes), CHANGES_MAX):
                await self._outbox.write(group, changes[first : first + CHANGES_MAX])
        except Refused:
            raise
        except MainstemError as error:
            raise Refused(Reason.NOT_AVAILABLE, f"the offsets could not be written: {error}") from error
