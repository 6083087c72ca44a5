"""The journal on Kafka: who owns it, and what is done so that every record of ours is known to count or not.

A group is acknowledged when Kafka has all of its records, at the offsets that follow the last one that we know. Then
no other writer wrote in between, so they count. In any other case (an error, an offset further on, a fatal
producer) what happened is not guessed: everything up to the end is read, a new term is claimed under which nothing of
the old producer counts that is still on its way, and what was read until there is what is in the log.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainstem.formats.segments import is_segment_name
from mainstem.log.companion import Stored
from mainstem.log.disk import Disk, OsDisk
from mainstem.log.kafka import records
from mainstem.log.kafka.broker import Away, Reader, Sender, Trimmed, prepare_topic, trim
from mainstem.log.kafka.hydration import Hydration, StoreOf
from mainstem.log.kafka.port import Fenced
from mainstem.log.kafka.records import Beat, Claim, Mark, Move, Note, Part, Peer, Plan, Reading, Release
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.log.lineage import new_log_id
from mainstem.log.settings import LogSettings
from mainstem.log.wal.outcomes import Outcome
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Invalid, OutcomeUnknown
from mainstem.model.hlc import HlcClock
from mainstem.model.position import Lineage, LogPosition, Span
from mainstem.runtime.clock import Clock

if TYPE_CHECKING:
    from mainstem.log.kafka.writer import KafkaWriter

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_OPENINGS_MAX = 5


class _Marked(NamedTuple):
    """Where a mark is in the partition, what it says, and how many bytes we know of before it."""

    next: LogPosition
    offset: int
    bytes: int


class KafkaJournal:
    """A log's journal. Its methods are called in one thread at a time, see `log/kafka/port`."""

    def __init__(
        self, settings: KafkaLogSettings, store_of: StoreOf = lambda _: None, disk: Disk | None = None
    ) -> None:
        self._settings = settings
        self._store_of = store_of
        self._disk = disk or OsDisk()
        self._reader: Reader
        self._sender: Sender
        # A producer that is connected, and has not written yet.
        self._ready: Sender | None = None
        self._reading: Reading
        self._hydration: Hydration | None = None
        self._segments_folder: Path
        # Claims of other terms than these are of others.
        self._terms: set[bytes] = set()
        self._lineage = Lineage()
        self._marks: deque[_Marked] = deque()
        self._bytes = 0
        self._wrote_s = 0.0
        # Who we are to those who stand by, where our claim is, and when they were told.
        self._by = f"{socket.gethostname()}:{os.getpid()}"
        self.peer: Peer | None = None
        self._claimed = -1
        self._told_s = 0.0
        self._planned: dict[LogPosition, LogPosition] = {}
        # Why the log is not ours any more, and the first position that is not.
        self._lost: str | None = None
        self._lost_at = LogPosition(0)
        # Also before it is opened.
        self._is_closed = True
        self._has_to_end = threading.Event()
        self._opened = threading.Event()
        self._keeping: threading.Thread | None = None
        self._is_away = False
        self.on_away: Callable[[str], None] = lambda _: None
        self.on_back: Callable[[], None] = lambda: None

    # Opening

    @property
    def planned(self) -> Mapping[LogPosition, LogPosition]:
        return self._planned

    def get_ready(self) -> None:
        """Check the topic and connect the first producer: Kafka takes half a second to number it, for which a takeover
        need not wait. Where Kafka is away, `open` does both.
        """
        with suppress(Away):
            prepare_topic(self._settings, records.RECORD_BYTES_MAX)
            self._ready = self._new_sender()

    def _new_sender(self) -> Sender:
        term = secrets.token_bytes(16)
        self._terms.add(term)
        return Sender(self._settings, term, records.RECORD_BYTES_MAX)

    def open(self, settings: LogSettings) -> Lineage:
        if self._ready is None:
            prepare_topic(self._settings, records.RECORD_BYTES_MAX)
        self._reader = Reader(self._settings)
        claimed = self._claim()
        # What is read may take longer than a lease.
        self._keeping = threading.Thread(target=self._keep_alive, name="mainstem-beat", daemon=True)
        self._keeping.start()
        try:
            return self._read_all(settings, claimed)
        except BaseException:
            self.close()
            raise

    def _read_all(self, settings: LogSettings, claimed: int) -> Lineage:
        self._segments_folder = settings.segments_folder
        self._hydration = Hydration(settings, self._disk, self._settings.topic)
        for attempt in range(_OPENINGS_MAX):
            low, _ = self._reader.bounds()
            self._reading = Reading(self._settings.topic, low)
            self._marks.clear()
            self._bytes = 0
            self._hydration.begin()
            try:
                self._reader.read(low, claimed + 1, self._take)
                break
            except Trimmed:
                # The owner before us deleted records meanwhile.
                if attempt == _OPENINGS_MAX - 1:
                    raise
        self._check_owner()
        if self._reading.moving is not None:
            raise Invalid(
                f"a log is being moved into {self._settings.topic}, and not all of it is there. "
                "Run `mainstem migrate` again where it came from, and start on it then."
            )
        found = self._reading.lineage
        self._lineage = found or Lineage((Span(new_log_id(), LogPosition(1)),))
        self._hydration.finish(self._reading, self._lineage, self._store_of(self._lineage))
        self._hydration = None
        self._planned = dict(self._reading.plans)
        logger.info(
            "the log %s on Kafka ends at %d. records=%d..%d not counted=%d",
            self._lineage.log,
            self._reading.next - 1,
            low,
            claimed,
            self._reading.ignored,
        )
        return self._lineage

    def _keep_alive(self) -> None:
        with suppress(OutcomeUnknown):
            while not self._opened.wait(self._settings.beat_s):
                self._sender.send([self._beat()], self._opened.is_set)

    def begin(self) -> None:
        """The writer's thread begins: from here on all is known that is in the partition, and a file begins."""
        self._stop_keeping_alive()
        self._catch_up()
        self.mark()

    def _stop_keeping_alive(self) -> None:
        self._opened.set()
        if self._keeping is not None:
            self._keeping.join()
            self._keeping = None

    def writer(
        self, settings: LogSettings, disk: Disk, clock: Clock, hlc: HlcClock, deliver: Callable[[Outcome], None]
    ) -> "KafkaWriter":
        from mainstem.log.kafka.writer import KafkaWriter

        return KafkaWriter(self, settings, disk, clock, hlc, deliver)

    def end(self) -> None:
        """Have everything that waits for Kafka give up soon. Any thread may call this."""
        self._has_to_end.set()

    def close(self) -> None:
        """Let go of the partition, so that another need not wait for the lease."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_keeping_alive()
        self._has_to_end.set()
        if self._lost is None:
            try:
                self._sender.send([records.encode_note(Release())], self._has_to_end.is_set)
            except OutcomeUnknown:
                logger.warning("Kafka could not be told that the log is let go")
        self._sender.close()
        self._reader.close()

    # Writing

    def append(self, headers: Sequence[BatchHeader], values: Sequence[bytes]) -> int:
        """Put a group's frames into the log; how many of them are in it, from the first on.

        Returns once that is known, however long it takes. Raises `Fenced` where none is and none will be, and
        `OutcomeUnknown` where it has to end before it is known.
        """
        self._check_owner()
        if time.monotonic() - self._told_s >= self._settings.lease_s:
            # No beat came in between: who begins to stand by now has to learn from this who leads.
            values = [*values, self._beat()]
        try:
            if self._put(values):
                self._reading.next = LogPosition(headers[-1].last + 1)
                return len(headers)
        except Fenced:
            # What got in before the other's claim counts.
            if counted := sum(header.last < self._lost_at for header in headers):
                return counted
            raise
        return sum(header.last < self._reading.next for header in headers)

    def mark(self) -> None:
        """A file of frames begins with the next position."""
        self._note(Mark(self._reading.next, records.spans_of(self._lineage)))

    def rename(self, lineage: Lineage) -> None:
        # Before the log says so: who opens it under that name looks for its segments there, and nowhere else.
        if (kept := self._store_of(lineage)) is not None:
            for path in sorted(self._segments_folder.iterdir()):
                if is_segment_name(path.name):
                    kept.put(path)
        self._lineage = lineage
        self.mark()

    def plan(self, first: LogPosition, last: LogPosition) -> None:
        self._note(Plan(first, last))
        self._planned[first] = last

    def beat(self) -> None:
        if time.monotonic() - self._wrote_s >= self._settings.beat_s:
            self._note(Beat(self._claimed, self._by, self.peer))
            self._told_s = time.monotonic()

    def _beat(self) -> bytes:
        self._told_s = time.monotonic()
        return records.encode_note(Beat(self._claimed, self._by, self.peer))

    @property
    def beat_s(self) -> float:
        """How often `beat` is to be called."""
        return self._settings.beat_s

    def is_worth_trimming(self, done: LogPosition) -> bool:
        return self._before(done) is not None

    def _before(self, done: LogPosition) -> _Marked | None:
        """The last mark before which nothing is needed, if enough is before it."""
        marks = list(self._marks)
        found = next((mark for mark in reversed(marks) if mark.next <= done + 1), None)
        if found is None or found.bytes - marks[0].bytes < self._settings.trim_bytes:
            return None
        return found

    def trim(self, stored: Stored, done: LogPosition) -> None:
        before = self._before(done)
        if before is None:
            return
        data = stored.data or b""
        parts = records.parts_of(data)
        # From the start again where a new term had to be claimed in between.
        while not all(
            self._note(Part(stored.position, stored.hlc, number, len(parts), part)) for number, part in enumerate(parts)
        ):
            pass
        trim(self._settings, before.offset)
        while self._marks[0].offset < before.offset:
            self._marks.popleft()
        for first, last in list(self._planned.items()):
            if last < before.next:
                del self._planned[first]

    def _note(self, note: Note) -> bool:
        """Write a note until it counts. False where a new term was begun for it."""
        value, at_once = records.encode_note(note), True
        while True:
            offset = self._reading.offset
            if self._put([value]):
                self._reading.offset = offset
                self._take(offset, self._sender.term, value)
                return at_once
            at_once = False

    def _put(self, values: Sequence[bytes]) -> bool:
        """Write records. True where all of them count; else everything is known again, and in `self._reading`."""
        self._check_owner()
        expected = self._reading.offset
        offsets = self._sender.send(values, self._has_to_end.is_set, self._tell_away)
        self._wrote_s = time.monotonic()
        if offsets is not None and offsets == list(range(expected, expected + len(values))):
            self._reading.offset = expected + len(values)
            self._bytes += sum(map(len, values))
            self._tell_back()
            return True
        self._settle()
        self._tell_back()
        return False

    def _tell_away(self, why: str) -> None:
        self._is_away = True
        self.on_away(why)

    def _tell_back(self) -> None:
        if self._is_away:
            self._is_away = False
            self.on_back()

    # Finding out

    def _settle(self) -> None:
        """Read what is in the partition, then make sure that nothing of ours comes later."""
        while True:
            try:
                self._catch_up()
                claimed = self._claim()
                self._reader.read(self._reading.offset, claimed + 1, self._take)
                self._check_owner()
            except Away as error:
                self._tell_away(str(error))
                if self._has_to_end.wait(_RETRY_S):
                    raise OutcomeUnknown(f"the log ends before Kafka answered. got={error}") from error
            else:
                logger.warning("a new term of the log began, after what Kafka did is known again")
                return

    def _catch_up(self) -> None:
        """Read to the end."""
        _, end = self._reader.bounds()
        self._reader.read(self._reading.offset, end, self._take)
        self._check_owner()

    def _claim(self) -> int:
        """Begin a term of ours; its offset. Everything before that is ours to read, and nothing older counts after."""
        if not self._is_closed:
            self._sender.close()
        value = records.encode_note(Claim(self._by, self.peer))
        self._sender, self._ready = self._ready or self._new_sender(), None
        self._is_closed = False
        offsets = self._sender.send([value], self._has_to_end.is_set, self._tell_away)
        if offsets is None or offsets[0] < 0:
            raise Away("a term could not be begun")
        self._wrote_s = self._told_s = time.monotonic()
        self._claimed = offsets[0]
        return offsets[0]

    def _check_owner(self) -> None:
        if self._lost is not None:
            raise Fenced(self._lost)

    def _take(self, offset: int, key: bytes, value: bytes) -> None:
        said = self._reading.take(offset, key, value)
        self._bytes += len(value)
        if isinstance(said, Claim) and self._hydration is None and key not in self._terms:
            if self._lost is None:
                self._lost, self._lost_at = f"another process owns the log. by={said.by}", self._reading.next
        elif isinstance(said, Move):
            self._marks.clear()
        elif isinstance(said, Mark):
            self._marks.append(_Marked(LogPosition(said.next), offset, self._bytes))
        if self._hydration is not None:
            self._hydration.take(said, value)
