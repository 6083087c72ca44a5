"""What the CDC door answers: errors as nacks, outcomes as acks. Pure functions of values."""

from mainstem.admission import OutOfSequence, TooLarge
from mainstem.model.errors import Invalid, MainstemError, OutcomeUnknown, Overloaded
from mainstem.wire import cdc

# From here on an ack says `buffered`: durable, with the tables some way behind.
UTILIZATION_BUFFERED = 0.5
# From here on an ack asks the producer to slow down.
UTILIZATION_PACED = 0.8
PACE_MS_MIN = 100
PACE_MS_MAX = 5_000
RETRY_DELAY_MS = 1_000

_REASONS = frozenset(reason.value for reason in cdc.NackReason)


def ack(
    *,
    now_ms: int,
    sequence: int,
    count: int,
    utilization: float,
    correlation_id: str | None,
    batch_id: str | None = None,
    status: cdc.AckStatus | None = None,
) -> bytes:
    """An ack; without a `status` it is `ok` or `buffered`, by how full the buffer is."""
    if status is None:
        status = cdc.AckStatus.BUFFERED if utilization > UTILIZATION_BUFFERED else cdc.AckStatus.OK
    return cdc.encode(
        cdc.Ack(
            timestamp=now_ms,
            sequence_number=sequence,
            status=status,
            correlation_id=correlation_id,
            batch_id=batch_id,
            details=cdc.AckDetails(
                events_processed=count,
                buffer_utilization=utilization,
                suggested_delay_ms=suggested_delay_ms(utilization),
            ),
        )
    )


def suggested_delay_ms(utilization: float) -> int | None:
    """How long a producer should wait: nothing below the threshold, then more the fuller the buffer is."""
    if utilization <= UTILIZATION_PACED:
        return None
    excess = min(1.0, (utilization - UTILIZATION_PACED) / (1.0 - UTILIZATION_PACED))
    return round(PACE_MS_MIN + excess * (PACE_MS_MAX - PACE_MS_MIN))


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
        max_size=error.size_max if isinstance(error, TooLarge) else None,
        next_sequence=error.sequence_next if isinstance(error, OutOfSequence) else None,
    )


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
