"""Broadcasts: everyone is told everything once, in a chain, and the loop has its turn in between."""

import asyncio
from collections.abc import Callable
from typing import cast

from mainstem.doors.sync.frames import Frame
from mainstem.doors.sync.rounds import STEP_CONNECTIONS, Rounds
from mainstem.feeds.cursors import Cursors
from mainstem.feeds.service import Reply, SyncService, Viewer
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import Op, RowDelta, decode_response, encode_delta

COUNT = 5 * STEP_CONNECTIONS + 7


class Arrivals:
    """A gateway without rules, as rounds see it: one delta per position."""

    def __init__(self) -> None:
        self.newest = NOWHERE
        self.cursors = Cursors()
        self._listener: Callable[[], None] = lambda: None

    def arrive(self) -> None:
        self.newest = LogPosition(self.newest + 1)
        self._listener()

    def listen(self, gateway: str, listener: Callable[[], None]) -> Callable[[], None]:
        self._listener = listener
        return lambda: None

    def is_ruled(self, gateway: str) -> bool:
        return False

    def arrived(self, gateway: str, viewer: Viewer, since: LogPosition, limit: int) -> Reply:
        deltas = [RowDelta(op=Op.DELETE, table="t", row_id=str(at)) for at in range(since + 1, self.newest + 1)]
        return Reply([encode_delta(delta) for delta in deltas], self.newest, False)


class Connection:
    """Keeps what it is told."""

    def __init__(self, order: list["Connection"]) -> None:
        self.viewer = Viewer("client", {}, True)
        self.told: LogPosition | None = NOWHERE
        self.covered = NOWHERE
        self.is_full = False
        self.rows: list[str] = []
        self._order = order

    def broadcast(self, frame: Frame, cursor: LogPosition | None) -> None:
        response = decode_response(frame.payload[1:])
        assert response.since_hlc == (self.told if cursor else response.server_hlc)
        self.rows += [delta.row_id for delta in response.deltas]
        self.told, self.covered = cursor, cursor or self.covered
        self._order.append(self)


class Gateway:
    """Rounds with so many connections."""

    def __init__(self, count: int = COUNT) -> None:
        self.arrivals = Arrivals()
        self.rounds = Rounds(cast("SyncService", self.arrivals), "gateway")
        # Who was told, one after the other.
        self.order: list[Connection] = []
        self.connections = [Connection(self.order) for _ in range(count)]
        for connection in self.connections:
            self.rounds.add(connection)

    async def rest(self) -> int:
        """Let the loop turn until nobody is told anything more; how often it turned."""
        turns = 0
        while True:
            before = len(self.order)
            await asyncio.sleep(0)
            turns += 1
            if len(self.order) == before:
                return turns


async def test_the_loop_has_its_turn_between_the_steps_of_a_round() -> None:
    gateway = Gateway()
    gateway.arrivals.arrive()
    assert await gateway.rest() >= COUNT / STEP_CONNECTIONS
    assert all(connection.rows == ["1"] for connection in gateway.connections)
    assert len(gateway.order) == COUNT


async def test_what_arrives_during_a_round_joins_the_frames_that_are_still_to_come() -> None:
    gateway = Gateway()
    gateway.arrivals.arrive()
    await asyncio.sleep(0)
    early = list(gateway.order)
    assert len(early) == STEP_CONNECTIONS
    gateway.arrivals.arrive()
    await gateway.rest()
    assert all(connection.rows == ["1", "2"] for connection in gateway.connections)
    # One frame for each, and another one only for those who had theirs already, last of all.
    assert len(gateway.order) == COUNT + len(early)
    assert gateway.order[-len(early) :] == early


async def test_nobody_is_always_the_last() -> None:
    gateway = Gateway()
    last = []
    for _ in range(3):
        gateway.arrivals.arrive()
        await gateway.rest()
        last.append(gateway.order[-1])
    assert len(set(map(id, last))) == 3


async def test_who_goes_during_a_round_is_not_told_and_nobody_else_is_left_out() -> None:
    gateway = Gateway()
    gateway.arrivals.arrive()
    await asyncio.sleep(0)
    told = set(map(id, gateway.order))
    # Some who had their turn and some who did not.
    gone = gateway.connections[::3]
    for connection in gone:
        gateway.rounds.remove(connection)
    await gateway.rest()
    for connection in gateway.connections:
        left_out = connection in gone and id(connection) not in told
        assert connection.rows == ([] if left_out else ["1"])


async def test_whoever_has_no_chain_is_not_told_and_whoever_is_full_loses_it() -> None:
    gateway = Gateway(3)
    silent, full, other = gateway.connections
    silent.told, full.is_full = None, True
    gateway.arrivals.arrive()
    await gateway.rest()
    assert (silent.rows, full.rows, other.rows) == ([], [], ["1"])
    assert full.told is None and other.told == 1
