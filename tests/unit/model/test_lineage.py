"""Which log a position is of, and how much of a log a table's marks cover."""

from mainstem.model.position import NOWHERE, UNNAMED, Lineage, LogId, LogPosition, Span
from mainstem.tables.marks import position_mark, positions_of

OLD, NEW, FOREIGN = LogId("aaaa"), LogId("bbbb"), LogId("cccc")
LINEAGE = Lineage((Span(OLD, LogPosition(1)), Span(NEW, LogPosition(601))))


def test_another_logs_mark_covers_nothing_here() -> None:
    assert LINEAGE.covered({FOREIGN: LogPosition(10_000)}) == NOWHERE


def test_a_mark_beyond_the_end_of_its_span_counts_up_to_the_end() -> None:
    """A restored backup: the table holds 900 changes of the old log, of which this folder knows 600."""
    assert LINEAGE.covered({OLD: LogPosition(900)}) == 600


def test_the_newest_span_with_a_mark_decides() -> None:
    marks = {OLD: LogPosition(900), NEW: LogPosition(650), FOREIGN: LogPosition(7)}
    assert LINEAGE.covered(marks) == 650
    assert LINEAGE.covered({OLD: LogPosition(580)}) == 580


def test_a_position_knows_its_log() -> None:
    assert [LINEAGE.log_at(LogPosition(each)) for each in (1, 600, 601, 900)] == [OLD, OLD, NEW, NEW]
    assert LINEAGE.log == NEW


def test_a_summary_has_a_mark_for_each_log() -> None:
    summary = {position_mark(NEW): "650", position_mark(UNNAMED): "41", "mainstem.hlc-max": "9", "operation": "append"}
    assert positions_of(summary) == {NEW: 650, UNNAMED: 41}


def test_what_is_no_position_is_passed_over() -> None:
    summary = {position_mark(NEW): "abc", position_mark(OLD): "-4", position_mark(FOREIGN): "9" * 30}
    assert positions_of(summary) == {}
