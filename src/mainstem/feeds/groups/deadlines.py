"""Who has to be looked at when. One deadline per name; a later one does not take the place of an earlier one, since
a group that is looked at too early only says when to come again."""

import heapq


class Deadlines:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._set: dict[str, float] = {}

    def add(self, name: str, due_s: float | None) -> bool:
        """Look at it then, at the latest. Whether that is sooner than anything else."""
        if due_s is None or self._set.get(name, due_s + 1) <= due_s:
            return False
        self._set[name] = due_s
        heapq.heappush(self._heap, (due_s, name))
        return self._heap[0] == (due_s, name)

    def next_s(self) -> float | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now_s: float) -> str | None:
        """One that is due, or None."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, name = heapq.heappop(self._heap)
            if self._set.get(name) == due_s:
                del self._set[name]
                return name
        return None
