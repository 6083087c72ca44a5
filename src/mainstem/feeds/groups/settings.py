"""The bounds and times of group coordination. Defaults are Kafka's but where a comment says why not."""

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[kafka.groups]` of the configuration."""

    # Groups at the most.
    groups_max: Positive = 10_000
    # Members of a group at the most.
    members_max: Positive = 1_000
    # Of one group together: what members say of themselves, and what they are assigned.
    metadata_bytes_max: Positive = 16 * 1024 * 1024
    # Committed offsets of all groups together, each with its note.
    offsets_max: Positive = 1_000_000
    # The longest note of a committed offset.
    offset_metadata_bytes_max: Positive = 4096
    # The notes of all of them together. All are in memory, and in what the log keeps of itself at each seal.
    offset_notes_bytes_max: Positive = 64 * 1024 * 1024
    # The shortest session that a member may ask for.
    session_timeout_ms_min: Positive = 6_000
    # The longest one.
    session_timeout_ms_max: Positive = 1_800_000
    # How long a new group waits for more members before its first assignment. Kafka waits for 3 s, for the sake of
    # clusters that start together; most of our users start one consumer and look at it.
    rebalance_delay_ms: Annotated[int, msgspec.Meta(ge=0)] = 300
    # Of the newer protocol. Kafka's 5 s make a rebalance of three steps take 15; a heartbeat here costs microseconds.
    heartbeat_interval_ms: Positive = 1_000
    # A member that sends no heartbeat for this long has left the group, in the newer protocol.
    session_timeout_ms: Positive = 45_000
    # How long a group without members keeps what it committed.
    offsets_retention_s: Positive = 7 * 24 * 3600
