"""MongoDB's codes. Every error becomes one of them here, and nowhere else."""

from typing import Any

from mainstem.admission import Unauthenticated
from mainstem.documents import code_name, error_code
from mainstem.feeds.documents.errors import DuplicateKey, NotValid, WriteConflict
from mainstem.model.errors import Denied, Invalid, MainstemError, NotFound, OutcomeUnknown, Overloaded

NAMES = {
    1: "InternalError",
    2: "BadValue",
    8: "UnknownError",
    9: "FailedToParse",
    11: "UserNotFound",
    13: "Unauthorized",
    14: "TypeMismatch",
    15: "Overflow",
    16: "InvalidLength",
    18: "AuthenticationFailed",
    20: "IllegalOperation",
    22: "InvalidBSON",
    26: "NamespaceNotFound",
    27: "IndexNotFound",
    31: "RoleNotFound",
    40: "ConflictingUpdateOperators",
    43: "CursorNotFound",
    48: "NamespaceExists",
    50: "MaxTimeMSExpired",
    51: "UserAlreadyExists",
    52: "DollarPrefixedFieldName",
    53: "InvalidIdField",
    54: "NotSingleValueField",
    59: "CommandNotFound",
    66: "ImmutableField",
    67: "CannotCreateIndex",
    72: "InvalidOptions",
    73: "InvalidNamespace",
    79: "UnknownReplWriteConcern",
    85: "IndexOptionsConflict",
    86: "IndexKeySpecsConflict",
    91: "ShutdownInProgress",
    100: "UnsatisfiableWriteConcern",
    112: "WriteConflict",
    115: "CommandNotSupported",
    121: "DocumentValidationFailure",
    171: "CannotIndexParallelArrays",
    175: "QueryPlanKilled",
    189: "PrimarySteppedDown",
    197: "InvalidIndexSpecificationOption",
    202: "NetworkInterfaceExceededTimeLimit",
    206: "NoSuchSession",
    225: "TransactionTooOld",
    238: "NotImplemented",
    246: "SnapshotUnavailable",
    251: "NoSuchTransaction",
    256: "TransactionCommitted",
    257: "TransactionTooLarge",
    263: "OperationNotSupportedInTransaction",
    280: "ChangeStreamFatalError",
    286: "ChangeStreamHistoryLost",
    292: "QueryExceededMemoryLimitNoDiskUseAllowed",
    303: "ObjectIsBusy",
    352: "QueryFeatureNotAllowed",
    10334: "BSONObjectTooLarge",
    10107: "NotWritablePrimary",
    11000: "DuplicateKey",
    11600: "InterruptedAtShutdown",
    11601: "Interrupted",
    40324: "Location40324",
    40414: "Location40414",
    40415: "Location40415",
    40573: "Location40573",
    51003: "Location51003",
}

# By the word that an `Invalid` carries, of those that the language of documents does not have.
_CODES = {
    "bad_hint": 2,
    "bad_index": 67,
    "bad_index_field": 197,
    "bad_namespace": 73,
    "bad_id": 53,
    "too_large": 10334,
    "payload_too_large": 10334,
    "invalid_bson": 22,
    "history_lost": 286,
    "transaction_too_large": 257,
    "too_many_keys": 67,
}


class CommandFailed(MainstemError):
    """A command's answer is an error: its code, and what else the client is told."""

    def __init__(self, code: int, message: str, *, labels: tuple[str, ...] = (), **extra: Any) -> None:
        super().__init__(message)
        self.code = code
        self.labels = labels
        self.extra = extra

    @property
    def name(self) -> str:
        """MongoDB's name for the code."""
        return NAMES.get(self.code) or code_name(self.code)

    def document(self) -> dict[str, Any]:
        """The reply."""
        reply: dict[str, Any] = {"ok": 0.0, "errmsg": str(self), "code": self.code, "codeName": self.name, **self.extra}
        if self.labels:
            reply["errorLabels"] = list(self.labels)
        return reply

    def write_error(self, index: int) -> dict[str, Any]:
        """The same of one statement among several."""
        return {"index": index, "code": self.code, "errmsg": str(self), **self.extra}


def failure(error: MainstemError) -> CommandFailed:  # noqa: PLR0911 - a closed union is read case by case
    """An error of ours as MongoDB has it."""
    match error:
        case CommandFailed():
            return error
        case DuplicateKey():
            return CommandFailed(11000, str(error), keyPattern=error.pattern, keyValue=error.values)
        case WriteConflict():
            return CommandFailed(112, str(error), labels=("TransientTransactionError",))
        case NotValid():
            return CommandFailed(121, str(error), errInfo=error.details)
        case Unauthenticated():
            return CommandFailed(18, "Authentication failed.")
        case Denied():
            return CommandFailed(13, str(error))
        case NotFound():
            return CommandFailed(26, str(error))
        case Overloaded(reason="sort_memory"):
            return CommandFailed(292, str(error))
        case Overloaded():
            # Nothing of it happened: drivers try such a write again.
            return CommandFailed(189, str(error), labels=("RetryableWriteError",))
        case OutcomeUnknown():
            return CommandFailed(91, str(error), labels=("RetryableWriteError",))
        case Invalid():
            code = _CODES[error.reason] if error.reason in _CODES else error_code(error)
            labels = ("NonResumableChangeStreamError",) if code == 286 else ()
            return CommandFailed(code, str(error), labels=labels)
        case _:
            return CommandFailed(8, str(error))


def unknown_field(command: str, field: str) -> CommandFailed:
    """An option that the command does not have."""
    return CommandFailed(40415, f"BSON field '{command}.{field}' is an unknown field.")


def wrong_type(command: str, field: str, got: Any, expected: str) -> CommandFailed:
    """An option of another type."""
    return CommandFailed(
        14, f"BSON field '{command}.{field}' is the wrong type '{type(got).__name__}', expected type '{expected}'"
    )
