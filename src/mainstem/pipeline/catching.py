"""The one way in which a table catches up with the log, whatever its format: pass by pass, each its own commits.

A pass takes the next run of segments past what the table covers. A commit that lost a race wrote nothing: the table is
looked at again, and the pass is done again.
"""

from collections.abc import Callable, Sequence

from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.segments import Segment, TableSlice, slice_for
from mainstem.pipeline.turns import Turns

ATTEMPTS_MAX = 5


class CatchingUp:
    """What the writer of a table is to the carrier. A format says what is covered, and how one pass is written."""

    # Rows of one table that go into one commit: bounds what a pass holds, and how much a crash repeats.
    rows_per_pass_max: int

    def __init__(self, name: TableName, turns: Turns | None) -> None:
        self._name = name
        self._turns = turns or Turns()

    def covered(self) -> LogPosition:
        """What the table holds: the less of its state and its history."""
        raise NotImplementedError

    def _write(self, run: TableSlice) -> None:
        raise NotImplementedError

    def catch_up(
        self,
        segments: Sequence[Segment],
        rows_max: int | None = None,
        on_pass: Callable[[LogPosition], None] = lambda _: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> LogPosition:
        """Bring in everything that the segments have and the table has not; returns what it covers then."""
        rows_max = rows_max or self.rows_per_pass_max
        covered = self.covered()
        attempts = 0
        while go_on() and (run := slice_for(self._name, segments, covered, rows_max)):
            try:
                with self._turns.of(self._name):
                    self._write(run)
            except Conflict:
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise
                covered = self.covered()
                continue
            attempts = 0
            covered = run.last
            on_pass(covered)
        return covered
