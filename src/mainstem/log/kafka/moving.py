"""The topic's side of a move (`log/leaving`): what is in the topic, and records put there so that all of them count.

A move is one term from its `Move` to its `Moved`. A gateway that claims the topic in between ends it: nothing of ours
counts after that, and the next run begins anew.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum

from mainstem.log.kafka import records
from mainstem.log.kafka.broker import Away, Reader, Sender, has_topic, prepare_topic
from mainstem.log.kafka.records import Beat, Claim, Move, Moved, Note, Reading, Release
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model.errors import Conflict, Corrupt
from mainstem.model.position import Lineage, LogPosition

_GROUP_BYTES = 4 << 20
_GROUP_RECORDS = 1_000


class Found(Enum):
    """What a topic has, as seen by the one who wants to move a log there."""

    NOTHING = "nothing"
    # A part of ours, by a run that did not come to its end; no gateway has served it.
    A_PART = "a part"
    OURS = "ours"
    OTHERS = "another log"


class Moving:
    """A topic that a log is moved to. `lineage` is the log's, as it goes on there. Blocks."""

    def __init__(self, settings: KafkaLogSettings, lineage: Lineage, on_away: Callable[[str], None]) -> None:
        self._settings = settings
        self._lineage = lineage
        self._on_away = on_away
        self._reader = Reader(settings)
        self._sender: Sender | None = None
        self._reading = Reading(settings.topic, 0)
        # The offset that our next record gets, and when the last one was written.
        self._next = 0
        self._wrote_s = 0.0

    def close(self) -> None:
        """Let go of it."""
        if self._sender is not None:
            self._sender.close()
        self._reader.close()

    def look(self) -> Found:
        """What is there. Nothing is changed, and an owner is not disturbed."""
        if not has_topic(self._settings):
            return Found.NOTHING
        self._read(*self._reader.bounds())
        return self._found()

    def _read(self, low: int, end: int) -> None:
        # To its end: what is another's log on the way may have been taken back since.
        self._reading = Reading(self._settings.topic, low)
        self._reader.read(low, end, self._reading.take)

    def _found(self) -> Found:
        lineage, moving = self._reading.lineage, self._reading.moving
        if lineage is None:
            return Found.NOTHING
        if moving is not None:
            # From the same folder, or from a copy of it: under whichever name it was to go on.
            return Found.A_PART if lineage.spans[0] == self._lineage.spans[0] else Found.OTHERS
        return Found.OURS if self._lineage.spans[-1] in lineage.spans else Found.OTHERS

    def prepare(self) -> None:
        """Make the topic where it is not there. Raises Invalid where it would not keep what is in it."""
        prepare_topic(self._settings, records.RECORD_BYTES_MAX)

    def claim(self, expected: tuple[Found, ...]) -> None:
        """Begin a term. Raises Conflict where something else is there by now, and leaves that alone."""
        self._sender = Sender(self._settings, secrets.token_bytes(16), records.RECORD_BYTES_MAX)
        claimed = self._sender.send([records.encode_note(Claim("mainstem migrate"))], _never, self._on_away)
        if claimed is None:
            raise Away("a term could not be begun")
        self._next = claimed[0] + 1
        low, _ = self._reader.bounds()
        self._read(low, self._next)
        if (found := self._found()) not in expected:
            self.release()
            raise Conflict(f"topic {self._settings.topic} has {found.value} by now. expected={expected[0].value}")

    def put(self, values: Iterable[bytes], on_put: Callable[[int], None]) -> int:
        """Write records of which all count; how many. `on_put` hears of the bytes, portion by portion."""
        count = 0
        for group in _groups(values):
            self._send(group)
            count += len(group)
            on_put(sum(map(len, group)))
        return count

    def _send(self, group: list[bytes]) -> None:
        assert self._sender is not None
        offsets = self._sender.send(group, _never, self._on_away)
        self._wrote_s = time.monotonic()
        if offsets != list(range(self._next, self._next + len(group))):
            raise Conflict(
                f"somebody else wrote to topic {self._settings.topic} meanwhile, or Kafka refused a record. Stop every "
                "gateway that is configured for it, and run this again: it begins anew."
            )
        self._next += len(group)

    def verify(self, values: Iterable[bytes], count: int, last: LogPosition, on_read: Callable[[int], None]) -> None:
        """Read the records that were put, all of them, and compare each with what it should be, byte for byte."""
        expected = iter(values)
        first = self._next - count

        def take(offset: int, key: bytes, value: bytes) -> None:
            if value != next(expected, None) or self._reading.take(offset, key, value) is None:
                raise Corrupt("a record is not as it was written", place=f"{self._settings.topic}:{offset}")
            on_read(len(value))
            # No gateway may take the log for one without an owner.
            if time.monotonic() - self._wrote_s >= self._settings.beat_s:
                self._send([records.encode_note(Beat())])

        self._reader.read(first, first + count, take)
        if next(expected, None) is not None or self._reading.next != last + 1:
            raise Corrupt(f"records are missing. expected={last + 1} got={self._reading.next}", place="the end")

    def finish(self, last: LogPosition) -> None:
        """Say that all of it is there: from here on it is the log."""
        try:
            self._note(Moved(last + 1))
        except Conflict:
            # A record of a term that had ended may have come before ours. That record does not count, and ours does.
            if self.look() is not Found.OURS:
                raise
        self.release()

    def void(self, move: Move) -> None:
        """Take a log back that nothing was added to since it was seen. Raises Conflict where something was."""
        self._check_as_moved(move)
        self.claim((Found.OURS,))
        try:
            self._check_as_moved(move)
            self._note(move)
        finally:
            self.release()

    def _check_as_moved(self, move: Move) -> None:
        if not self._reading.is_as_moved(move):
            raise Conflict(
                f"the log has taken changes in topic {self._settings.topic}, and goes on there. "
                f"expected={move.last} got={self._reading.next - 1}"
            )

    def _note(self, note: Note) -> None:
        self._send([records.encode_note(note)])

    def release(self) -> None:
        """End the term. A claim that came meanwhile has ended it already, which undoes nothing that counted before."""
        with suppress(Conflict):
            self._note(Release())


def _groups(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for value in values:
        group.append(value)
        size += len(value)
        if size >= _GROUP_BYTES or len(group) >= _GROUP_RECORDS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _never() -> bool:
    return False


def move_of(spans: list[tuple[str, int]], last: int) -> Move:
    """The note that leaves a topic without a log, after it was taken back."""
    return Move(spans, last + 1, last)
