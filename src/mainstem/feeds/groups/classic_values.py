"""What a classic group is asked, what it answers, and its members."""

from collections.abc import Hashable
from enum import StrEnum

import msgspec

from mainstem.feeds.groups.reasons import Refused

# Whatever the caller knows a waiting request by.
Ticket = Hashable


class State(StrEnum):
    """The words are those that tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(msgspec.Struct, frozen=True, gc=False):
    """A way to assign that a member knows, and what it has to say for it."""

    name: str
    metadata: bytes


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants to be in the group."""

    member_id: str
    instance_id: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    client_id: str = ""
    host: str = ""
    # Whether the client knows that a first join is answered with an id to join with.
    knows_member_ids: bool = True
    # Whether a leader can be told that there is nothing to assign.
    can_skip: bool = False


class JoinedMember(msgspec.Struct, frozen=True, gc=False):
    """One of the others, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The generation that a member is in."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    # Only the leader is told of the others.
    members: tuple[JoinedMember, ...] = ()
    skips_assignment: bool = False


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is to do in this generation."""

    protocol_type: str
    protocol: str
    assignment: bytes


class Answer(msgspec.Struct, frozen=True):
    """To a request that waited."""

    ticket: Ticket
    said: Joined | Synced | Refused


class Member:
    """One member, as long as the group knows it."""

    __slots__ = (
        "assignment",
        "client_id",
        "expires_s",
        "host",
        "instance_id",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(self, member_id: str, asked: Join, now_s: float) -> None:
        self.member_id = member_id
        self.instance_id = asked.instance_id
        self.client_id = asked.client_id
        self.host = asked.host
        self.session_timeout_ms = asked.session_timeout_ms
        self.rebalance_timeout_ms = asked.rebalance_timeout_ms
        self.protocols = asked.protocols
        self.assignment = b""
        # The requests that wait for an answer.
        self.join: Ticket | None = None
        self.sync: Ticket | None = None
        self.expires_s = now_s + asked.session_timeout_ms / 1000

    def metadata(self, protocol: str | None) -> bytes:
        """What it says of itself under a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def touch(self, now_s: float) -> None:
        """It was heard of."""
        self.expires_s = now_s + self.session_timeout_ms / 1000

    @property
    def size_bytes(self) -> int:
        """How much is kept of it."""
        return sum(len(each.name) + len(each.metadata) for each in self.protocols) + len(self.assignment)
