"""While a gateway stands by: each connection that comes to it is passed on, byte by byte, to the gateway that leads.

It decides nothing and reads nothing: doors, limits, tokens and certificates are the leader's. A connection ends when
its leader ends or another one leads, and its client connects again. Where one could not be passed on yet when this
gateway becomes the leader itself, nothing of it was read: its own doors take it, and the client notices nothing.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.app.config import Config
from mainstem.app.passing.listening import HTTP, KAFKA, MONGO, Doors, Taken
from mainstem.doors.http.refusals import ErrorAnswer, ErrorBody
from mainstem.wire import passing
from mainstem.wire.passing import Address, Passed

if TYPE_CHECKING:
    from mainstem.log.kafka.records import Peer
    from mainstem.log.kafka.standby import Lead

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 10
CONNECT_S_MAX = 1.0
# So long no client is refused after the leader could be reached last: another one may be about to lead.
HOLD_S_MAX = 5.0
# What a client may take to hear that its connection ends.
LINGER_S_MAX = 1.0
_RETRY_S = 0.1
_ACCEPTS_AT_ONCE = 64


class _Connection:
    """One client's."""

    def __init__(self, door: str, client: socket.socket) -> None:
        self.door = door
        self.client = client
        # Whom it is passed on to, and None before.
        self.peer: Peer | None = None
        self.is_refused = self.is_kept = False
        self.task: asyncio.Task[None]


class Forwarder:
    """Passes on what comes to the doors' sockets. Belongs to the event loop."""

    def __init__(self, config: Config, doors: Doors, hold_s_max: float = HOLD_S_MAX) -> None:
        self._doors = doors
        self._hold_s_max = hold_s_max
        self._connections_max = config.server.connections_max
        # Without a certificate an answer in words can be given.
        self._is_plain = not config.server.tls_cert
        self._told = {KAFKA: config.kafka.advertised, MONGO: config.mongo.advertise}
        self._lead: Lead | None = None
        self._failing_since_s: float | None = None
        self._woken = asyncio.Event()
        self._watched: dict[str, socket.socket] = {}
        self._connections: set[_Connection] = set()

    def follow(self, lead: "Lead | None") -> None:
        """Another one leads, or another part of what is known of it changed."""
        before, self._lead = self._lead, lead
        peer = None if lead is None else lead.peer
        if lead is not None and (before is None or before.peer != lead.peer):
            logger.info("connections are passed on to the gateway that leads. by=%s at=%s", lead.by, lead.peer.at)
            self._failing_since_s = None
        for each in self._connections:
            if each.peer is not None and each.peer != peer:
                each.task.cancel()
        self._woken.set()
        self._watch()

    async def until(self, turn: Coroutine[Any, Any, bool]) -> tuple[bool, list[tuple[str, socket.socket]]]:
        """Pass on until it is our turn. What `turn` returned, and by their doors connections that were not read."""
        try:
            self._open()
        except BaseException:
            turn.close()
            raise
        binding = asyncio.create_task(self._bind())
        try:
            is_ours = await turn
            return is_ours, self._waiting() if is_ours else []
        finally:
            binding.cancel()
            self._unwatch()
            under_way = [each.task for each in self._connections]
            for task in under_way:
                task.cancel()
            await asyncio.gather(binding, *under_way, return_exceptions=True)

    def _waiting(self) -> list[tuple[str, socket.socket]]:
        found = [each for each in self._connections if each.peer is None and not each.is_refused]
        for each in found:
            each.is_kept = True
        return [(each.door, each.client) for each in found]

    def _open(self) -> str | None:
        """Open the doors that are not open; why not all, where another process has a port."""
        try:
            self._doors.open()
        except Taken as error:
            return str(error)
        return None

    async def _bind(self) -> None:
        """A gateway on the same machine may have the same ports: then they are ours when it is gone."""
        if (why := self._open()) is not None:
            logger.warning("not all doors are open yet. %s", why)
        while why is not None:
            await asyncio.sleep(_RETRY_S)
            why = self._open()
            self._watch()

    # Accepting

    def _watch(self) -> None:
        """Accept while somebody leads; before that, clients wait where the system keeps them."""
        if self._lead is None:
            self._unwatch()
            return
        for name, listener in self._doors.listeners.items():
            if name not in self._watched:
                self._watched[name] = listener
                asyncio.get_running_loop().add_reader(listener, self._accept, name, listener)

    def _unwatch(self) -> None:
        for listener in self._watched.values():
            asyncio.get_running_loop().remove_reader(listener)
        self._watched.clear()

    def _accept(self, name: str, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors are left, say: those that wait are taken when there are.
                logger.warning("a connection could not be taken. got=%s", error)
                self._unwatch()
                asyncio.get_running_loop().call_later(_RETRY_S, self._watch)
                return
            _prepare(client)
            connection = _Connection(name, client)
            self._connections.add(connection)
            # Not in a task group: `until` ends and awaits all that are left.
            connection.task = asyncio.create_task(self._serve(connection))

    # One connection

    async def _serve(self, connection: _Connection) -> None:
        try:
            leader = await self._reach(connection)
            if isinstance(leader, str):
                connection.is_refused = True
                await self._refuse(connection, leader)
                return
            with leader:
                await _relay(connection.client, leader)
        except OSError:
            # Either end is gone, and hears so by the other's socket being closed.
            pass
        finally:
            self._connections.discard(connection)
            if not connection.is_kept:
                connection.client.close()

    async def _reach(self, connection: _Connection) -> socket.socket | str:
        """A connection to the leader, which knows whose it is; or why there is none."""
        if len(self._connections) > self._connections_max:
            return f"too many connections are passed on. expected=at most {self._connections_max}"
        passed = self._describe(connection)
        while True:
            self._woken.clear()
            lead, why = self._lead, "no gateway leads yet"
            if lead is not None:
                try:
                    leader = await _connect(lead.peer, passed)
                except (OSError, TimeoutError) as error:
                    why = f"at={lead.peer.at} got={error or type(error).__name__}"
                else:
                    if self._lead is not None and self._lead.peer == lead.peer:
                        self._failing_since_s, connection.peer = None, lead.peer
                        return leader
                    leader.close()
                    continue
                now_s = asyncio.get_running_loop().time()
                if self._failing_since_s is None:
                    self._failing_since_s = now_s
                if now_s - self._failing_since_s >= self._hold_s_max:
                    logger.warning("the gateway that leads cannot be reached. by=%s %s", lead.by, why)
                    return f"the gateway that leads cannot be reached from the one that was asked. {why}"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _RETRY_S)

    def _describe(self, connection: _Connection) -> Passed:
        client, here = connection.client.getpeername(), connection.client.getsockname()
        came_to: Address = (here[0], here[1])
        host, _, port = self._told.get(connection.door, "").rpartition(":")
        told = (host, int(port)) if host and port.isdigit() else came_to
        return Passed(door=connection.door, client=(client[0], client[1]), came_to=came_to, told=told)

    async def _refuse(self, connection: _Connection, why: str) -> None:
        """Say so where the protocol has words for it; the others' clients come back when they are closed on."""
        if connection.door == HTTP and self._is_plain:
            error = ErrorBody(message=why, type="Overloaded", code=503, reason="leader_unreachable")
            body = msgspec.json.encode(ErrorAnswer(error))
            head = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
            kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            await asyncio.get_running_loop().sock_sendall(connection.client, head + kind + body)
        await _end(connection.client)


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    # What is passed on is passed on now, and an end that vanished is found out.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def _connect(peer: "Peer", passed: Passed) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, _, port = peer.at.rpartition(":")
    async with asyncio.timeout(CONNECT_S_MAX):
        found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        leader = socket.socket(family, kind, protocol)
        try:
            _prepare(leader)
            await loop.sock_connect(leader, address)
            await loop.sock_sendall(leader, passing.encode(peer.secret, passed))
        except BaseException:
            leader.close()
            raise
    return leader


async def _relay(client: socket.socket, leader: socket.socket) -> None:
    """Until the leader ends. A client that has said all that it has to say still hears the answer."""
    up = asyncio.create_task(_pump(client, leader))
    try:
        await _pump(leader, client)
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)
    await _end(client)


async def _pump(source: socket.socket, target: socket.socket) -> None:
    """What comes from one goes to the other: no more is read than the other takes, and an end is passed on too."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, CHUNK_BYTES):
            await loop.sock_sendall(target, data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


async def _end(client: socket.socket) -> None:
    """Say that nothing more comes, and let what was said arrive: closing on unread bytes would reset it."""
    with suppress(OSError, TimeoutError):
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LINGER_S_MAX):
            while await asyncio.get_running_loop().sock_recv(client, CHUNK_BYTES):
                pass
