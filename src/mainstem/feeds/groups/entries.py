"""What coordinators write into the log, and what they are made of again after a restart.

Entries are stored: fields are only ever added, with a default. Each becomes a change of a table in the topics'
namespace (`section`), so that groups and offsets can be queried like anything else.
"""

import msgspec


class MemberEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a classic group."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes = b""
    assignment: bytes = b""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="classic"):
    """A classic group after its leader assigned, or without members."""

    group: str
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberEntry, ...] = ()


class TopicPartitions(msgspec.Struct, frozen=True, gc=False):
    """Partitions of one topic, by its id."""

    topic_id: str
    partitions: tuple[int, ...]


class EpochEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="consumer"):
    """A group of the newer protocol: its epoch, and what each member is to have at the end."""

    group: str
    epoch: int
    assignor: str = ""
    target: dict[str, tuple[TopicPartitions, ...]] = {}


class ConsumerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of such a group, as it is now."""

    group: str
    member_id: str
    # Below zero: it left for good (-1), or its instance will be back (-2).
    epoch: int
    previous_epoch: int = 0
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_timeout_ms: int = 0
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    state: str = ""
    assigned: tuple[TopicPartitions, ...] = ()
    revoking: tuple[TopicPartitions, ...] = ()


class Offset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a group is in one partition."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class GoneEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is no more."""

    group: str


Entry = GroupEntry | EpochEntry | ConsumerEntry | GoneEntry
