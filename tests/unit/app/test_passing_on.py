"""Connections that one gateway passes on to another, over real sockets: only who leads is made up."""

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
import trustme

from mainstem.app.config import Config, PeersConfig, ServerConfig
from mainstem.app.passing.forward import Forwarder
from mainstem.app.passing.listening import HTTP, Doors
from mainstem.app.passing.receive import Entrance, Receiver
from mainstem.app.process import reserve_port
from mainstem.log.kafka.records import Peer
from mainstem.log.kafka.standby import Lead
from mainstem.wire.passing import TOLD, Passed, encode

CONFIG = Config(server=ServerConfig(port=0))
PIECE = b"x" * (1 << 20)


class Echo(asyncio.Protocol):
    """A door that answers what it hears, and then whose connection it is; the answer to the end is the end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.says: list[Any] = []
        self.heard = 0
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.says = [transport.get_extra_info(name) for name in ("peername", "sockname", TOLD)]

    def data_received(self, data: bytes) -> None:
        self.heard += len(data)
        self.transport.write(data)

    def eof_received(self) -> bool:
        self.transport.write(b"|end")
        self.transport.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


class Lazy(Echo):
    """It reads nothing until it is told to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()


class Leader:
    """A gateway that leads, with one door."""

    def __init__(self, receiver: Receiver, made: list[Echo]) -> None:
        assert receiver.peer is not None
        self.receiver, self.peer, self.made = receiver, receiver.peer, made


@asynccontextmanager
async def leader(
    door: Callable[[], Echo] = Echo,
    *,
    is_open: bool = False,
    config: Config = CONFIG,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Leader]:
    receiver, made = await Receiver.listen(config, 0.0), list[Echo]()

    def enter() -> Echo:
        made.append(door())
        return made[-1]

    running = asyncio.create_task(receiver.run({HTTP: Entrance(enter, tls, is_open)}, []))
    yield Leader(receiver, made)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for each in made:
        if each.says and not each.gone.is_set():
            each.transport.abort()


class Standing:
    """A gateway that stands by, until it is told that its turn has come."""

    def __init__(self, config: Config = CONFIG, hold_s_max: float = 60.0) -> None:
        self.doors = Doors(config)
        self.forwarder = Forwarder(config, self.doors, hold_s_max)
        self.turn = asyncio.Event()
        self.ended: asyncio.Task[tuple[bool, list[tuple[str, socket.socket]]]]

    async def __aenter__(self) -> "Standing":
        async def wait() -> bool:
            return await self.turn.wait()

        self.ended = asyncio.create_task(self.forwarder.until(wait()))
        while HTTP not in self.doors.listeners:
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.turn.set()
        await self.ended
        for each in self.doors.listeners.values():
            each.close()

    def follow(self, peer: Peer | None, claim: int = 1) -> None:
        self.forwarder.follow(None if peer is None else Lead(claim, "somebody", peer))

    async def connect(self, **tls: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.doors.listeners[HTTP].getsockname(), **tls)


async def test_bytes_pass_both_ways_and_the_door_sees_whose_they_are() -> None:
    async with leader() as one, Standing() as by:
        by.follow(one.peer)
        reader, writer = await by.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        client, here = writer.get_extra_info("sockname"), by.doors.listeners[HTTP].getsockname()
        assert one.made[0].says == [client, here, here]
        # The client has nothing more to say, and still hears the answer.
        writer.write_eof()
        assert await reader.read() == b"|end"
        assert one.receiver.received == 1
        writer.close()


async def test_the_certificate_is_the_leaders() -> None:
    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("lake.example").configure_cert(ours)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    async with leader(tls=ours) as one, Standing() as by:
        by.follow(one.peer)
        reader, writer = await by.connect(ssl=theirs, server_hostname="lake.example")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert one.made[0].says[0] == writer.get_extra_info("sockname")
        writer.close()
        # Who speaks no TLS gets nowhere, and harms nobody.
        reader, writer = await by.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()
        assert [each.heard for each in one.made if each.says] == [5]
        writer.close()


async def test_no_more_is_read_than_the_door_takes_and_nothing_is_lost() -> None:
    async with leader(Lazy) as one, Standing() as by:
        by.follow(one.peer)
        reader, writer = await by.connect()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(64):
                writer.write(PIECE)
                await writer.drain()
                sent += len(PIECE)
            writer.write_eof()

        sending = asyncio.create_task(send())
        done, _ = await asyncio.wait([sending], timeout=1.0)
        # What the system keeps for the four sockets is less.
        assert not done and sent < 48 << 20
        one.made[0].transport.resume_reading()
        answer = await reader.read()
        await sending
        assert len(answer) == (64 << 20) + 4
        assert hashlib.sha256(answer).digest() == hashlib.sha256(PIECE * 64 + b"|end").digest()
        writer.close()


async def test_a_connection_ends_when_either_end_does_or_another_leads() -> None:
    async with leader() as one, leader() as two, Standing() as by:
        by.follow(one.peer)
        readers = []
        for number in range(3):
            reader, writer = await by.connect()
            writer.write(b"hello")
            await reader.readexactly(5)
            readers.append((reader, writer))
            assert len(one.made) == number + 1
        one.made[0].transport.abort()
        with suppress(ConnectionError):
            assert await readers[0][0].read() == b""
        readers[1][1].transport.abort()
        await one.made[1].gone.wait()
        # The same leader began another term: nobody notices.
        by.follow(one.peer, claim=2)
        readers[2][1].write(b"again")
        assert await readers[2][0].readexactly(5) == b"again"
        by.follow(two.peer, claim=3)
        with suppress(ConnectionError):
            assert await readers[2][0].read() == b""
        await one.made[2].gone.wait()
        reader, writer = await by.connect()
        writer.write(b"hello")
        await reader.readexactly(5)
        assert (len(one.made), len(two.made)) == (3, 1)
        for _, each in (*readers, (reader, writer)):
            each.close()


async def test_who_comes_while_nobody_leads_is_served_by_whoever_does_then() -> None:
    async with leader() as one, Standing() as by:
        reader, writer = await by.connect()
        writer.write(b"hello")
        await writer.drain()
        by.follow(one.peer)
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_who_could_not_be_passed_on_is_served_here_when_it_is_our_turn() -> None:
    with reserve_port("127.0.0.1") as nobody:
        gone = Peer(f"127.0.0.1:{nobody.getsockname()[1]}", bytes(16))
        async with Standing() as by:
            by.follow(gone)
            reader, writer = await by.connect()
            writer.write(b"hello")
            while not by.forwarder._connections:
                await asyncio.sleep(0)
            by.turn.set()
            is_ours, waiting = await by.ended
            assert is_ours and [door for door, _ in waiting] == [HTTP]
            receiver = Receiver(None, None)
            await receiver.run({HTTP: Entrance(Echo, None, is_open=True)}, waiting)
            assert await reader.readexactly(5) == b"hello"
            writer.close()


async def test_a_leader_that_cannot_be_reached_is_told_of() -> None:
    with reserve_port("127.0.0.1") as nobody:
        at = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with Standing(hold_s_max=0.0) as by:
            by.follow(Peer(at, bytes(16)))
            reader, writer = await by.connect()
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
            assert b"leader_unreachable" in answer and at.encode() in answer
            writer.close()


async def test_connections_are_bounded() -> None:
    config = msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, connections_max=1))
    async with leader() as one, Standing(config) as by:
        by.follow(one.peer)
        reader, writer = await by.connect()
        writer.write(b"hello")
        await reader.readexactly(5)
        refused, more = await by.connect()
        assert b"too many connections" in await refused.read()
        writer.close()
        more.close()


async def test_only_who_knows_the_leaders_secret_is_let_in() -> None:
    """So a gateway that takes another for the leader is closed on, and nothing goes in circles."""
    async with leader() as one, Standing() as by:
        by.follow(Peer(one.peer.at, bytes(16)))
        reader, writer = await by.connect()
        writer.write(b"hello")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        assert one.made == []
        writer.close()


async def test_a_door_that_asks_for_no_token_takes_nobody_from_beyond_this_machine() -> None:
    async with leader(is_open=True) as one:
        for client, is_let_in in (("203.0.113.9", False), ("127.0.0.1", True)):
            reader, writer = await asyncio.open_connection(*one.peer.at.split(":"))
            passed = Passed(door=HTTP, client=(client, 1), came_to=("10.0.0.1", 2), told=("b", 3))
            writer.write(encode(one.peer.secret, passed) + b"hello")
            with suppress(ConnectionError):
                assert (await reader.read(5) == b"hello") is is_let_in
            writer.close()
        assert [each.says[0] for each in one.made] == [("127.0.0.1", 1)]


async def test_a_gateway_may_take_nothing_that_others_pass_on() -> None:
    receiver = await Receiver.listen(msgspec.structs.replace(CONFIG, peers=PeersConfig(port=-1)), 0.0)
    assert receiver.peer is None


@pytest.mark.parametrize(
    ("host", "advertise", "at"),
    [
        ("127.0.0.1", "", "127.0.0.1:PORT"),
        ("127.0.0.1", "gateway-0.example", "gateway-0.example:PORT"),
        ("127.0.0.1", "gateway-0.example:700", "gateway-0.example:700"),
        ("127.0.0.1", "[fd00::1]:700", "[fd00::1]:700"),
        ("127.0.0.1", "fd00::1", "fd00::1:PORT"),
        # All addresses: the one by which the brokers are reached.
        ("0.0.0.0", "", "127.0.0.1:PORT"),
    ],
)
async def test_others_are_told_where_to_connect(host: str, advertise: str, at: str) -> None:
    log = msgspec.structs.replace(CONFIG.log, bootstrap_servers="127.0.0.1:9092")
    config = Config(server=ServerConfig(host=host, port=0), log=log, peers=PeersConfig(advertise=advertise))
    async with leader(config=config) as one:
        assert one.receiver._listener is not None
        assert one.peer.at == at.replace("PORT", str(one.receiver._listener.getsockname()[1]))
