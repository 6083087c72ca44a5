"""Frozen values that every other package speaks in. Imports nothing of ours."""

from mainstem.model.batch import Admitted, Batch, Encoding
from mainstem.model.change import Change, Operation, SourceId
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
from mainstem.model.hlc import Hlc, HlcClock
from mainstem.model.merge import Row, Stamp, join, merge, row_of
from mainstem.model.names import DEFAULT_NAMESPACE, TableName, parse_table_name
from mainstem.model.position import NOWHERE, UNNAMED, Lineage, LogId, LogPosition, Span

__all__ = [
    "DEFAULT_NAMESPACE",
    "NOWHERE",
    "UNNAMED",
    "Admitted",
    "Batch",
    "Change",
    "Conflict",
    "Corrupt",
    "Denied",
    "Encoding",
    "Hlc",
    "HlcClock",
    "Invalid",
    "Lineage",
    "LogId",
    "LogPosition",
    "MainstemError",
    "NotFound",
    "Operation",
    "OutcomeUnknown",
    "Overloaded",
    "Row",
    "SourceId",
    "Span",
    "Stamp",
    "TableName",
    "join",
    "merge",
    "parse_table_name",
    "row_of",
]
