"""What is remembered of sources, against a model that remembers everything."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.admission import Dedup, DedupSettings, OutOfSequence, Seen
from mainstem.admission.recent import RecentBatches
from mainstem.admission.sequences import SequenceSet
from mainstem.admission.unpersisted import RUNS_MAX, Unpersisted
from mainstem.model import Corrupt, Hlc, LogPosition, Overloaded, SourceId
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.runtime.clock import ManualClock
from tests.harness.seeds import soak_seeds

A = SourceId("a")
GOLDEN = Path(__file__).parent / "dedup-v1.msgpack"


def header(last: int, sequence: int, *, source: str = "a", fingerprint: int = 1, arrival_ms: int = 0) -> BatchHeader:
    return BatchHeader(
        first=LogPosition(last),
        count=1,
        hlc_first=Hlc(last),
        arrival_ms=arrival_ms,
        source=SourceId(source),
        sequence=sequence,
        fingerprint=fingerprint,
        encoding=Encoding.CDC_JSON,
    )


def small(clock: ManualClock | None = None, **changed: int) -> Dedup:
    return Dedup(clock or ManualClock(), DedupSettings(**changed))


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 62))
def test_intervals_are_a_set(sequences: list[int], asked: int) -> None:
    intervals = SequenceSet()
    for sequence in sequences:
        intervals.add(sequence, 1_000)
    assert (asked in intervals) == (asked in sequences)
    assert intervals.highest == max(sequences, default=None)
    assert intervals.highest_below(asked) == max((s for s in sequences if s < asked), default=None)
    starts, ends = intervals.intervals
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert all(end + 1 < start for end, start in zip(ends, starts[1:], strict=False))


@given(st.lists(st.integers(0, 200), max_size=80))
def test_at_their_bound_intervals_grow_downwards_only(sequences: list[int]) -> None:
    intervals = SequenceSet()
    for sequence in sequences:
        intervals.add(sequence, 4)
    assert len(intervals.intervals[0]) <= 4
    assert all(sequence in intervals for sequence in sequences)
    # What is counted as seen without having been seen is not certain.
    assert all((s in intervals) == (s in sequences) for s in range(202) if intervals.is_certain(s))
    if len(set(sequences)) <= 4:
        assert intervals.blurred is None


def test_the_newest_fingerprints_are_kept() -> None:
    recent = RecentBatches()
    for sequence in range(1_000):
        recent.add(sequence, sequence * 3, kept_max=64)
    assert 64 <= len(recent) <= 80
    assert recent.find(999) == 2997
    assert recent.find(936) == 2808
    assert recent.find(900) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2)), max_size=60), st.data())
def test_persisted_is_what_the_tables_cover(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    dedup = small()
    durable: list[tuple[int, int]] = []
    last = 0
    for sequence, gap in batches:
        if sequence in [s for s, _ in durable]:
            continue
        last += 1 + gap
        dedup.record(header(last, sequence))
        durable.append((sequence, last))
    watermark = data.draw(st.integers(0, last + 1))
    assert dedup.settle(A, LogPosition(watermark)) == any(position <= watermark for _, position in durable)
    missing = min((s for s, position in durable if position > watermark), default=None)
    below = [s for s, _ in durable if missing is None or s < missing]
    assert dedup.persisted(A) == max(below, default=None)
    assert dedup.settle(A, LogPosition(watermark)) is False


def test_runs_are_bounded_and_late_rather_than_wrong() -> None:
    unpersisted = Unpersisted()
    for sequence in range(1, 10 * RUNS_MAX):
        unpersisted.add(sequence, sequence * 10)
        assert len(unpersisted.runs) <= RUNS_MAX
    unpersisted.settle(500)
    lowest = unpersisted.lowest
    assert lowest is not None
    assert lowest <= 51
    unpersisted.settle(10 * 10 * RUNS_MAX)
    assert unpersisted.lowest is None


class NaiveDedup:
    """Remembers every batch for ever."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], int] = {}

    def look(self, source: str, sequence: int, fingerprint: int) -> str:
        known = self.seen.get((source, sequence))
        if known is None:
            return "never"
        return "same" if known == fingerprint else "other"


def ask(dedup: Dedup, source: str, sequence: int, fingerprint: int) -> str:
    try:
        return dedup.look(SourceId(source), sequence, fingerprint).name.lower()
    except OutOfSequence:
        return "other"


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 2), st.booleans(), st.booleans()), max_size=120
)


@given(steps)
@settings(max_examples=200)
def test_within_its_bounds_it_is_the_naive_model_across_restarts(
    taken: list[tuple[str, int, int, bool, bool]],
) -> None:
    dedup, naive, last = small(), NaiveDedup(), 0
    since_dump: list[BatchHeader] = []
    stored = dedup.dump()
    for source, sequence, fingerprint, refused, restart in taken:
        answer = ask(dedup, source, sequence, fingerprint)
        assert answer == naive.look(source, sequence, fingerprint)
        if answer == "never" and not refused:
            last += 1
            batch = header(last, sequence, source=source, fingerprint=fingerprint)
            dedup.record(batch)
            since_dump.append(batch)
            naive.seen[source, sequence] = fingerprint
        if refused:
            # The log keeps some frames that the stored state has already; replaying them changes nothing.
            stored, since_dump = dedup.dump(), since_dump[-3:]
        if restart:
            dedup = small()
            dedup.load(stored)
            for batch in since_dump:
                dedup.record(batch)
    for source in "abc":
        assert dedup.highest(SourceId(source)) == max((q for s, q in naive.seen if s == source), default=0)


@given(steps, st.integers(1, 4), st.integers(1, 6))
def test_beyond_its_bounds_it_never_loses_a_batch_by_calling_it_a_duplicate(
    taken: list[tuple[str, int, int, bool, bool]], intervals_max: int, recent_max: int
) -> None:
    dedup = small(intervals_max=intervals_max, intervals_min=1, recent_max=recent_max, recent_min=1)
    naive, last = NaiveDedup(), 0
    for source, sequence, fingerprint, _, restart in taken:
        if restart:
            stored = dedup.dump()
            dedup = small(intervals_max=intervals_max, intervals_min=1, recent_max=recent_max, recent_min=1)
            dedup.load(stored)
        answer, truth = ask(dedup, source, sequence, fingerprint), naive.look(source, sequence, fingerprint)
        # Other changes under a sequence whose fingerprint is forgotten count as a duplicate, a new sequence never does.
        assert answer in (truth, "other") or (truth, answer) == ("other", "same")
        if answer == "never":
            last += 1
            dedup.record(header(last, sequence, source=source, fingerprint=fingerprint))
            naive.seen[source, sequence] = fingerprint


def test_a_restarted_counter_hears_which_sequence_is_next() -> None:
    dedup = small()
    for sequence in range(1, 6_000):
        dedup.record(header(sequence, sequence, fingerprint=sequence))
    assert dedup.look(A, 5_999, 5_999) is Seen.SAME
    with pytest.raises(OutOfSequence, match=r"other changes.*next=6000") as other:
        dedup.look(A, 5_999, 1)
    assert (other.value.reason, other.value.sequence_next) == ("invalid_sequence", 6000)


def test_a_duplicate_is_one_however_old_it_is() -> None:
    dedup = small()
    for sequence in range(1, 12_001):
        dedup.record(header(sequence, sequence, fingerprint=sequence))
    restarted = small()
    restarted.load(dedup.dump())
    for known in (dedup, restarted):
        assert {known.look(A, sequence, sequence) for sequence in (1, 1_000, 5_000, 7_000)} == {Seen.SAME}


def test_a_duplicate_is_one_however_old_it_is_and_however_many_gaps_came_since() -> None:
    """Every second sequence, and one batch of each gap that comes late."""
    dedup = small()
    for number in range(1, 10_001):
        dedup.record(header(number, 2 * number, fingerprint=number))
    for _ in range(2):
        assert {dedup.look(A, 2 * number, number) for number in range(1, 10_001)} == {Seen.SAME}
        assert {dedup.look(A, 2 * number + 1, 1) for number in range(10_000)} == {Seen.NEVER}
        stored = dedup.dump()
        dedup = small()
        dedup.load(stored)


def test_with_many_sources_gaps_are_shared_and_none_is_forgotten_in_silence() -> None:
    dedup, last = small(intervals_max=64, intervals_total_max=128, intervals_min=4), 0
    for number in range(1, 65):
        last += 1
        dedup.record(header(last, 2 * number))
    assert dedup.look(A, 3, 1) is Seen.NEVER
    for source in range(16):
        last += 1
        dedup.record(header(last, 1, source=str(source)))
    last += 1
    dedup.record(header(last, 1_000))
    # Its share is eight: what is below counts as used, and a batch there is refused and not called a duplicate.
    with pytest.raises(OutOfSequence, match="older than what is remembered"):
        dedup.look(A, 3, 1)
    assert dedup.look(A, 1_000 - 1, 1) is Seen.NEVER and dedup.look(A, 128, 1) is Seen.SAME


def test_a_gap_that_is_not_known_any_more_is_refused_and_not_taken_for_a_duplicate() -> None:
    dedup = small(intervals_max=4, intervals_min=1, recent_max=1, recent_min=1)
    for last, sequence in enumerate((10, 20, 30, 40, 50), 1):
        dedup.record(header(last, sequence))
    for _ in range(2):
        # 11 to 19 count as used: whether they were is not known.
        with pytest.raises(OutOfSequence, match=r"older than what is remembered.*got=15\. next=51"):
            dedup.look(A, 15, 1)
        assert (dedup.look(A, 5, 1), dedup.look(A, 25, 1)) == (Seen.NEVER, Seen.NEVER)
        assert dedup.look(A, 30, 1) is Seen.SAME
        stored = dedup.dump()
        dedup = small(intervals_max=4, intervals_min=1, recent_max=1, recent_min=1)
        dedup.load(stored)


def test_sources_that_were_quiet_longest_make_room_and_busy_ones_do_not() -> None:
    clock = ManualClock(now_ms=0)
    dedup = small(clock, sources_max=2, idle_ms=1_000)
    dedup.record(header(1, 1, source="a", arrival_ms=0))
    dedup.record(header(2, 1, source="b", arrival_ms=0))
    dedup.record(header(3, 2, source="a", arrival_ms=600))
    clock.set_wall(1_000)
    with pytest.raises(Overloaded, match="too many sources") as caught:
        dedup.look(SourceId("c"), 1, 1)
    assert caught.value.retry_after_s > 0
    clock.set_wall(1_001)
    assert dedup.look(SourceId("c"), 1, 1) is Seen.NEVER
    assert list(dedup) == ["a"]


def test_with_many_sources_each_is_remembered_for_a_share() -> None:
    dedup = small(recent_total_max=256, recent_min=8)
    last = 0
    for source in range(64):
        for sequence in range(100):
            last += 1
            dedup.record(header(last, sequence, source=str(source)))
    with pytest.raises(OutOfSequence, match="other changes"):
        dedup.look(SourceId("63"), 99, 2)
    # Too old to compare: the sequence decides.
    assert dedup.look(SourceId("63"), 80, 2) is Seen.SAME


def golden_state() -> Dedup:
    dedup = small()
    for last, sequence in enumerate((1, 2, 3, 7), 1):
        dedup.record(header(last, sequence, fingerprint=0xFFFFFFFF - last, arrival_ms=1_700_000_000_000))
    dedup.record(header(9, 0, source="börse", fingerprint=5))
    dedup.settle(A, LogPosition(2))
    return dedup


def test_the_stored_form_is_the_one_of_version_1() -> None:
    assert golden_state().dump() == GOLDEN.read_bytes()


def test_yesterdays_state_is_read() -> None:
    dedup = small()
    dedup.load(GOLDEN.read_bytes())
    assert dedup.dump() == GOLDEN.read_bytes()
    assert dedup.look(A, 7, 0xFFFFFFFB) is Seen.SAME
    assert dedup.look(A, 5, 1) is Seen.NEVER
    assert dedup.persisted(A) == 2
    # Position 9 is part of it: the frame does not count twice.
    dedup.record(header(9, 44))
    assert dedup.highest(A) == 7


@pytest.mark.parametrize("cut", [0, 1, 5, 20, -1])
def test_a_broken_state_is_reported_and_changes_nothing(cut: int) -> None:
    dedup = small()
    dedup.record(header(1, 1))
    before = dedup.dump()
    with pytest.raises(Corrupt):
        dedup.load(GOLDEN.read_bytes()[:cut])
    assert dedup.dump() == before


def test_a_state_of_another_version_is_reported() -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[1] = 2
    with pytest.raises(Corrupt, match="version"):
        small().load(bytes(data))


def _long_life(seed: int, batches: int, **bounds: int) -> None:
    """A source that sends on and on, out of order and with gaps, resends anything it ever sent, and is restarted."""
    chance = random.Random(seed)
    dedup, last, newest = small(None, **bounds), 0, 0
    sent: list[int] = []
    for _ in range(batches):
        newest += 1 + (chance.random() < 0.03)
        late = max(1, newest - chance.randrange(3))
        for sequence in (late, newest):
            if dedup.look(A, sequence, sequence) is Seen.NEVER:
                last += 1
                dedup.record(header(last, sequence, fingerprint=sequence))
                sent.append(sequence)
        assert dedup.look(A, old := chance.choice(sent), old) is Seen.SAME, f"seed {seed}: {old} of {newest}"
        if chance.random() < 0.001:
            stored = dedup.dump()
            dedup = small(None, **bounds)
            dedup.load(stored)
    assert len(sent) == len(set(sent))


def test_whatever_was_sent_is_a_duplicate_later_on() -> None:
    _long_life(seed=1, batches=1_000, recent_max=64, recent_min=64)


@pytest.mark.soak
@pytest.mark.parametrize("seed", soak_seeds(100, 20))
def test_whatever_was_sent_is_a_duplicate_for_long(seed: int) -> None:
    _long_life(seed, batches=12_000)
