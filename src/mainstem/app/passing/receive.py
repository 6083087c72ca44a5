"""At the gateway that leads: connections that others pass on enter the door that they are for.

A door sees them as its own: from the client's address, so that limits by address hold, and with the certificate of the
door. Only who knows the secret that this process told in its log is let in; so a gateway that takes an earlier leader,
or one that stands by, for the leader is closed on, and nothing goes in circles.
"""

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from mainstem.app.config import Config
from mainstem.app.passing.listening import is_loopback, listen_soon
from mainstem.log.kafka.records import Peer
from mainstem.model import Denied, Invalid, MainstemError
from mainstem.wire import passing
from mainstem.wire.passing import TOLD, Passed

logger = logging.getLogger(__name__)

# A gateway that connects says at once for whom.
GREETING_S_MAX = 5.0
# Connections that have not said so yet.
GREETINGS_MAX = 1024
_RETRY_S = 0.1


class Entrance(NamedTuple):
    """How a connection enters a door."""

    protocol: Callable[[], asyncio.Protocol]
    tls: ssl.SSLContext | None
    # It asks for no token or password: no connection from another machine may come in.
    is_open: bool


class Receiver:
    """The port for other gateways. It listens from the claim on, and takes connections once the doors are open."""

    def __init__(self, listener: socket.socket | None, peer: Peer | None) -> None:
        self._listener = listener
        self._secret = b"" if peer is None else peer.secret
        self.peer = peer
        # Since the start.
        self.received = 0
        # Connections that have not said whose they are.
        self._greeting = 0

    @classmethod
    async def listen(cls, config: Config, patience_s: float) -> "Receiver":
        """Listen where the configuration says; one that listens nowhere if it says so."""
        if config.peers.port < 0:
            return cls(None, None)
        listener = await listen_soon(config.server.host, config.peers.port, "[peers] port", patience_s)
        at = await asyncio.to_thread(_address, config, listener.getsockname()[1])
        return cls(listener, Peer(at, secrets.token_bytes(16)))

    async def run(self, entrances: Mapping[str, Entrance], waiting: Sequence[tuple[str, socket.socket]]) -> None:
        """Take connections until cancelled: first those that waited here for us to lead."""
        async with asyncio.TaskGroup() as tasks:
            for door, connection in waiting:
                tasks.create_task(_enter(entrances[door], connection, None))
            if self._listener is None:
                return
            with self._listener:
                while True:
                    connection = await self._accept(self._listener)
                    if self._greeting < GREETINGS_MAX:
                        tasks.create_task(self._greet(connection, entrances))
                    else:
                        connection.close()

    @staticmethod
    async def _accept(listener: socket.socket) -> socket.socket:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                # No descriptors are left, say: those that wait are taken when there are.
                logger.warning("a connection could not be taken. got=%s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                return connection

    async def _greet(self, connection: socket.socket, entrances: Mapping[str, Entrance]) -> None:
        try:
            passed = await self._hear(connection)
            entrance = entrances.get(passed.door)
            if entrance is None:
                raise Invalid(f"this gateway has no such door. got={passed.door}")
            if entrance.is_open and not is_loopback(passed.client[0]):
                raise Denied("without authentication clients come from loopback only, also by way of another gateway")
            self.received += 1
            await _enter(entrance, connection, passed)
        except (MainstemError, OSError, TimeoutError) as error:
            logger.warning("a connection that another gateway passed on was refused. got=%s", error or "no greeting")
            connection.close()

    async def _hear(self, connection: socket.socket) -> Passed:
        self._greeting += 1
        try:
            async with asyncio.timeout(GREETING_S_MAX):
                size = passing.check_head(await _read(connection, passing.HEAD_BYTES), self._secret)
                return passing.decode_body(await _read(connection, size))
        finally:
            self._greeting -= 1


async def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes and not one more: those behind them are the door's."""
    found = b""
    while len(found) < size:
        more = await asyncio.get_running_loop().sock_recv(connection, size - len(found))
        if not more:
            raise Invalid("not a connection that a gateway passes on. got=its end")
        found += more
    return found


async def _enter(entrance: Entrance, connection: socket.socket, passed: Passed | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Arrival(entrance.protocol(), passed), connection, ssl=entrance.tls
        )
    # The edge of one connection: it is gone already, say, or its TLS is not one.
    except Exception as error:
        logger.info("a connection ended before it began. got=%s", error)


class _Arrival(asyncio.Protocol):
    """Stands in for a door's protocol until there is a transport, and shows that the client's address."""

    def __init__(self, protocol: asyncio.Protocol, passed: Passed | None) -> None:
        self._protocol = protocol
        self._passed = passed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_protocol(self._protocol)
        shown = transport if self._passed is None else _Transport(transport, self._passed)
        self._protocol.connection_made(cast(asyncio.BaseTransport, shown))


class _Transport:
    """A transport as it is, but for whose it says to be."""

    def __init__(self, transport: asyncio.BaseTransport, passed: Passed) -> None:
        self._transport = transport
        # The socket's own addresses are the two gateways'.
        self._says = {"peername": passed.client, "sockname": passed.came_to, TOLD: passed.told, "socket": None}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._says:
            return self._says[name]
        return self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _address(config: Config, port: int) -> str:
    """Where other gateways reach this one."""
    told = config.peers.advertise
    # An address of IPv6 has colons of its own: with a port it stands in brackets.
    if told.count(":") == 1 or "]:" in told:
        return told
    host = told or config.server.host
    if host in ("0.0.0.0", "::"):
        host = _own_address(config.log.bootstrap_servers)
    return f"{host}:{port}"


def _own_address(brokers: str) -> str:
    """The address of this machine by which it reaches the first of them. Nothing is sent."""
    host, _, port = brokers.partition(",")[0].strip().rpartition(":")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return socket.gethostname()
