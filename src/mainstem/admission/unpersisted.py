"""Which of a source's durable batches are not in the tables yet."""

RUNS_MAX = 1_024


class Unpersisted:
    """Batches that the tables do not cover yet, as runs of (lowest sequence, highest sequence, last position).

    Runs are in the log's order, so their positions ascend. Beyond `RUNS_MAX` neighbours are joined, which makes the
    earlier one count as persisted only with the later one: late, never wrong.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: list[tuple[int, int, int]] | None = None) -> None:
        self._runs = runs or []

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """All runs, in the log's order."""
        return self._runs

    def add(self, sequence: int, last: int) -> None:
        """A batch became durable, up to a position."""
        self._runs.append((sequence, sequence, last))
        if len(self._runs) > RUNS_MAX:
            pairs = zip(self._runs[0::2], self._runs[1::2], strict=False)
            odd = self._runs[-1:] if len(self._runs) % 2 else []
            self._runs = [(min(a[0], b[0]), max(a[1], b[1]), b[2]) for a, b in pairs] + odd

    def settle(self, watermark: int) -> bool:
        """The tables cover everything up to `watermark`: whether that makes a difference here."""
        covered = 0
        for run in self._runs:
            if run[2] > watermark:
                break
            covered += 1
        del self._runs[:covered]
        return covered > 0

    @property
    def lowest(self) -> int | None:
        """The lowest sequence that is not in the tables; None where all are."""
        return min((run[0] for run in self._runs), default=None)
