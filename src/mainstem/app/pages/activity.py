"""Samples for the charts, kept by the server, and who sends: see `doors.admin.activity`."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mainstem.admission import Dedup, Principal
from mainstem.admission.sources import RESERVED_SOURCES
from mainstem.doors.admin import activity as door
from mainstem.model import LogPosition
from mainstem.runtime.clock import Clock

SAMPLE_S = 2.0
# An hour of them.
SAMPLES_MAX = 1_800
# Sources that are looked through for those that a caller may see.
SOURCES_LOOKED_AT_MAX = 10_000


class Sample(NamedTuple):
    """How far everything was."""

    at_ms: int
    durable: int
    carried: int


class Activity:
    """Belongs to the event loop."""

    def __init__(
        self,
        dedup: Dedup,
        clock: Clock,
        durable: Callable[[], LogPosition],
        carried: Callable[[], LogPosition],
        connections: Callable[[], tuple[int, int]],
    ) -> None:
        """`connections` counts those of the CDC door and those of the sync door."""
        self._dedup = dedup
        self._clock = clock
        self._durable = durable
        self._carried = carried
        self._connections = connections
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    async def run(self) -> None:
        """Take samples, until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> None:
        """Note how far everything is."""
        self._samples.append(Sample(self._clock.now_ms(), self._durable(), self._carried()))

    def waits_since(self) -> int | None:
        """A time at which nothing of what the tables lack had come yet: at most one sample before its first change.

        None where that is longer ago than the samples go back.
        """
        carried = self._carried()
        return next((each.at_ms for each in reversed(self._samples) if each.durable <= carried), None)

    def charts(self) -> door.Charts:
        """The samples that are kept."""
        samples = list(self._samples)
        return door.Charts(
            every_s=SAMPLE_S,
            at_ms=[each.at_ms for each in samples],
            durable=[each.durable for each in samples],
            carried=[each.carried for each in samples],
            lag_changes=[max(0, each.durable - each.carried) for each in samples],
        )

    def clients(self, principal: Principal, limit: int) -> door.Clients:
        """The sources that the principal may see: one that is bound to namespaces or tables has sources of its own."""
        own = principal.source("")
        found: list[door.Client] = []
        total = 0
        for number, name in enumerate(reversed(self._dedup)):
            if number >= SOURCES_LOOKED_AT_MAX:
                break
            if name.startswith(RESERVED_SOURCES) or not name.startswith(own):
                continue
            total += 1
            if len(found) < limit:
                found.append(self._client(name))
        cdc, sync = self._connections() if principal.is_unbounded else (None, None)
        return door.Clients(clients=found, total=total, cdc_connections=cdc, sync_connections=sync)

    def _client(self, name: str) -> door.Client:
        heard = self._dedup.heard(name, self._carried())
        # The sync door counts its pushes downwards (`feeds.pushes`).
        is_sync = heard.lowest < 0 and heard.highest <= 0
        return door.Client(
            name=name,
            kind="sync" if is_sync else "producer",
            sequence=-heard.lowest if is_sync else heard.highest,
            persisted=None if is_sync else heard.persisted,
            waiting=heard.waiting,
            last_heard_ms=heard.seen_ms,
        )
