"""What the log says of itself and of a batch: values only."""

from typing import NamedTuple

import msgspec

from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition


class Appended(NamedTuple):
    """Where a durable batch stands: its positions, and the clock of its first change."""

    first: LogPosition
    last: LogPosition
    hlc_first: Hlc


class LogStats(msgspec.Struct, frozen=True, kw_only=True):
    """The log at a glance."""

    durable: LogPosition
    sealed: LogPosition
    pending_bytes: int
    unsealed_batches: int
    unsealed_changes: int
    unsealed_bytes: int
    # When the oldest and newest batch that is not sealed arrived.
    unsealed_oldest_ms: int | None
    unsealed_newest_ms: int | None
    utilization: float
    segments: int
    segment_bytes: int
    sealing: bool
    last_seal_ms: int | None
    # Why appends are refused right now, and the last thing that went wrong while sealing or storing.
    refusing: str | None
    last_error: str | None
    last_error_ms: int | None
