"""Cursors as clients hold them: a position, and a mark of the log that issued it.

A cursor is a number below 2^63 that only grows, as the protocol has it. Its lower bits are the position. Above them is
the place of the span in the log's lineage, so that cursors grow from span to span, and a hash of the span's identity,
so that another log's cursor is told from ours: a new log takes an identity with a hash that no log has which its tables
know of. Positions that were issued before logs had identities stand for themselves: yesterday's cursors can be read.

    bit 62..58  the span's place, 31 for all from there on
    bit 57..46  the hash of its identity, never 0; all of this is 0 for a log without one
    bit 45..0   the position
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b

from mainstem.model.errors import Invalid
from mainstem.model.position import NOWHERE, UNNAMED, Lineage, LogId, LogPosition

POSITION_BITS = 46
HASH_BITS = 12
_PLACE_MAX = 31
_POSITION_MASK = (1 << POSITION_BITS) - 1


class Cursors:
    """Cursors of one log, whose lineage is asked for each time: it may take a new identity."""

    def __init__(self, lineage: Callable[[], Lineage] = Lineage) -> None:
        self._lineage = lineage

    def encode(self, position: LogPosition) -> int:
        """The cursor for a position of ours."""
        if position == NOWHERE:
            return 0
        spans = self._lineage().spans
        place = max((index for index, span in enumerate(spans) if span.first <= position), default=0)
        return _tag(place, spans[place].log) << POSITION_BITS | position

    def decode(self, cursor: int) -> LogPosition:
        """The position that a cursor stands for. Raises Invalid (`cursor_expired`) for one of another log, or of a part
        of ours that was lost: a client that has it must begin again."""
        if cursor == 0:
            return NOWHERE
        tag, position = cursor >> POSITION_BITS, LogPosition(cursor & _POSITION_MASK)
        lineage = self._lineage()
        for place, span in enumerate(lineage.spans):
            if _tag(place, span.log) == tag and lineage.covered({span.log: position}) == position >= span.first:
                return position
        raise Invalid(f"the cursor is not of this log. got={cursor}", reason="cursor_expired")

    @property
    def lineage(self) -> Lineage:
        """The lineage that positions are of, as it is now."""
        return self._lineage()

    def is_ours(self, log: LogId, position: LogPosition) -> bool:
        """Whether a position that was kept beside its log's identity is one of ours."""
        return position == NOWHERE or self._lineage().covered({log: position}) == position

    def log_at(self, position: LogPosition) -> LogId:
        """The identity to keep beside a position."""
        return self._lineage().log_at(position)


def is_told_apart(log: LogId, others: Iterable[LogId]) -> bool:
    """Whether no cursor of the others passes for one of this log: one in 4,095 has the same hash."""
    return all(_hash(log) != _hash(other) for other in others if other not in (log, UNNAMED))


@lru_cache(256)
def _tag(place: int, log: LogId) -> int:
    return 0 if log == UNNAMED else min(place, _PLACE_MAX) << HASH_BITS | _hash(log)


def _hash(log: LogId) -> int:
    digest = int.from_bytes(blake2b(log.encode(), digest_size=8).digest(), "big")
    return digest % ((1 << HASH_BITS) - 1) + 1
