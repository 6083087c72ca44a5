"""Marks: what a table says, in every snapshot of ours, of the logs that it holds and of the clocks that it has seen.

Each log has an entry of its own, `mainstem.position.<log>`. A writer carries the entries of other logs forward, so the
newest marked snapshot of a table says everything. Delta keeps the same names as application transactions.
"""

from collections.abc import Mapping
from typing import Any

from mainstem.formats.iceberg.snapshots import ancestry
from mainstem.model.position import UNNAMED, LogId, LogPosition

POSITION_MARK = "mainstem.position"
HLC_MARK = "mainstem.hlc-max"
_PREFIX = POSITION_MARK + "."
# More than fits a signed 64-bit column was not written by us.
_DIGITS_MAX = 19

Marks = Mapping[LogId, LogPosition]


def position_mark(log: LogId) -> str:
    """The name under which a snapshot's summary says how much of a log its table covers."""
    return POSITION_MARK if log == UNNAMED else _PREFIX + log


def positions_of(summary: Mapping[str, Any]) -> dict[LogId, LogPosition]:
    """How much of each log a snapshot covers, by its summary. What is no position is passed over."""
    found: dict[LogId, LogPosition] = {}
    for name, text in summary.items():
        if name == POSITION_MARK:
            log = UNNAMED
        elif name.startswith(_PREFIX):
            log = LogId(name.removeprefix(_PREFIX))
        else:
            continue
        digits = str(text)
        if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX:
            found[log] = LogPosition(int(digits))
    return found


def marks_at(document: Mapping[str, Any], snapshot_id: int | None) -> Marks:
    """How much of each log a snapshot of an Iceberg table covers: as it says itself, or the next of its ancestors that
    says so. Compactions in between say nothing."""
    for snapshot in ancestry(document, snapshot_id):
        if found := positions_of(snapshot.get("summary") or {}):
            return found
    return {}
