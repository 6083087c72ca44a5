"""Mainstem's errors in Kafka's numbers."""

from collections.abc import Mapping
from types import MappingProxyType

from kio.schema.errors import ErrorCode

from mainstem.model.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    MainstemError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
)

# By the reason that an Invalid gives.
_BY_REASON: Mapping[str, ErrorCode] = MappingProxyType(
    {
        "corrupt": ErrorCode.corrupt_message,
        "unsupported": ErrorCode.unsupported_for_message_format,
        "invalid": ErrorCode.invalid_record,
        "out_of_order": ErrorCode.out_of_order_sequence_number,
        "duplicate_sequence": ErrorCode.duplicate_sequence_number,
        "fenced_epoch": ErrorCode.invalid_producer_epoch,
        "too_large": ErrorCode.message_too_large,
        "payload_too_large": ErrorCode.message_too_large,
        "timestamp": ErrorCode.invalid_timestamp,
        "null_key": ErrorCode.invalid_record,
        "invalid_topic": ErrorCode.invalid_topic_exception,
        "invalid_partitions": ErrorCode.invalid_partitions,
        "invalid_config": ErrorCode.invalid_config,
        "offset_out_of_range": ErrorCode.offset_out_of_range,
        "policy": ErrorCode.policy_violation,
        "invalid_assignment": ErrorCode.invalid_replica_assignment,
        "invalid_replication": ErrorCode.invalid_replication_factor,
    }
)


_BY_KIND: tuple[tuple[type[MainstemError], ErrorCode], ...] = (
    (Denied, ErrorCode.topic_authorization_failed),
    (NotFound, ErrorCode.unknown_topic_or_partition),
    (Conflict, ErrorCode.topic_already_exists),
    # Clients know no "come later": this one they try again after their own pause.
    (Overloaded, ErrorCode.kafka_storage_error),
    (OutcomeUnknown, ErrorCode.request_timed_out),
    (Corrupt, ErrorCode.kafka_storage_error),
)


def code_of(error: MainstemError) -> ErrorCode:
    """The code that makes a client do what the error means: mend it, give up, or come again."""
    if isinstance(error, Invalid):
        return _BY_REASON.get(error.reason, ErrorCode.invalid_request)
    reason = getattr(error, "reason", None)
    if isinstance(error, Conflict) and reason in ErrorCode.__members__:
        # Coordinators say it in the protocol's own words.
        return ErrorCode[str(reason)]
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), ErrorCode.unknown_server_error)
