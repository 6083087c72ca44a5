"""A group whose coordinator assigns (the newer protocol): members say in heartbeats what they want and what they have.

Three numbers hold it together. The group's epoch grows whenever members, subscriptions or topics change; a target
assignment is computed for each. A member's epoch says which target it works towards. A partition is handed over in
steps: the member that has it gives it up and says so, and only then does the other get it.

    member state   has                                  goes on when
    STABLE         its target                           the target changes
    REVOKING       partitions that it must give up      its heartbeat no longer names them
    WAITING        all but what others still have       they have let go
"""

from collections.abc import Mapping

from mainstem.feeds.groups.assignors import ASSIGNORS, DEFAULT, Assignment, Partition, Subscribed
from mainstem.feeds.groups.entries import ConsumerEntry, Entry, EpochEntry
from mainstem.feeds.groups.modern_values import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    Beat,
    Consumer,
    GroupState,
    MemberState,
    Told,
    Topic,
    Topics,
    pack,
    unpack,
)
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.settings import GroupSettings


class ModernGroup:
    """One group. Belongs to the event loop."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assignor = DEFAULT
        self.members: dict[str, Consumer] = {}
        self.target: dict[str, Assignment] = {}
        self.entries: list[Entry] = []
        self.is_dead = False
        self._settings = settings
        self._static: dict[str, str] = {}
        # None until they were looked at.
        self._seen_topics: dict[str, Topic] | None = None

    @property
    def state(self) -> GroupState:
        """As tools show it."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        is_stable = all(
            each.is_away or (each.state is MemberState.STABLE and each.epoch == self.assignment_epoch)
            for each in self.members.values()
        )
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    def beat(self, beat: Beat, topics: Topics, matches: Mapping[str, frozenset[str]], now_s: float) -> Told:
        """A heartbeat. `matches` has the names that each regular expression stands for. Raises Refused."""
        if beat.epoch in (LEAVES, LEAVES_FOR_NOW):
            return self._leave(beat, topics, matches)
        joins = beat.epoch == JOINS
        member = self._join(beat) if joins else self._known(beat)
        member.expires_s = now_s + self._settings.session_timeout_ms / 1000
        before = member.assigned
        bumped = self._update(member, beat) or joins
        self._refresh(topics, matches, bumped=bumped)
        changed = self._reconcile(member, beat.owned if not joins else frozenset(), now_s)
        if changed or bumped:
            self.entries.append(self._consumer_entry(member))
        tells = joins or beat.owned is not None or member.assigned != before
        return Told(member_id=member.member_id, epoch=member.epoch, assignment=member.assigned if tells else None)

    def check_commit(self, member_id: str, epoch: int, now_s: float, *, is_new_enough: bool) -> None:
        """Whether this member may commit offsets. Raises Refused."""
        if epoch < 0 and not self.members:
            return
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={member_id:.100}")
        if not is_new_enough:
            raise Refused(Reason.UNSUPPORTED_VERSION, "a group of the newer protocol needs its epoch with a commit")
        if epoch != member.epoch:
            raise Refused(Reason.STALE_EPOCH, f"member epoch. expected={member.epoch} got={epoch}")

    def due_s(self) -> float | None:
        """When `tick` has something to do."""
        dues = [each.expires_s for each in self.members.values()]
        dues += [each.revoke_until_s for each in self.members.values() if each.revoke_until_s is not None]
        return min(dues, default=None)

    def tick(self, topics: Topics, matches: Mapping[str, frozenset[str]], now_s: float) -> None:
        """Members that were not heard of, or did not give up what they must in time, are out."""
        for member in list(self.members.values()):
            is_slow = member.revoke_until_s is not None and member.revoke_until_s <= now_s
            if member.expires_s <= now_s or is_slow:
                self._remove(member, topics, matches)

    def die(self) -> None:
        """The group is removed."""
        self.members.clear()
        self._static.clear()
        self.is_dead = True

    @property
    def size_bytes(self) -> int:
        """About how much is kept of its members."""
        return sum(each.size_bytes for each in self.members.values())

    # Members

    def _join(self, beat: Beat) -> Consumer:
        if not beat.topics and not beat.regex:
            raise Refused(Reason.INVALID_REQUEST, "a member joins with topics. expected=at least one got=none")
        if beat.owned:
            raise Refused(Reason.INVALID_REQUEST, "a member joins without partitions. expected=none got=some")
        if beat.rebalance_timeout_ms is None:
            raise Refused(Reason.INVALID_REQUEST, "a member joins with a rebalance time-out. expected=one got=none")
        if beat.instance_id is not None:
            return self._join_static(beat, beat.instance_id)
        member = self.members.get(beat.member_id)
        return self._reset(member) if member is not None else self._add(Consumer(beat.member_id))

    def _join_static(self, beat: Beat, instance_id: str) -> Consumer:
        held = self._static.get(instance_id)
        if held is None:
            return self._add(Consumer(beat.member_id), instance_id)
        if held == beat.member_id:
            return self._reset(self.members[held])
        old = self.members[held]
        if not old.is_away:
            message = f"the instance is a member already. got={instance_id:.100}"
            raise Refused(Reason.UNRELEASED_INSTANCE, message)
        # It takes over what the instance had, so that no other member's partitions move.
        del self.members[held]
        self.entries.append(_gone(self.group_id, held))
        new = self._add(Consumer(beat.member_id), instance_id)
        new.topics, new.regex, new.assignor = old.topics, old.regex, old.assignor
        self.target[new.member_id] = self.target.pop(held, frozenset())
        new.assigned = old.assigned
        new.previous_epoch = new.epoch = self.assignment_epoch
        return new

    def _add(self, member: Consumer, instance_id: str | None = None) -> Consumer:
        if not member.member_id:
            raise Refused(Reason.INVALID_REQUEST, "a member has an id. expected=one got=none")
        if len(self.members) >= self._settings.members_max:
            raise Refused(Reason.GROUP_FULL, f"members. expected=at most {self._settings.members_max}")
        if self.size_bytes + member.size_bytes > self._settings.metadata_bytes_max:
            raise Refused(Reason.GROUP_FULL, f"members. expected=at most {self._settings.metadata_bytes_max} bytes")
        self.members[member.member_id] = member
        if instance_id is not None:
            member.instance_id = instance_id
            self._static[instance_id] = member.member_id
        return member

    def _reset(self, member: Consumer) -> Consumer:
        """It joins again, with nothing in its hands."""
        member.assigned = member.revoking = frozenset()
        member.state = MemberState.STABLE
        member.epoch = member.previous_epoch = 0
        member.revoke_until_s = None
        return member

    def _known(self, beat: Beat) -> Consumer:
        if beat.epoch < LEAVES_FOR_NOW:
            raise Refused(Reason.INVALID_REQUEST, f"member epoch. expected=at least {LEAVES_FOR_NOW} got={beat.epoch}")
        if beat.instance_id is not None:
            held = self._static.get(beat.instance_id)
            if held is not None and held != beat.member_id:
                raise Refused(Reason.FENCED_INSTANCE, f"another process is this instance. got={beat.instance_id:.100}")
        member = self.members.get(beat.member_id)
        if member is None:
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={beat.member_id:.100}")
        if beat.epoch == member.epoch or member.is_away:
            return member
        # Our last answer may have been lost: the member is one step behind, and holds no more than it was given.
        is_one_behind = beat.epoch == member.previous_epoch and beat.owned is not None and beat.owned <= member.assigned
        if not is_one_behind:
            raise Refused(Reason.FENCED_EPOCH, f"member epoch. expected={member.epoch} got={beat.epoch}")
        return member

    def _update(self, member: Consumer, beat: Beat) -> bool:
        """Take over what changed; whether the target may have to."""
        wanted = (member.topics, member.regex, member.assignor)
        if beat.assignor is not None:
            if beat.assignor not in ASSIGNORS:
                message = f"assignor. expected={' or '.join(ASSIGNORS)} got={beat.assignor:.100}"
                raise Refused(Reason.UNSUPPORTED_ASSIGNOR, message)
            member.assignor = beat.assignor
        if beat.topics is not None:
            member.topics = tuple(sorted(set(beat.topics)))
        if beat.regex is not None:
            member.regex = beat.regex or None
        if beat.rebalance_timeout_ms is not None and beat.rebalance_timeout_ms > 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        member.rack = beat.rack if beat.rack is not None else member.rack
        member.client_id, member.host = beat.client_id, beat.host
        return wanted != (member.topics, member.regex, member.assignor)

    def _leave(self, beat: Beat, topics: Topics, matches: Mapping[str, frozenset[str]]) -> Told:
        member_id = beat.member_id
        if beat.instance_id is not None and self._static.get(beat.instance_id) not in (None, member_id):
            raise Refused(Reason.FENCED_INSTANCE, f"another process is this instance. got={beat.instance_id:.100}")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={member_id:.100}")
        if beat.epoch == LEAVES_FOR_NOW and member.instance_id is not None:
            # Its partitions stay its own until it is back or its session is over.
            member.epoch = LEAVES_FOR_NOW
            member.assigned, member.revoking = member.assigned | member.revoking, frozenset()
            member.state, member.revoke_until_s = MemberState.STABLE, None
            self.entries.append(self._consumer_entry(member))
        else:
            self._remove(member, topics, matches)
        return Told(member_id=member_id, epoch=beat.epoch)

    def _remove(self, member: Consumer, topics: Topics, matches: Mapping[str, frozenset[str]]) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        self.entries.append(_gone(self.group_id, member.member_id))
        self._refresh(topics, matches, bumped=True)

    # Assigning

    def _refresh(self, topics: Topics, matches: Mapping[str, frozenset[str]], *, bumped: bool) -> None:
        """Compute the target anew where members, wishes or topics changed."""
        wanted = {name for each in self.members.values() for name in each.subscribed(matches)}
        seen = {name: topics[name] for name in sorted(wanted) if name in topics}
        if not bumped and (seen == self._seen_topics or self._is_covered(seen)):
            self._seen_topics = seen
            return
        self._seen_topics = seen
        self.epoch += 1
        chosen = [each.assignor for each in self.members.values() if each.assignor]
        self.assignor = max(sorted(set(chosen)), key=chosen.count) if chosen else DEFAULT
        members = {
            name: Subscribed(
                frozenset(seen[topic].topic_id for topic in each.subscribed(matches) if topic in seen), each.instance_id
            )
            for name, each in self.members.items()
        }
        counts = {each.topic_id: each.partitions for each in seen.values()}
        self.target = ASSIGNORS[self.assignor].assign(members, counts, self.target)
        self.assignment_epoch = self.epoch
        self.entries.append(
            EpochEntry(
                group=self.group_id,
                epoch=self.epoch,
                assignor=self.assignor,
                target={name: pack(each) for name, each in self.target.items()},
            )
        )

    def _is_covered(self, seen: Mapping[str, Topic]) -> bool:
        """Whether the target has exactly these topics: after a restart that is how they are known."""
        every = {(each.topic_id, index) for each in seen.values() for index in range(each.partitions)}
        return self._seen_topics is None and every == {each for owned in self.target.values() for each in owned}

    def _reconcile(self, member: Consumer, owned: Assignment | None, now_s: float) -> bool:
        """Take a member one step towards its target; whether anything changed."""
        before = (member.epoch, member.state, member.assigned, member.revoking)
        if member.state is MemberState.REVOKING:
            if owned is None or owned & member.revoking:
                return False
            member.revoking = frozenset()
            member.revoke_until_s = None
        elif member.state is MemberState.STABLE and member.epoch == self.assignment_epoch:
            return False
        self._step(member, owned, now_s)
        return before != (member.epoch, member.state, member.assigned, member.revoking)

    def _step(self, member: Consumer, owned: Assignment | None, now_s: float) -> None:
        target = self.target.get(member.member_id, frozenset())
        kept = member.assigned & target
        given_up = member.assigned - target
        if given_up and (owned is None or owned & given_up):
            member.state = MemberState.REVOKING
            member.assigned, member.revoking = kept, given_up
            member.revoke_until_s = now_s + member.rebalance_timeout_ms / 1000
            return
        busy = self._held_by_others(member)
        free = frozenset(each for each in target - kept if each not in busy)
        member.assigned = kept | free
        member.state = MemberState.WAITING if target - member.assigned else MemberState.STABLE
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _held_by_others(self, member: Consumer) -> set[Partition]:
        return {
            each for other in self.members.values() if other is not member for each in other.assigned | other.revoking
        }

    # The journal

    def restore(self, entry: EpochEntry | ConsumerEntry, now_s: float) -> None:
        """Take over an entry of the journal, in its order."""
        if isinstance(entry, EpochEntry):
            self.epoch = self.assignment_epoch = entry.epoch
            self.assignor = entry.assignor or DEFAULT
            self.target = {name: unpack(each) for name, each in entry.target.items()}
            return
        old = self.members.pop(entry.member_id, None)
        if old is not None and old.instance_id is not None:
            self._static.pop(old.instance_id, None)
        if entry.epoch == LEAVES:
            return
        member = Consumer(entry.member_id)
        member.instance_id, member.rack = entry.instance_id, entry.rack
        member.client_id, member.host = entry.client_id, entry.host
        member.rebalance_timeout_ms = entry.rebalance_timeout_ms
        member.topics, member.regex, member.assignor = entry.topics, entry.regex, entry.assignor
        member.epoch, member.previous_epoch = entry.epoch, entry.previous_epoch
        member.state = MemberState(entry.state)
        member.assigned, member.revoking = unpack(entry.assigned), unpack(entry.revoking)
        member.expires_s = now_s + self._settings.session_timeout_ms / 1000
        if member.state is MemberState.REVOKING:
            member.revoke_until_s = now_s + member.rebalance_timeout_ms / 1000
        self.members[entry.member_id] = member
        if entry.instance_id is not None:
            self._static[entry.instance_id] = entry.member_id

    def whole(self) -> list[Entry]:
        """Everything, as the entries that make it again."""
        epoch = EpochEntry(
            group=self.group_id,
            epoch=self.epoch,
            assignor=self.assignor,
            target={name: pack(each) for name, each in self.target.items()},
        )
        return [epoch, *(self._consumer_entry(each) for each in self.members.values())]

    def _consumer_entry(self, member: Consumer) -> ConsumerEntry:
        return ConsumerEntry(
            group=self.group_id,
            member_id=member.member_id,
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            instance_id=member.instance_id,
            rack=member.rack,
            client_id=member.client_id,
            host=member.host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=member.topics,
            regex=member.regex,
            assignor=member.assignor,
            state=str(member.state),
            assigned=pack(member.assigned),
            revoking=pack(member.revoking),
        )


def _gone(group_id: str, member_id: str) -> ConsumerEntry:
    return ConsumerEntry(group=group_id, member_id=member_id, epoch=LEAVES)
