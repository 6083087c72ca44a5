"""What a group of the newer protocol is asked, what it answers, and its members."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from mainstem.feeds.groups.assignors import Assignment
from mainstem.feeds.groups.entries import TopicPartitions

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A topic as the group sees it."""

    topic_id: str
    partitions: int


# By name. The caller has found the topics that members may see.
Topics = Mapping[str, Topic]


class MemberState(StrEnum):
    """How far a member is on its way to the target."""

    STABLE = "stable"
    REVOKING = "revoking"
    WAITING = "waiting"


class GroupState(StrEnum):
    """The words are those that tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat. None is what did not change since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    host: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. No assignment: nothing new."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None


class Consumer:
    """One member."""

    __slots__ = (
        "assigned",
        "assignor",
        "client_id",
        "epoch",
        "expires_s",
        "host",
        "instance_id",
        "member_id",
        "previous_epoch",
        "rack",
        "rebalance_timeout_ms",
        "regex",
        "revoke_until_s",
        "revoking",
        "state",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.instance_id: str | None = None
        self.rack: str | None = None
        self.client_id = ""
        self.host = ""
        self.rebalance_timeout_ms = 300_000
        self.topics: tuple[str, ...] = ()
        self.regex: str | None = None
        self.assignor: str | None = None
        self.epoch = 0
        self.previous_epoch = 0
        self.state = MemberState.STABLE
        self.assigned: Assignment = frozenset()
        self.revoking: Assignment = frozenset()
        self.expires_s = 0.0
        self.revoke_until_s: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that said it would be back."""
        return self.epoch == LEAVES_FOR_NOW

    def subscribed(self, matches: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """Names of topics that it wants."""
        return frozenset(self.topics) | (matches.get(self.regex, frozenset()) if self.regex else frozenset())

    @property
    def size_bytes(self) -> int:
        """About how much is kept of it."""
        return 200 + sum(map(len, self.topics)) + len(self.regex or "") + 16 * len(self.assigned)


def pack(assignment: Assignment) -> tuple[TopicPartitions, ...]:
    """By topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        topics.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic, tuple(each)) for topic, each in topics.items())


def unpack(packed: tuple[TopicPartitions, ...]) -> Assignment:
    """The other way."""
    return frozenset((each.topic_id, partition) for each in packed for partition in each.partitions)
