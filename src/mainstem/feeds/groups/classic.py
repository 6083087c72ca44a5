"""A group whose members agree among themselves: they join, one of them assigns, all learn of it (the classic protocol).

A state machine without I/O. The caller says what time it is and drains two lists: `answers` to requests that had to
wait, and `entries` for the journal. An answer that depends on an entry is only sent once that is durable.

    state                 waits for                     leaves it by
    EMPTY                 a member                      a join
    PREPARING_REBALANCE   joins of all members          all are there, or the time is up
    COMPLETING_REBALANCE  the leader's assignment       it comes; or somebody joins, leaves or is lost
    STABLE                -                             somebody joins, leaves or is lost
    DEAD                  -                             -
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mainstem.feeds.groups.classic_values import (
    Answer,
    Join,
    Joined,
    JoinedMember,
    Member,
    Protocol,
    State,
    Synced,
    Ticket,
)
from mainstem.feeds.groups.entries import Entry, GroupEntry, MemberEntry
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.roster import Roster
from mainstem.feeds.groups.settings import GroupSettings


class ClassicGroup:
    """One group. Belongs to the event loop."""

    def __init__(
        self, group_id: str, settings: GroupSettings, new_id: Callable[[str], str], *, now_s: float = 0.0
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.answers: list[Answer] = []
        self.entries: list[Entry] = []
        self._settings = settings
        self._new_id = new_id
        self._roster = Roster(settings)
        # Ids that were handed out and not joined with yet, and when they are forgotten.
        self._pending: dict[str, float] = {}
        self._joins_until_s: float | None = None
        # A new group waits a little for more members; each one that comes makes it wait as long again, up to here.
        self._delay_until_s: float | None = None
        self._syncs_until_s: float | None = None

    @property
    def members(self) -> Mapping[str, Member]:
        """Who is in the group."""
        return self._roster.members

    @property
    def leader(self) -> str | None:
        """The member that assigns."""
        return self._roster.leader

    # Requests

    def join(self, asked: Join, ticket: Ticket, now_s: float) -> None:
        """Somebody joins: it is answered under its ticket, at once or when the others are there. Raises Refused."""
        if self.state is State.DEAD:
            raise _no(Reason.NOT_AVAILABLE, "the group was removed")
        self._roster.check_protocols(asked, self.protocol_type)
        if not asked.member_id:
            self._join_new(asked, ticket, now_s)
        elif asked.member_id in self._pending:
            self._roster.check_room(asked)
            del self._pending[asked.member_id]
            self._add(Member(asked.member_id, asked, now_s), asked, ticket, now_s)
        else:
            self._join_again(self._known(asked.member_id, asked.instance_id), asked, ticket, now_s)

    def sync(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        assignments: Iterable[tuple[str, bytes]],
        ticket: Ticket,
        now_s: float,
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """A member asks for its assignment; the leader brings everybody's. Raises Refused."""
        member = self._of_generation(member_id, generation, instance_id)
        if (protocol_type or self.protocol_type) != self.protocol_type or (protocol or self.protocol) != self.protocol:
            raise _no(Reason.INCONSISTENT_PROTOCOL, f"protocol. expected={self.protocol} got={protocol}")
        if self.state is State.PREPARING_REBALANCE:
            raise _no(Reason.REBALANCING, "the group is rebalancing: join again")
        member.touch(now_s)
        if self.state is State.STABLE:
            self._answer(ticket, self._synced(member))
            return
        if member.sync is not None:
            self._answer(member.sync, _no(Reason.REBALANCING, "the member asked again"))
        member.sync = ticket
        if member_id == self.leader:
            self._assign(dict(assignments), now_s)

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now_s: float) -> None:
        """A member is alive. Raises Refused, also where it has to join again."""
        member = self._of_generation(member_id, generation, instance_id)
        member.touch(now_s)
        if self.state is State.PREPARING_REBALANCE:
            raise _no(Reason.REBALANCING, "the group is rebalancing: join again")

    def leave(self, member_id: str, instance_id: str | None, now_s: float) -> str:
        """A member goes, by its id or by its instance's; its id. Raises Refused."""
        if self.state is State.DEAD:
            raise _no(Reason.NOT_AVAILABLE, "the group was removed")
        if member_id in self._pending:
            del self._pending[member_id]
            self._maybe_complete(now_s)
            return member_id
        if not member_id and (of_instance := self._roster.of_instance(instance_id)) is not None:
            member_id = of_instance.member_id
        self._remove(self._known(member_id, instance_id), now_s)
        return member_id

    def check_commit(self, member_id: str, generation: int, instance_id: str | None, now_s: float) -> None:
        """Whether this member may commit offsets now. Raises Refused."""
        if self.state is State.EMPTY and generation < 0:
            # Somebody who assigns partitions to itself, or an administrator.
            return
        self._of_generation(member_id, generation, instance_id).touch(now_s)
        if self.state is State.COMPLETING_REBALANCE:
            raise _no(Reason.REBALANCING, "the group has no assignment yet")

    def die(self) -> None:
        """The group is removed: the members that wait are told so."""
        for member in self.members.values():
            self._dismiss(member, _no(Reason.NOT_AVAILABLE, "the group was removed"))
        self._roster.clear()
        self._pending.clear()
        self.state = State.DEAD
        self._joins_until_s = self._delay_until_s = self._syncs_until_s = None

    # Time

    def due_s(self) -> float | None:
        """When `tick` has something to do; None while nothing can become due."""
        dues = [
            *self._pending.values(),
            *(member.expires_s for member in self.members.values() if member.join is None and member.sync is None),
        ]
        dues += [due for due in (self._joins_until_s, self._delay_until_s, self._syncs_until_s) if due is not None]
        return min(dues, default=None)

    def tick(self, now_s: float) -> None:
        """Let what is due happen: lost members, ids that no member came back with, waits that are over."""
        for member_id in [name for name, due in self._pending.items() if due <= now_s]:
            del self._pending[member_id]
        # One that waits for our answer is not lost: its client cannot send a heartbeat meanwhile.
        # And one that waited until another was lost has only now been told to join again: so each is asked in its turn.
        for member in list(self.members.values()):
            is_lost = member.expires_s <= now_s and member.join is None and member.sync is None
            if is_lost and member.member_id in self.members:
                self._remove(member, now_s)
        if self._syncs_until_s is not None and self._syncs_until_s <= now_s:
            self._syncs_until_s = None
            for member in [each for each in self.members.values() if each.sync is None]:
                self._remove(member, now_s)
        if self._delay_until_s is not None and self._delay_until_s <= now_s:
            self._delay_until_s = None
        if self._joins_until_s is not None and self._joins_until_s <= now_s:
            self._complete(now_s)
        else:
            self._maybe_complete(now_s)

    # What others ask

    @property
    def size_bytes(self) -> int:
        """How much is kept of its members."""
        return self._roster.size_bytes

    @property
    def waiting_count(self) -> int:
        """Requests that wait for an answer."""
        return sum((member.join is not None) + (member.sync is not None) for member in self.members.values())

    def restore(self, entry: GroupEntry, now_s: float) -> None:
        """Become what the journal has, with every member heard of just now."""
        self.generation = entry.generation
        self.protocol_type = entry.protocol_type
        self.protocol = entry.protocol
        self._roster.restore([_member(entry, each, now_s) for each in entry.members], entry.leader)
        self.state = State.STABLE if self.members else State.EMPTY

    # Joining

    def _join_new(self, asked: Join, ticket: Ticket, now_s: float) -> None:
        if (of_instance := self._roster.of_instance(asked.instance_id)) is not None:
            self._replace_static(of_instance, asked, ticket, now_s)
            return
        self._roster.check_room(asked)
        member_id = self._new_id(asked.instance_id or asked.client_id)
        if asked.instance_id is None and asked.knows_member_ids:
            # Otherwise a client that never hears our answer would leave a member behind with every attempt.
            if len(self._pending) >= self._settings.members_max:
                raise _no(Reason.GROUP_FULL, f"members to come. expected=at most {self._settings.members_max}")
            self._pending[member_id] = now_s + asked.session_timeout_ms / 1000
            raise _no(Reason.MEMBER_ID_REQUIRED, member_id)
        self._add(Member(member_id, asked, now_s), asked, ticket, now_s)

    def _add(self, member: Member, asked: Join, ticket: Ticket, now_s: float) -> None:
        if not self.members:
            self.protocol_type = asked.protocol_type
        self._roster.add(member)
        member.join = ticket
        self._rebalance(now_s)

    def _join_again(self, member: Member, asked: Join, ticket: Ticket, now_s: float) -> None:
        """A member that is known. What state is it for?"""
        is_same = member.protocols == asked.protocols
        is_leader = member.member_id == self.leader
        member.touch(now_s)
        if self.state is State.COMPLETING_REBALANCE and is_same:
            # Our answer was lost.
            self._answer(ticket, self._joined(member))
            return
        if self.state is State.STABLE and is_same and not is_leader:
            self._answer(ticket, self._joined(member))
            return
        self._update(member, asked, ticket)
        if self.state is State.PREPARING_REBALANCE:
            self._maybe_complete(now_s)
        else:
            self._rebalance(now_s)

    def _update(self, member: Member, asked: Join, ticket: Ticket) -> None:
        member.protocols = asked.protocols
        member.session_timeout_ms = asked.session_timeout_ms
        member.rebalance_timeout_ms = asked.rebalance_timeout_ms
        if member.join is not None:
            # The same member on another connection: the earlier request has no reader any more.
            self._answer(member.join, _no(Reason.REBALANCING, "the member joined again"))
        member.join = ticket

    def _replace_static(self, old: Member, asked: Join, ticket: Ticket, now_s: float) -> None:
        """An instance started again: it takes the place, and the assignment, of what it was; that is fenced."""
        assert old.instance_id is not None
        self._dismiss(old, _no(Reason.FENCED_INSTANCE, f"another process is this instance now. got={old.instance_id}"))
        new = Member(self._new_id(old.instance_id), asked, now_s)
        new.assignment = old.assignment
        was_leader = self.leader == old.member_id
        self._roster.replace(old, new)
        is_same = old.metadata(self.protocol) == new.metadata(self.protocol) and self.protocol in {
            each.name for each in new.protocols
        }
        if self.state is State.STABLE and is_same and self._roster.vote() == self.protocol:
            said = self._joined(new, skips=True)
            if was_leader and not asked.can_skip:
                # A client that cannot be told to skip would assign anew: it takes a leader that is not itself for a
                # reason not to.
                said = msgspec.structs.replace(said, leader=old.member_id, members=(), skips_assignment=False)
            self._answer(ticket, said)
            self.entries.append(self.entry())
            return
        new.join = ticket
        if self.state is State.PREPARING_REBALANCE:
            self._maybe_complete(now_s)
        else:
            self._rebalance(now_s)

    # Rebalancing

    def _rebalance(self, now_s: float) -> None:
        """Everybody has to join again."""
        delay_s = self._settings.rebalance_delay_ms / 1000
        if self.state is State.PREPARING_REBALANCE:
            if self._delay_until_s is not None:
                self._delay_until_s = now_s + delay_s
            self._maybe_complete(now_s)
            return
        is_new = self.state is State.EMPTY
        if self.state is State.COMPLETING_REBALANCE:
            for member in self.members.values():
                if member.sync is not None:
                    self._answer(member.sync, _no(Reason.REBALANCING, "the group is rebalancing: join again"))
                    member.sync = None
                    member.touch(now_s)
        self._syncs_until_s = None
        self.state = State.PREPARING_REBALANCE
        timeout_ms = max(member.rebalance_timeout_ms for member in self.members.values())
        self._joins_until_s = now_s + timeout_ms / 1000
        self._delay_until_s = now_s + delay_s if is_new and delay_s else None
        self._maybe_complete(now_s)

    def _maybe_complete(self, now_s: float) -> None:
        if self.state is not State.PREPARING_REBALANCE or self._delay_until_s is not None or self._pending:
            return
        if all(member.join is not None for member in self.members.values()):
            self._complete(now_s)

    def _complete(self, now_s: float) -> None:
        """All are there, or the time is up: missing members are out, unless their instance may still come back."""
        for member in [each for each in self.members.values() if each.join is None and each.instance_id is None]:
            self._roster.forget(member)
        self._delay_until_s = None
        here = [member for member in self.members.values() if member.join is not None]
        if self.members and not here:
            timeout_ms = max(member.rebalance_timeout_ms for member in self.members.values())
            self._joins_until_s = now_s + timeout_ms / 1000
            return
        self._joins_until_s = None
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        if self.leader not in {member.member_id for member in here}:
            self._roster.leader = here[0].member_id
        self.protocol = self._roster.vote()
        self.state = State.COMPLETING_REBALANCE
        self._syncs_until_s = now_s + max(member.rebalance_timeout_ms for member in here) / 1000
        for member in here:
            assert member.join is not None
            self._answer(member.join, self._joined(member))
            member.join = None
            member.touch(now_s)

    def _become_empty(self) -> None:
        self.state = State.EMPTY
        self.protocol = None
        self._roster.leader = None
        self.entries.append(self.entry())

    def _assign(self, assignments: dict[str, bytes], now_s: float) -> None:
        size = sum(map(len, assignments.values()))
        if self.size_bytes + size > self._settings.metadata_bytes_max:
            leader = self.members[self.leader or ""]
            leader.sync = None
            raise _no(Reason.GROUP_FULL, f"assignments. expected=at most {self._settings.metadata_bytes_max} bytes")
        self.state = State.STABLE
        self._syncs_until_s = None
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.entries.append(self.entry())
        for member in self.members.values():
            if member.sync is not None:
                self._answer(member.sync, self._synced(member))
                member.sync = None
                member.touch(now_s)

    def _remove(self, member: Member, now_s: float) -> None:
        self._dismiss(member, _no(Reason.UNKNOWN_MEMBER, "the member is not in the group any more"))
        self._roster.forget(member)
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            if self.members:
                self._rebalance(now_s)
            else:
                self._syncs_until_s = None
                self.generation += 1
                self._become_empty()
        elif self.state is State.PREPARING_REBALANCE:
            self._maybe_complete(now_s)

    def _dismiss(self, member: Member, why: Refused) -> None:
        for ticket in (member.join, member.sync):
            if ticket is not None:
                self._answer(ticket, why)
        member.join = member.sync = None

    # Checks and answers

    def _known(self, member_id: str, instance_id: str | None) -> Member:
        if self.state is State.DEAD:
            raise _no(Reason.NOT_AVAILABLE, "the group was removed")
        return self._roster.known(member_id, instance_id)

    def _of_generation(self, member_id: str, generation: int, instance_id: str | None) -> Member:
        member = self._known(member_id, instance_id)
        if generation != self.generation:
            raise _no(Reason.ILLEGAL_GENERATION, f"generation. expected={self.generation} got={generation}")
        return member

    def _answer(self, ticket: Ticket, said: Joined | Synced | Refused) -> None:
        self.answers.append(Answer(ticket, said))

    def _joined(self, member: Member, *, skips: bool = False) -> Joined:
        is_leader = member.member_id == self.leader
        members = tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in (self.members.values() if is_leader else ())
        )
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type or "",
            protocol=self.protocol or "",
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
            skips_assignment=skips and is_leader,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(
            protocol_type=self.protocol_type or "", protocol=self.protocol or "", assignment=member.assignment
        )

    def entry(self) -> GroupEntry:
        """The group as the journal keeps it."""
        return GroupEntry(
            group=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self._roster.entries(self.protocol),
        )


def _no(reason: Reason, message: str) -> Refused:
    return Refused(reason, message)


def _member(group: GroupEntry, entry: MemberEntry, now_s: float) -> Member:
    """A member of the journal's, heard of just now."""
    asked = Join(
        member_id=entry.member_id,
        instance_id=entry.instance_id,
        session_timeout_ms=entry.session_timeout_ms,
        rebalance_timeout_ms=entry.rebalance_timeout_ms,
        protocol_type=group.protocol_type or "",
        protocols=(Protocol(group.protocol or "", entry.metadata),),
        client_id=entry.client_id,
        host=entry.host,
    )
    member = Member(entry.member_id, asked, now_s)
    member.assignment = entry.assignment
    return member
