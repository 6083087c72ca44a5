"""What the CDC door needs from the rest, as small protocols, and its settings. The app wires them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from mainstem.model.change import SourceId
from mainstem.model.position import LogPosition
from mainstem.wire.cdc import ServerState, Status

if TYPE_CHECKING:
    from mainstem.doors.cdc.session import CdcSession

# Larger than any payload that is taken, so that a batch that is too large gets an answer; beyond it the socket is
# closed with 1009. A compressed frame may not hold more either.
FRAME_BYTES_MAX = 16 * 1024 * 1024
# What the server itself takes (uvicorn: ws_max_size): more, so that each door refuses in its own words.
SERVER_FRAME_BYTES_MAX = 2 * FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcSettings:
    """Bounds of the door and of one connection."""

    connections_max: int = 1_000
    sources_per_connection_max: int = 64
    # Answers that may be outstanding on a connection before it stops reading.
    replies_max: int = 256
    replies_bytes_max: int = 16 * 1024 * 1024
    flushes_max: int = 4
    flush_timeout_s: float = 120.0
    # Refusals in a row after which each further one makes the producer wait: one that does not listen is slowed down.
    refusals_free_max: int = 128
    refusal_pause_s: float = 0.05
    # How long beyond its retry delay a batch that was refused for now is waited for before those behind it are taken.
    hold_s_max: float = 5.0


class BufferView(msgspec.Struct, frozen=True, kw_only=True):
    """What is durable and not in the tables yet, as the log and the coverage know it. Times in milliseconds."""

    state: ServerState = ServerState.IDLE
    batch_count: int = 0
    event_count: int = 0
    size_bytes: int = 0
    # Of what may wait there: 0.0 to 1.0.
    utilization: float = 0.0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    last_flush_ms: int | None = None
    next_flush_ms: int | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much room there is for more, as an ack tells it."""

    utilization: float = 0.0
    is_behind: bool = False
    delay_ms: int | None = None
    # Of the breaker around the commits to the tables: closed, open or half-open. None where nothing is known.
    breaker: str | None = None
    until_flush_ms: int | None = None


class StatusSource(Protocol):
    """Tells how full the buffer is."""

    def breaker(self) -> str | None:
        """The state of the breaker around the commits to the tables. Asked for every ack."""

    def persisted_path(self) -> str | None:
        """Where the tables are."""

    def utilization(self) -> float:
        """0.0 to 1.0. Asked for every ack, so it must be cheap."""

    def view(self) -> BufferView:
        """Everything that a status message says."""


class Persisted(Protocol):
    """The position up to which every table covers the log."""

    @property
    def watermark(self) -> LogPosition: ...

    def on_advance(self, listener: Callable[[LogPosition], None], /) -> Callable[[], None]:
        """Call `listener` on the event loop whenever the watermark moved; the answer takes it off again."""


class Flusher(Protocol):
    """Brings everything that is durable now into the tables."""

    async def flush(self, timeout_s: float, /) -> object:
        """Ends when the tables cover it, and the watermark says so; raises Overloaded where that takes too long."""


class Host(Protocol):
    """The door, as one of its connections sees it."""

    def follow(self, session: "CdcSession", source: SourceId) -> None:
        """The session wants to hear what becomes of a source's batches."""

    def unfollow(self, session: "CdcSession", source: SourceId) -> None:
        """It no longer does."""

    def settle(self, source: SourceId) -> None:
        """Take the watermark into account for a source."""

    def followers(self, source: SourceId) -> int:
        """How many connections send for a source."""

    def room(self) -> Room:
        """How much room there is."""

    def persisted_path(self) -> str | None:
        """Where the tables are."""

    def status(self) -> Status:
        """A status message, as of now."""


@dataclass(slots=True)
class DoorStats:
    """Counters since the start, for metrics."""

    connections_opened: int = 0
    connections_refused: int = 0
    batches: int = 0
    changes: int = 0
    duplicates: int = 0
    nacks: Counter[str] = field(default_factory=Counter)
