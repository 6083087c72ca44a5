"""A transaction's states, as a table: what may be asked in each, and what comes of it."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from mainstem.model.errors import Conflict


class State(StrEnum):
    """The words are those that tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class Event(StrEnum):
    """What producers ask, and what time and the log do."""

    # A producer starts, or starts again: the producer that had the name before is fenced.
    INIT = "init"
    # Partitions or a group take part.
    ADD = "add"
    COMMIT = "commit"
    ABORT = "abort"
    # The markers are in every partition.
    MARKED = "marked"
    TIMEOUT = "timeout"


class Reason(StrEnum):
    """Why not. The words are the protocol's own."""

    INVALID_STATE = "invalid_txn_state"
    CONCURRENT = "concurrent_transactions"
    INVALID_MAPPING = "invalid_producer_id_mapping"
    FENCED = "producer_fenced"
    INVALID_TIMEOUT = "invalid_transaction_timeout"
    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "transactional_id_not_found"
    NOT_AVAILABLE = "coordinator_not_available"
    UNKNOWN_TOPIC = "unknown_topic_or_partition"
    TOO_LARGE = "policy_violation"


class Refused(Conflict):
    """The transaction is not where the producer thinks it is."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_S, _E, _R = State, Event, Reason

# (state, event) → the state after it, or why not. An end that was asked for twice is answered as the first time.
TABLE: Mapping[tuple[State, Event], State | Reason] = MappingProxyType(
    {
        (_S.EMPTY, _E.INIT): _S.EMPTY,
        (_S.EMPTY, _E.ADD): _S.ONGOING,
        (_S.EMPTY, _E.COMMIT): _R.INVALID_STATE,
        (_S.EMPTY, _E.ABORT): _R.INVALID_STATE,
        (_S.EMPTY, _E.MARKED): _R.INVALID_STATE,
        (_S.EMPTY, _E.TIMEOUT): _R.INVALID_STATE,
        # A producer that starts while one with its name has a transaction open: that is aborted first.
        (_S.ONGOING, _E.INIT): _S.PREPARE_ABORT,
        (_S.ONGOING, _E.ADD): _S.ONGOING,
        (_S.ONGOING, _E.COMMIT): _S.PREPARE_COMMIT,
        (_S.ONGOING, _E.ABORT): _S.PREPARE_ABORT,
        (_S.ONGOING, _E.MARKED): _R.INVALID_STATE,
        (_S.ONGOING, _E.TIMEOUT): _S.PREPARE_ABORT,
        (_S.PREPARE_COMMIT, _E.INIT): _R.CONCURRENT,
        (_S.PREPARE_COMMIT, _E.ADD): _R.CONCURRENT,
        (_S.PREPARE_COMMIT, _E.COMMIT): _R.CONCURRENT,
        (_S.PREPARE_COMMIT, _E.ABORT): _R.INVALID_STATE,
        (_S.PREPARE_COMMIT, _E.MARKED): _S.COMPLETE_COMMIT,
        (_S.PREPARE_COMMIT, _E.TIMEOUT): _R.INVALID_STATE,
        (_S.PREPARE_ABORT, _E.INIT): _R.CONCURRENT,
        (_S.PREPARE_ABORT, _E.ADD): _R.CONCURRENT,
        (_S.PREPARE_ABORT, _E.COMMIT): _R.INVALID_STATE,
        (_S.PREPARE_ABORT, _E.ABORT): _R.CONCURRENT,
        (_S.PREPARE_ABORT, _E.MARKED): _S.COMPLETE_ABORT,
        (_S.PREPARE_ABORT, _E.TIMEOUT): _R.INVALID_STATE,
        (_S.COMPLETE_COMMIT, _E.INIT): _S.EMPTY,
        (_S.COMPLETE_COMMIT, _E.ADD): _S.ONGOING,
        (_S.COMPLETE_COMMIT, _E.COMMIT): _S.COMPLETE_COMMIT,
        (_S.COMPLETE_COMMIT, _E.ABORT): _R.INVALID_STATE,
        (_S.COMPLETE_COMMIT, _E.MARKED): _R.INVALID_STATE,
        (_S.COMPLETE_COMMIT, _E.TIMEOUT): _R.INVALID_STATE,
        (_S.COMPLETE_ABORT, _E.INIT): _S.EMPTY,
        (_S.COMPLETE_ABORT, _E.ADD): _S.ONGOING,
        (_S.COMPLETE_ABORT, _E.COMMIT): _R.INVALID_STATE,
        (_S.COMPLETE_ABORT, _E.ABORT): _S.COMPLETE_ABORT,
        (_S.COMPLETE_ABORT, _E.MARKED): _R.INVALID_STATE,
        (_S.COMPLETE_ABORT, _E.TIMEOUT): _R.INVALID_STATE,
    }
)


def after(state: State, event: Event) -> State:
    """The state that an event leads to. Raises Refused."""
    found = TABLE[state, event]
    if isinstance(found, Reason):
        raise Refused(found, f"transaction is in another state. expected=one that allows {event} got={state}")
    return found
