"""Broadcasts to the connections of one gateway: in rounds, a few connections at a time.

A write to a socket takes the kernel about ten microseconds, so a round to a thousand of them takes ten milliseconds,
whatever we do. Between the steps of a round the loop goes on with everything else: what is pushed meanwhile is taken
in, made durable and acknowledged, and joins the frames of those whose turn is still to come.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mainstem.doors.sync.frames import Frame
from mainstem.feeds.service import SyncService, Viewer
from mainstem.model.errors import MainstemError
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import join_response
from mainstem.wire.sync.frames import BROADCAST_TAG

BROADCAST_DELTAS_MAX = 1_000
# About half a millisecond.
STEP_CONNECTIONS = 50


class Told(Protocol):
    """A connection, as a round sees it."""

    viewer: Viewer
    # The cursor that the chain has come to; None while there is no chain.
    told: LogPosition | None
    # How far arrivals were looked at: what was not for this client moves this, and not the chain.
    covered: LogPosition

    @property
    def is_full(self) -> bool:
        """Whether the client reads more slowly than there is to tell."""

    def broadcast(self, frame: Frame, cursor: LogPosition | None) -> None:
        """Send a frame that continues the chain; without a cursor it ends it."""


class Rounds:
    """The connections of one gateway. Those that stand at the same cursor and see the same get the same bytes."""

    def __init__(self, service: SyncService, gateway: str) -> None:
        self._service = service
        self._gateway = gateway
        # The client whose turn is next stands in front.
        self._ring: deque[Told] = deque()
        # How many are left of the round under way.
        self._left = 0
        self._due: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._frames = _Frames(service, gateway)
        self._stop: Callable[[], None] = service.listen(gateway, self.arrived)

    @property
    def is_empty(self) -> bool:
        """Whether it has no connection."""
        return not self._ring

    def add(self, connection: Told) -> None:
        """One more to be told, once it has a chain."""
        self._ring.append(connection)

    def remove(self, connection: Told) -> None:
        """It is gone."""
        self._ring.remove(connection)

    def arrived(self) -> None:
        """There is something to tell: each client's turn comes once more, beginning with the next one."""
        if self._due is None:
            # Begin with another connection each time, so that none is always the last.
            self._ring.rotate(len(self._ring) // 3)
            self._due = self._loop.call_soon(self._step)
        self._left = len(self._ring)

    def close(self) -> None:
        """The last connection has left."""
        self._stop()
        if self._due is not None:
            self._due.cancel()

    def _step(self) -> None:
        newest = self._frames.begin()
        ring = self._ring
        for _ in range(min(self._left, STEP_CONNECTIONS, len(ring))):
            connection = ring[0]
            ring.rotate(-1)
            if connection.told is not None and connection.covered < newest:
                self._tell(connection, connection.told)
        self._left = min(self._left - STEP_CONNECTIONS, len(ring))
        if self._left > 0:
            self._due = self._loop.call_soon(self._step)
        else:
            self._due = None
            self._frames.forget()

    def _tell(self, connection: Told, told: LogPosition) -> None:
        if connection.is_full:
            connection.broadcast(*self._frames.gap())
            return
        frame, cursor = self._frames.next(told, connection.covered, connection.viewer)
        if frame is not None:
            connection.broadcast(frame, cursor)
        elif cursor is not None:
            connection.covered = cursor


_Next = tuple[Frame | None, LogPosition | None]


class _Frames:
    """The frames of a round, each made once for all whom it is for."""

    def __init__(self, service: SyncService, gateway: str) -> None:
        self._service = service
        self._gateway = gateway
        self._newest = NOWHERE
        self._ruled = False
        self._made: dict[object, _Next] = {}
        self._writers: dict[LogPosition, frozenset[str]] = {}

    def begin(self) -> LogPosition:
        """Go on up to what is the newest now. Frames of the step before hold where nothing came since."""
        newest, ruled = self._service.newest, self._service.is_ruled(self._gateway)
        if newest != self._newest or ruled != self._ruled:
            self.forget()
            self._newest, self._ruled = newest, ruled
        return newest

    def forget(self) -> None:
        """The round is over."""
        self._made.clear()
        self._writers.clear()

    def next(self, told: LogPosition, covered: LogPosition, viewer: Viewer) -> _Next:
        """The next broadcast and the cursor after it; no bytes where nothing that arrived is for this viewer."""
        key: tuple[object, ...] = (told, covered, viewer.scope)
        if self._ruled:
            if covered not in self._writers:
                self._writers[covered] = self._service.writers(self._gateway, covered)
            key = (*key, self._service.view_key(self._gateway, viewer, covered, self._writers[covered]))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(told, covered, viewer)
        return found

    def gap(self) -> tuple[Frame, None]:
        """The end of a chain: a broadcast that does not begin where the client stands makes it pull."""
        newest = self._service.cursors.encode(self._service.newest)
        return Frame.of(BROADCAST_TAG + join_response([], newest, False, newest)), None

    def _make(self, told: LogPosition, covered: LogPosition, viewer: Viewer) -> _Next:
        try:
            reply = self._service.arrived(self._gateway, viewer, covered, BROADCAST_DELTAS_MAX)
        except MainstemError:
            # Whatever it is: the pull that the gap brings about is told.
            return self.gap()
        if reply is None or reply.has_more:
            return self.gap()
        if not reply.encoded:
            return None, reply.cursor
        encode = self._service.cursors.encode
        response = join_response(reply.encoded, encode(reply.cursor), False, encode(told))
        return Frame.of(BROADCAST_TAG + response), reply.cursor
