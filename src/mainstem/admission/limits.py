"""What a batch may be at most, and the errors that say so.

The sizes are decided here for every door alike. How often somebody may come is in `rates`, and what happens while the
tables are behind is in `pressure`.
"""

from dataclasses import dataclass

from mainstem.model.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one batch and of what is remembered of sources."""

    payload_bytes_max: int = 4 * 1024 * 1024
    event_bytes_max: int = 1024 * 1024
    events_max: int = 10_000
    # Durable and not yet in the tables: the disk is not endless.
    backlog_bytes_max: int = 4 * 1024 * 1024 * 1024
    source_length_max: int = 256
    # Names of tables that are kept parsed.
    names_cached_max: int = 8_192

    def __post_init__(self) -> None:
        if min(self.payload_bytes_max, self.event_bytes_max, self.events_max, self.backlog_bytes_max) < 1:
            raise Invalid(f"limits of a batch. expected=positive got={self}")

    def check_payload(self, size_bytes: int) -> None:
        """Refuse a batch that is too large."""
        if size_bytes > self.payload_bytes_max:
            raise TooLarge("payload", "bytes", self.payload_bytes_max, size_bytes, reason="payload_too_large")

    def check_event(self, size_bytes: int) -> None:
        """Refuse a change that is too large."""
        if size_bytes > self.event_bytes_max:
            raise TooLarge("event", "bytes", self.event_bytes_max, size_bytes, reason="event_too_large")

    def check_count(self, count: int) -> None:
        """Refuse a batch without changes, or with too many."""
        if count < 1:
            raise Invalid("batch is empty. expected=at least 1 event got=0")
        if count > self.events_max:
            raise TooLarge("batch", "events", self.events_max, count, reason="payload_too_large")


class TooLarge(Invalid):
    """Send less at once: `size_max` is the most that is taken."""

    def __init__(self, what: str, unit: str, size_max: int, size: int, *, reason: str) -> None:
        super().__init__(f"{what} is too large. expected=at most {size_max} {unit} got={size}", reason=reason)
        self.size_max = size_max


class OutOfSequence(Invalid):
    """The sequence is taken: `sequence_next` is the lowest one above all that are durable."""

    def __init__(self, message: str, *, sequence_next: int) -> None:
        super().__init__(f"{message}. next={sequence_next}", reason="invalid_sequence")
        self.sequence_next = sequence_next
