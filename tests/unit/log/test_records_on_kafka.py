"""Who owns a log on Kafka, and what counts in it, decided by the order of its records alone."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log import frames
from mainstem.log.frames import Frame
from mainstem.log.kafka.records import (
    Beat,
    Claim,
    Mark,
    Move,
    Moved,
    Note,
    Part,
    Piece,
    Plan,
    Reading,
    Release,
    encode_note,
    spans_of,
)
from mainstem.log.kafka.standby import Owner
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.position import Lineage, LogId, LogPosition, Span

LINEAGE = Lineage((Span(LogId("a"), LogPosition(1)), Span(LogId("b"), LogPosition(7))))


def frame(first: int, count: int = 1, payload: bytes = b"[]") -> bytes:
    header = BatchHeader(
        first=LogPosition(first),
        count=count,
        hlc_first=Hlc(first),
        arrival_ms=1,
        source=SourceId("app"),
        sequence=first,
        fingerprint=1,
        encoding=Encoding.CDC_JSON,
    )
    return b"".join(frames.encode(header, payload, LogPosition(first)))


def taken(reading: Reading, *records: tuple[bytes, bytes | Note]) -> list[bool]:
    """Hand records on; which of them count."""
    counts = []
    for key, value in records:
        stored = value if isinstance(value, bytes) else encode_note(value)
        counts.append(reading.take(reading.offset, key, stored) is not None)
    return counts


def test_what_comes_after_anothers_claim_does_not_count() -> None:
    reading = Reading("t", 0)
    counts = taken(
        reading,
        (b"a", Claim("a")), (b"a", Mark(1, [("a", 1)])), (b"a", frame(1)), (b"b", frame(2)), (b"b", Claim("b")),
        (b"a", frame(2)), (b"a", Plan(1, 1)), (b"a", Release()), (b"b", frame(2, 3)), (b"a", Beat()),
        (b"b", Plan(1, 4)),
    )  # fmt: skip
    assert counts == [True, True, True, False, True, False, False, False, True, False, True]
    assert (reading.term, reading.by, reading.next, reading.ignored) == (b"b", "b", 5, 5)
    assert reading.plans == {1: 4} and not reading.is_released


@pytest.mark.parametrize(
    ("records", "is_gone"),
    [
        ([(b"a", Beat()), (b"a", Release())], True),
        ([(b"a", Release())], True),
        ([(b"a", Beat()), (b"b", Claim("b")), (b"b", Release())], True),
        ([(b"a", Release()), (b"b", Claim("b"))], False),
        # One that was fenced ends, and does not know it yet.
        ([(b"b", Claim("b")), (b"b", frame(1)), (b"a", Release())], False),
        ([(b"b", Claim("b")), (b"b", Release()), (b"a", Release())], True),
        ([(b"b", Beat()), (b"a", Release())], False),
        ([(b"a", Release()), (b"b", Beat())], False),
        ([(b"a", Beat()), (b"b", Beat()), (b"b", Release())], False),
    ],
)
def test_only_its_owner_lets_go_of_a_log(records: list[tuple[bytes, bytes | Note]], is_gone: bool) -> None:
    owner = Owner("t")
    for key, value in records:
        owner.take(key, value if isinstance(value, bytes) else encode_note(value))
    assert owner.is_gone is is_gone


def test_what_is_left_of_a_group_whose_beginning_is_missing_does_not_count() -> None:
    reading = Reading("t", 0)
    assert taken(reading, (b"a", Claim("a")), (b"a", frame(1, 2)), (b"a", frame(4)), (b"a", frame(3))) == [
        True,
        True,
        False,
        True,
    ]
    assert reading.next == 4


def test_a_log_whose_beginning_was_deleted_begins_with_a_mark() -> None:
    reading = Reading("t", 40)
    taken(reading, (b"a", Mark(9, spans_of(LINEAGE))), (b"a", frame(9)), (b"z", frame(10)), (b"a", frame(10)))
    assert (reading.next, reading.lineage, reading.offset) == (11, LINEAGE, 44)
    for first in (Claim("b"), Beat(), frame(9)):
        with pytest.raises(Corrupt, match="first records are missing"):
            taken(Reading("t", 40), (b"a", first))


def test_a_missing_or_unreadable_record_is_noticed() -> None:
    reading = Reading("t", 0)
    taken(reading, (b"a", Claim("a")))
    with pytest.raises(Corrupt, match="expected=1 got=2"):
        reading.take(2, b"a", frame(1))
    for value in (frame(1)[:-1], frame(1) + b"x", b"", b"MSN1\xff"):
        with pytest.raises(Corrupt):
            Reading("t", 0).take(0, b"a", value)


def test_a_companion_counts_when_all_of_its_parts_are_there() -> None:
    reading = Reading("t", 0)
    parts = [Part(5, 50, number, 3, bytes([number])) for number in range(3)]
    taken(reading, (b"a", Claim("a")), (b"a", parts[0]), (b"a", parts[1]))
    # Another owner begins in between: it stores its own.
    taken(reading, (b"b", Claim("b")), (b"a", parts[2]))
    assert reading.kept is None
    taken(reading, *((b"b", part) for part in parts))
    assert reading.kept == (5, 50, b"\x00\x01\x02")
    assert reading.kept_offset == 5


MOVE = Move(spans_of(LINEAGE), 3, 7)


def test_a_log_that_is_moved_is_there_with_its_last_record() -> None:
    reading = Reading("t", 0)
    taken(reading, (b"a", Claim("a")), (b"a", MOVE), (b"a", Piece(3, 4, 0, 2, b"x")), (b"a", Piece(3, 4, 1, 2, b"y")))
    taken(reading, (b"a", Mark(5, MOVE.spans)), (b"a", frame(5, 3)), (b"a", Part(4, 40, 0, 1, b"kept")))
    assert (reading.moving, reading.next, reading.lineage) == (MOVE, 8, LINEAGE)
    taken(reading, (b"a", Moved(8)), (b"a", Release()), (b"b", Claim("b")), (b"b", frame(8)))
    assert (reading.moving, reading.next, reading.kept) == (None, 9, (4, 40, b"kept"))


def test_a_move_that_begins_anew_voids_what_was_there_of_it() -> None:
    reading = Reading("t", 0)
    taken(reading, (b"a", Claim("a")), (b"a", MOVE), (b"a", Piece(3, 4, 0, 2, b"x")), (b"b", Claim("b")))
    # The first one is not dead, and writes on.
    assert taken(reading, (b"a", Piece(3, 4, 1, 2, b"y")), (b"a", Moved(5))) == [False, False]
    again = Move([("c", 1)], 1, 2)
    taken(reading, (b"b", again), (b"b", frame(1, 2)), (b"b", Moved(3)))
    assert (reading.moving, reading.next, reading.lineage) == (None, 3, Lineage((Span(LogId("c"), LogPosition(1)),)))
    # Taken back, as nothing was added to it.
    taken(reading, (b"b", Move([("c", 1)], 3, 2)))
    assert reading.moving is not None


@pytest.mark.parametrize(
    "records",
    [
        # Over a log that has something else, or more.
        [Mark(1, [("x", 1)]), MOVE],
        [Move([("c", 1)], 1, 1), frame(1), Moved(2), frame(2), Move([("c", 1)], 1, 1)],
        [Move([("c", 1)], 1, 1), frame(1), Moved(2), Move([("d", 1)], 1, 1)],
        # Not all of it.
        [MOVE, Piece(3, 4, 0, 2, b"x"), Piece(3, 4, 0, 2, b"x")],
        [MOVE, Piece(4, 4, 0, 1, b"x")],
        [MOVE, frame(3, 4), Moved(8)],
        [MOVE, Piece(3, 7, 0, 2, b"x"), Moved(3)],
        [Piece(1, 1, 0, 1, b"x")],
    ],
)
def test_a_move_over_another_log_or_with_a_part_missing_is_no_log(records: list[bytes | Note]) -> None:
    with pytest.raises(Corrupt):
        taken(Reading("t", 0), (b"a", Claim("a")), *((b"a", record) for record in records))


class _Sent(NamedTuple):
    by: int
    key: bytes
    value: bytes
    first: int


class _Writer:
    """An owner as the journal is one, on a partition that is a list: it believes what the offsets tell it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.terms = 0
        self.reading: Reading | None = None
        self.under_way: list[_Sent] = []
        self.acknowledged: list[int] = []

    def claim(self, partition: list[tuple[bytes, bytes]]) -> None:
        self.terms += 1
        key = f"{self.number}.{self.terms}".encode()
        partition.append((key, encode_note(Claim("w"))))
        self.reading = Reading("t", 0)
        for offset, (term, value) in enumerate(partition):
            self.reading.take(offset, term, value)

    def send(self) -> None:
        if self.reading is not None and not self.under_way:
            first = self.reading.next
            self.under_way.append(_Sent(self.number, self.reading.term, frame(first), first))

    def arrive(self, partition: list[tuple[bytes, bytes]]) -> None:
        """What was sent reaches the partition, however late; the writer hears of its offset, if it still waits."""
        if not self.under_way:
            return
        sent = self.under_way.pop()
        offset = len(partition)
        partition.append((sent.key, sent.value))
        if self.reading is None or self.reading.term != sent.key:
            return
        if offset == self.reading.offset:
            self.reading.take(offset, sent.key, sent.value)
            self.acknowledged.append(offset)
        else:
            # Somebody wrote in between: it finds out, and ends or begins a term of its own. Here it ends.
            self.reading = None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["claim", "send", "arrive", "arrive"])), max_size=60))
def test_whatever_was_acknowledged_counts_whoever_wrote_in_between(steps: list[tuple[int, str]]) -> None:
    partition: list[tuple[bytes, bytes]] = []
    writers = [_Writer(number) for number in range(3)]
    for number, step in steps:
        writer = writers[number]
        if step == "claim":
            writer.claim(partition)
        elif step == "send":
            writer.send()
        else:
            writer.arrive(partition)
    reading = Reading("t", 0)
    counted: dict[int, int] = {}
    for offset, (key, value) in enumerate(partition):
        said = reading.take(offset, key, value)
        if isinstance(said, Frame):
            counted[offset] = said.header.first
    assert list(counted.values()) == list(range(1, len(counted) + 1))
    acknowledged = [offset for writer in writers for offset in writer.acknowledged]
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= counted.keys()
