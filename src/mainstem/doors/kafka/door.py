"""The Kafka door: listens, counts its connections, ends those that are idle, and closes them all in the end."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from mainstem.doors.kafka.connection import Connection, ConnectionSettings
from mainstem.doors.kafka.dispatch import Context, Entry, Table
from mainstem.doors.kafka.throttling import Throttle
from mainstem.runtime.clock import Clock

logger = logging.getLogger(__name__)

IDLE_CHECK_S = 10.0
LISTEN_BACKLOG = 1024


class KafkaDoor:
    """See above. `table` is filled before `start`. Belongs to the event loop."""

    def __init__(
        self, table: Table, clock: Clock, *, connections_max: int, settings: ConnectionSettings | None = None
    ) -> None:
        self.table = table
        self._clock = clock
        self._connections_max = connections_max
        self._settings = settings or ConnectionSettings()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._idle_task: asyncio.Task[None] | None = None
        # Whether a request may be asked before the client said who it is; SASL replaces this.
        self.is_allowed: Callable[[Context], bool] = lambda context: True
        # Counts what clients take; None: they take what they like.
        self.throttle: Throttle | None = None

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that is bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.connection, sock=listener, ssl=tls, backlog=LISTEN_BACKLOG)
        # Ends with `close`, which awaits it.
        self._idle_task = loop.create_task(self._end_idle(), name="kafka-idle")

    def connection(self) -> Connection:
        """The door's end of a connection."""
        return Connection(self.table, self._settings, self)

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            self._server.close()
        if self._idle_task is not None:
            self._idle_task.cancel()
            await asyncio.gather(self._idle_task, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(IDLE_CHECK_S, self._settings.idle_s, self._settings.login_s))
            now_s = self.now_s()
            for connection in [each for each in self._connections if self._is_over(each, now_s)]:
                connection.close()

    def _is_over(self, connection: Connection, now_s: float) -> bool:
        if connection.active_s < now_s - self._settings.idle_s:
            return True
        # A connection that does not log in takes a place from those that do. Once in, a token's end is the next
        # request's matter.
        is_late = connection.opened_s < now_s - self._settings.login_s
        return is_late and not connection.context.is_known and not self.is_allowed(connection.context)

    # What a connection asks

    def joined(self, connection: Connection) -> bool:
        if len(self._connections) >= self._connections_max:
            logger.warning("kafka.connection_refused", extra={"expected": f"at most {self._connections_max}"})
            return False
        connection.opened_s = connection.active_s = self.now_s()
        self._connections.add(connection)
        return True

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def may_ask(self, context: Context) -> bool:
        return self.is_allowed(context)

    def charge_ms(self, entry: Entry, context: Context, in_bytes: int, out_bytes: int) -> int:
        return 0 if self.throttle is None else self.throttle.charge_ms(entry, context, in_bytes, out_bytes)
