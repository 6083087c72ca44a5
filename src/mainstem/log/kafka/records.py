"""What the records of the log's partition say, read in order. A codec and a state machine only: no I/O.

The key of every record is its writer's term: 16 random bytes. The value is a frame of one batch, as in files of frames
(`log/frames`), or a note: `MSN1` and a MessagePack map.

What counts is decided by the order in the partition alone, so that everybody who reads it comes to the same result:

- A `Claim` begins a term. Records of any other term that come after it do not count: a writer that was paused, or whose
  request was on its way, cannot append behind the back of the one that claimed the log after it.
- A frame counts if it begins where the last one that counted ended. What is left of a group of which the beginning did
  not get in, does not.
- A log that was in a folder before stands between a `Move` and a `Moved` (`log/kafka/moving`). A `Move` begins anew:
  what stands before it is void. Until the `Moved` is there, there is no log.

So a writer knows that its record counts when it has its offset, and knows every record before that.
"""

from typing import NamedTuple

import msgspec

from mainstem.log import frames
from mainstem.model.errors import Corrupt
from mainstem.model.position import Lineage, LogId, LogPosition, Span

NOTE = b"MSN1"
# Of a stored companion in one record.
PART_BYTES_MAX = 16 << 20
# What a topic must let pass: the largest frame, with what Kafka puts around it.
RECORD_BYTES_MAX = frames.BODY_BYTES_MAX + (1 << 20)


class Peer(msgspec.Struct, frozen=True):
    """Where an owner takes the connections that others pass on to it, "host:port", and what they say to be let in."""

    at: str
    secret: bytes


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """A term begins. `by` says for people who it is."""

    by: str
    peer: Peer | None = None


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """A file of frames begins here: what has to be known to read the partition from this record on."""

    next: int
    spans: list[tuple[str, int]]


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """These positions are one segment."""

    first: int
    last: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """A part of the companion as of a position, with the log's last clock."""

    position: int
    hlc: int
    number: int
    of: int
    data: bytes


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The owner lives. `claim` is the offset of its claim: of two owners that of the higher one is the newer."""

    claim: int = -1
    by: str = ""
    peer: Peer | None = None


class Release(msgspec.Struct, frozen=True, tag="release"):
    """The owner ended of its own accord: the next one need not wait."""


class Move(msgspec.Struct, frozen=True, tag="move"):
    """A log of a folder comes here, from this position on up to `last`. `spans` is its lineage as it goes on."""

    spans: list[tuple[str, int]]
    next: int
    last: int


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """A part of a segment's file, of a log that was moved. A segment counts as a frame does, with its last piece."""

    first: int
    last: int
    number: int
    of: int
    data: bytes


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """All of a log that was moved is here."""

    next: int


Note = Claim | Mark | Plan | Part | Beat | Release | Move | Piece | Moved


class Kept(NamedTuple):
    """A companion that was put into the log."""

    position: LogPosition
    hlc: int
    data: bytes


def encode_note(note: Note) -> bytes:
    """The value of a note's record."""
    return NOTE + msgspec.msgpack.encode(note)


def decode_note(value: bytes, place: str) -> Note:
    """What a note says."""
    try:
        note: Note = msgspec.msgpack.decode(value[len(NOTE) :], type=Note)
    except msgspec.DecodeError as error:
        raise Corrupt(f"note in the log cannot be read. got={error}", place=place) from error
    return note


def spans_of(lineage: Lineage) -> list[tuple[str, int]]:
    """A lineage as marks have it."""
    return [(span.log, span.first) for span in lineage.spans]


def lineage_of(spans: list[tuple[str, int]]) -> Lineage:
    """The lineage that a mark has."""
    return Lineage(tuple(Span(LogId(log), LogPosition(first)) for log, first in spans))


def parts_of(data: bytes) -> list[bytes]:
    """Data in portions that one record can take each; at least one."""
    return [data[start : start + PART_BYTES_MAX] for start in range(0, len(data), PART_BYTES_MAX)] or [b""]


class Reading:
    """A partition as far as it was read."""

    def __init__(self, topic: str, first_offset: int) -> None:
        self._topic = topic
        # Records before were deleted: the first one must be a mark.
        self._is_trimmed = first_offset > 0
        # The offset that the next record has.
        self.offset = first_offset
        self.term = b""
        self.by = ""
        self.next = LogPosition(1)
        self.lineage: Lineage | None = None
        # First positions to last ones.
        self.plans: dict[LogPosition, LogPosition] = {}
        self.kept: Kept | None = None
        self.kept_offset = -1
        self._parts: list[Part] = []
        self._parts_offset = -1
        # The log that is put in here, and is not all here yet; and the segment of it whose pieces come.
        self.moving: Move | None = None
        self._piece: Piece | None = None
        # Whether the last owner let go.
        self.is_released = False
        self.ignored = 0

    def take(self, offset: int, key: bytes, value: bytes) -> frames.Frame | Note | None:
        """The next record: what it says, or None where it does not count."""
        place = f"{self._topic}:{offset}"
        if offset != self.offset:
            raise Corrupt(f"records are missing. expected={self.offset} got={offset}", place=place)
        self.offset = offset + 1
        if value.startswith(NOTE):
            return self._take_note(key, decode_note(value, place), place)
        if self._is_trimmed and not self.term:
            raise Corrupt("the log does not begin with a mark: its first records are missing", place=place)
        frame = frames.decode(value, 0, place)
        if isinstance(frame, frames.NeedMore) or frame.end != len(value):
            raise Corrupt(f"record is not one frame. got={len(value)} bytes", place=place)
        if key != self.term or frame.header.first != self.next:
            self.ignored += 1
            return None
        self.next = LogPosition(frame.header.last + 1)
        return frame

    def _take_note(self, key: bytes, note: Note, place: str) -> Note | None:
        if self._is_trimmed and not self.term:
            if not isinstance(note, Mark):
                raise Corrupt("the log does not begin with a mark: its first records are missing", place=place)
            self.term, self.next = key, LogPosition(note.next)
        if isinstance(note, Claim):
            self.term, self.by, self.is_released = key, note.by, False
            self._parts = []
            return note
        if key != self.term:
            self.ignored += 1
            return None
        if isinstance(note, Mark):
            self._take_mark(note, place)
        elif isinstance(note, Plan):
            self.plans[LogPosition(note.first)] = LogPosition(note.last)
        elif isinstance(note, Part):
            self._take_part(note)
        elif isinstance(note, Release):
            self.is_released = True
        elif isinstance(note, Move):
            self._take_move(note, place)
        elif isinstance(note, Piece):
            self._take_piece(note, place)
        elif isinstance(note, Moved):
            self._take_moved(note, place)
        return note

    def _take_mark(self, mark: Mark, place: str) -> None:
        if mark.next != self.next:
            raise Corrupt(f"mark. expected={self.next} got={mark.next}", place=place)
        self.lineage = lineage_of(mark.spans)

    def _take_move(self, move: Move, place: str) -> None:
        if self.moving is None and self.lineage is not None and not self.is_as_moved(move):
            raise Corrupt("a log was moved to where another one is", place=place)
        self.moving, self.next, self.lineage = move, LogPosition(move.next), lineage_of(move.spans)
        self.plans, self.kept, self.kept_offset, self._parts, self._piece = {}, None, -1, [], None

    def is_as_moved(self, move: Move) -> bool:
        """Whether there is nothing in here but what this brought."""
        spans = () if self.lineage is None else self.lineage.spans
        return self.next == move.last + 1 and spans[: len(move.spans)] == lineage_of(move.spans).spans

    def _take_piece(self, piece: Piece, place: str) -> None:
        begun = self._piece
        if begun is None:
            is_next = piece.number == 0 and piece.first == self.next
        else:
            is_next = (piece.first, piece.last, piece.number) == (begun.first, begun.last, begun.number + 1)
        if self.moving is None or not is_next:
            raise Corrupt(f"a segment's pieces are out of order. expected={self.next} got={piece.first}", place=place)
        self._piece = piece
        if piece.number == piece.of - 1:
            self.next, self._piece = LogPosition(piece.last + 1), None

    def _take_moved(self, moved: Moved, place: str) -> None:
        if moved.next != self.next or self._piece is not None:
            raise Corrupt(f"a log that was moved is not whole. expected={moved.next} got={self.next}", place=place)
        self.moving = None

    def _take_part(self, part: Part) -> None:
        if part.number == 0:
            self._parts, self._parts_offset = [], self.offset - 1
        self._parts.append(part)
        if len(self._parts) == part.of:
            self.kept = Kept(LogPosition(part.position), part.hlc, b"".join(one.data for one in self._parts))
            self.kept_offset = self._parts_offset
            self._parts = []
