"""The members of a classic group: by id and by instance, who leads them, how many may be there, and which protocol all
of them know."""

from collections import Counter
from collections.abc import Iterable

from mainstem.feeds.groups.classic_values import Join, Member
from mainstem.feeds.groups.entries import MemberEntry
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.settings import GroupSettings


class Roster:
    """See above. Knows nothing of the group's state, and nothing of time."""

    def __init__(self, settings: GroupSettings) -> None:
        self.members: dict[str, Member] = {}
        self.leader: str | None = None
        self._settings = settings
        # The member that an instance (KIP-345) is now.
        self._instances: dict[str, str] = {}

    @property
    def size_bytes(self) -> int:
        """How much is kept of the members."""
        return sum(member.size_bytes for member in self.members.values())

    def add(self, member: Member) -> None:
        """One more. The first one leads."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self.leader = self.leader or member.member_id

    def replace(self, old: Member, new: Member) -> None:
        """The same instance under another id: it has the other's place in the order, and leads where that led."""
        assert new.instance_id is not None
        self.members = {
            (new.member_id if name == old.member_id else name): (new if name == old.member_id else each)
            for name, each in self.members.items()
        }
        self._instances[new.instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id

    def forget(self, member: Member) -> None:
        """One less. Where it led, the one that came first leads."""
        del self.members[member.member_id]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.member_id:
            del self._instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def clear(self) -> None:
        """No member is left."""
        self.members.clear()
        self._instances.clear()
        self.leader = None

    def of_instance(self, instance_id: str | None) -> Member | None:
        """The member that an instance is now."""
        return None if instance_id is None else self.members.get(self._instances.get(instance_id, ""))

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """A member by its id. Raises Refused where there is none, or its instance is another one by now."""
        if instance_id is not None:
            of_instance = self._instances.get(instance_id)
            if of_instance is None:
                raise Refused(Reason.UNKNOWN_MEMBER, f"no such instance. got={instance_id:.100}")
            if of_instance != member_id:
                raise Refused(Reason.FENCED_INSTANCE, f"another process is this instance now. got={instance_id:.100}")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Reason.UNKNOWN_MEMBER, f"no such member. got={member_id:.100}")
        return member

    def check_room(self, asked: Join) -> None:
        """Whether there is room for one more. Raises Refused."""
        if len(self.members) >= self._settings.members_max:
            raise Refused(Reason.GROUP_FULL, f"members. expected=at most {self._settings.members_max}")
        size = self.size_bytes + sum(len(each.metadata) for each in asked.protocols)
        if size > self._settings.metadata_bytes_max:
            bound = self._settings.metadata_bytes_max
            raise Refused(Reason.GROUP_FULL, f"members' metadata. expected=at most {bound} bytes got={size}")

    def check_protocols(self, asked: Join, protocol_type: str | None) -> None:
        """Whether who asks has a protocol in common with all the others. Raises Refused."""
        if not asked.protocol_type or not asked.protocols:
            raise Refused(Reason.INCONSISTENT_PROTOCOL, "protocols. expected=at least one got=none")
        if not self.members:
            return
        if asked.protocol_type != protocol_type:
            message = f"protocol type. expected={protocol_type} got={asked.protocol_type:.100}"
            raise Refused(Reason.INCONSISTENT_PROTOCOL, message)
        others = [each for each in self.members.values() if each.member_id != asked.member_id]
        if not {each.name for each in asked.protocols}.intersection(*map(_names, others)):
            raise Refused(Reason.INCONSISTENT_PROTOCOL, "no protocol that every member knows")

    def vote(self) -> str:
        """The protocol that most members like best among those that all know."""
        common = set.intersection(*map(_names, self.members.values()))
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self.members.values()
        )
        return max(sorted(votes), key=lambda name: votes[name])

    def restore(self, members: Iterable[Member], leader: str | None) -> None:
        """Become what the journal has."""
        self.clear()
        for member in members:
            self.add(member)
        self.leader = leader

    def entries(self, protocol: str | None) -> tuple[MemberEntry, ...]:
        """The members as the journal keeps them."""
        return tuple(
            MemberEntry(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                host=each.host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                metadata=each.metadata(protocol),
                assignment=each.assignment,
            )
            for each in self.members.values()
        )


def _names(member: Member) -> set[str]:
    return {each.name for each in member.protocols}
