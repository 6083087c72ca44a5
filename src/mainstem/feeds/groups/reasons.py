"""Why a coordinator says no. The words are the protocol's own, so that a door need only look up their numbers."""

from enum import StrEnum

from mainstem.model.errors import Conflict


class Reason(StrEnum):
    """What the member has to deal with."""

    INVALID_GROUP_ID = "invalid_group_id"
    INVALID_SESSION_TIMEOUT = "invalid_session_timeout"
    INVALID_REQUEST = "invalid_request"
    INVALID_REGEX = "invalid_regular_expression"
    INCONSISTENT_PROTOCOL = "inconsistent_group_protocol"
    MEMBER_ID_REQUIRED = "member_id_required"
    UNKNOWN_MEMBER = "unknown_member_id"
    ILLEGAL_GENERATION = "illegal_generation"
    REBALANCING = "rebalance_in_progress"
    FENCED_INSTANCE = "fenced_instance_id"
    GROUP_FULL = "group_max_size_reached"
    NOT_AVAILABLE = "coordinator_not_available"
    NOT_FOUND = "group_id_not_found"
    NOT_EMPTY = "non_empty_group"
    SUBSCRIBED = "group_subscribed_to_topic"
    METADATA_TOO_LARGE = "offset_metadata_too_large"
    UNSTABLE_OFFSETS = "unstable_offset_commit"
    FENCED_EPOCH = "fenced_member_epoch"
    STALE_EPOCH = "stale_member_epoch"
    UNRELEASED_INSTANCE = "unreleased_instance_id"
    UNSUPPORTED_ASSIGNOR = "unsupported_assignor"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_TOPIC = "unknown_topic_or_partition"


class Refused(Conflict):
    """The coordinator's state is not what the member assumed; `reason` says which way."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
