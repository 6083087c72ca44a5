"""What the CDC door answers: errors as nacks, outcomes as acks. Pure functions of values."""

from mainstem.admission import Meter, OutOfSequence, TooLarge
from mainstem.doors.cdc.ports import Room
from mainstem.model.errors import Invalid, MainstemError, OutcomeUnknown, Overloaded
from mainstem.wire import cdc
from mainstem.wire.cdc_packing import TooMuch

RETRY_DELAY_MS = 1_000
BREAKER_CLOSED = "closed"

_REASONS = frozenset(reason.value for reason in cdc.NackReason)


def ack(
    *,
    now_ms: int,
    sequence: int,
    count: int,
    room: Room,
    meter: Meter | None = None,
    correlation_id: str | None = None,
    batch_id: str | None = None,
    status: cdc.AckStatus | None = None,
    persisted_path: str | None = None,
) -> cdc.Ack:
    """An ack; without a `status` it says how the tables are: `ok`, `buffered`, or `fallback` if none can be written."""
    delay_ms = room.delay_ms
    if meter is not None:
        delay_ms = max(delay_ms or 0, meter.delay_ms or 0) or None
    return cdc.Ack(
        timestamp=now_ms,
        sequence_number=sequence,
        status=status or _status(room),
        correlation_id=correlation_id,
        batch_id=batch_id,
        details=cdc.AckDetails(
            events_processed=count,
            buffer_utilization=room.utilization,
            time_until_flush=room.until_flush_ms,
            persisted_path=persisted_path,
            remaining_tokens=None if meter is None else meter.tokens,
            bucket_capacity=None if meter is None else meter.capacity,
            suggested_delay_ms=delay_ms,
            circuit_breaker_state=room.breaker,
        ),
        rate_limit=None if meter is None else _rate_limit(meter, now_ms),
    )


def _status(room: Room) -> cdc.AckStatus:
    if room.breaker is not None and room.breaker != BREAKER_CLOSED:
        return cdc.AckStatus.FALLBACK
    return cdc.AckStatus.BUFFERED if room.is_behind else cdc.AckStatus.OK


def _rate_limit(meter: Meter, now_ms: int) -> cdc.RateLimit:
    view = meter.view
    return cdc.RateLimit(limit=view.limit, remaining=view.remaining, reset_at=now_ms + round(view.reset_s * 1000))


def nack(error: Exception, *, now_ms: int, sequence: int, correlation_id: str | None) -> cdc.Nack:
    """What a refused producer is told: what is wrong, and whether and when to come back."""
    reason = getattr(error, "reason", None)
    retry_ms = retry_delay_ms(error)
    fallback = cdc.NackReason.INVALID_FORMAT if retry_ms is None else cdc.NackReason.INTERNAL_ERROR
    return cdc.Nack(
        timestamp=now_ms,
        sequence_number=sequence,
        reason=cdc.NackReason(reason) if reason in _REASONS else fallback,
        error_message=str(error) if isinstance(error, MainstemError) else "the server failed; it is logged there",
        should_retry=retry_ms is not None,
        correlation_id=correlation_id,
        retry_delay_ms=retry_ms,
        max_size=_max_size(error),
        next_sequence=error.sequence_next if isinstance(error, OutOfSequence) else None,
    )


def is_oversized(error: Exception) -> bool:
    """Whether a message was refused for its size."""
    return isinstance(error, TooLarge | TooMuch)


def _max_size(error: Exception) -> int | None:
    if isinstance(error, TooLarge):
        return error.size_max
    return error.bytes_max if isinstance(error, TooMuch) else None


def retry_delay_ms(error: Exception) -> int | None:
    """When the same message may succeed; None if never."""
    if isinstance(error, Overloaded):
        return max(1, round(error.retry_after_s * 1000))
    # A retry is safe even where the outcome is unknown, or where we failed: a batch that did get in is a duplicate.
    if isinstance(error, OutcomeUnknown) or not isinstance(error, MainstemError):
        return RETRY_DELAY_MS
    return None


def stopping() -> Overloaded:
    """The server is about to stop; the next one, or this one restarted, takes the batch."""
    return Overloaded("the server is shutting down", retry_after_s=RETRY_DELAY_MS / 1000, reason="shutting_down")


def missing_source() -> Invalid:
    """Nothing says whose message this is."""
    return Invalid("source. expected=sourceDoId in the message, a connect before, or an X-Client-ID header got=none")
