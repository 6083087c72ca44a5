"""How long a group of batches waits for more before it is written and synced.

Senders that wait for their acknowledgements come back with their next batches right after a group. Those that are not
in the group that is being synced then wait for the next one, so that under load every sync takes half of what is
under way, and there are twice as many. While much is written a group therefore waits a little for as much as was under
way before: at most half as long as a sync takes, and not again for a while where that was in vain.
"""

# Under way: with less, a sync delays no batch but its own.
GATHERED_BYTES_MIN = 128 * 1024
# A wait beyond this is more than a sync on a good disk takes.
WAIT_S_MAX = 0.004
# So many groups are not waited for after a wait in vain; twice as many after each further one.
_RESTS_MIN, _RESTS_MAX = 4, 256


class Gathering:
    """Learns from each group how long the next one should wait. Belongs to the writer's thread."""

    def __init__(self, wait_s_max: float = WAIT_S_MAX) -> None:
        self._wait_s_max = wait_s_max
        self._under_way_bytes = 0
        self._sync_s = 0.0
        self._rests = 0
        self._rests_next = _RESTS_MIN

    def wait_s(self, group_bytes: int) -> tuple[float, int]:
        """For how long a group of so many bytes should wait, and until it has how many."""
        if self._under_way_bytes < GATHERED_BYTES_MIN or group_bytes >= self._under_way_bytes:
            return 0.0, 0
        if self._rests:
            self._rests -= 1
            return 0.0, 0
        return min(self._sync_s / 2, self._wait_s_max), self._under_way_bytes

    def waited(self, *, in_vain: bool) -> None:
        """A group waited: did it get what it waited for?"""
        if in_vain:
            self._rests = self._rests_next
            self._rests_next = min(self._rests_next * 2, _RESTS_MAX)
        else:
            self._rests_next = _RESTS_MIN

    def synced(self, group_bytes: int, waiting_bytes: int, sync_s: float) -> None:
        """A group is durable, and so much came in the meantime."""
        self._under_way_bytes = group_bytes + waiting_bytes
        self._sync_s = sync_s
