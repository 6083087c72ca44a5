"""Many sync clients in one process, as cheap as can be: the load must not be what is measured."""

import asyncio
import os
import random
import re
import time
from base64 import b64encode
from collections.abc import Callable
from urllib.parse import urlsplit

from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from mainstem.wire.sync.frames import BROADCAST

# One reader in so many looks into what it is sent; the others only count.
SAMPLED = 20
CONNECT_AT_ONCE = 50
_SENT = re.compile(rb'"t(\d+)"').finditer


class Socket(asyncio.Protocol):
    """A WebSocket's frames, without extensions. Frames are masked with zeros, which costs nothing."""

    def __init__(self, on_frame: Callable[["Socket", bytes], None]) -> None:
        self._on_frame = on_frame
        self._buffer = b""
        self._open = asyncio.get_running_loop().create_future()
        self._waiting: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def handshake(self, host: str, path: str) -> None:
        """Ask for a WebSocket."""
        key = b64encode(os.urandom(16)).decode()
        self.transport.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await self._open

    def send(self, payload: bytes) -> None:
        """A binary frame."""
        size = len(payload)
        head = bytes([0x82, 0x80 | size]) if size < 126 else bytes([0x82, 0xFE]) + size.to_bytes(2, "big")
        self.transport.write(head + b"\0\0\0\0" + payload)

    async def ask(self, payload: bytes) -> bytes:
        """Send, and wait for the reply; broadcasts in between are not replies."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.send(payload)
        return await self._waiting

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        if not self._open.done():
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = buffer
                return
            assert b" 101 " in buffer[:20], buffer[:80]
            self._open.set_result(None)
            buffer = buffer[end + 4 :]
        offset = 0
        while len(buffer) - offset >= 2:
            size, start = buffer[offset + 1], offset + 2
            if size == 126:
                size, start = int.from_bytes(buffer[offset + 2 : offset + 4], "big"), offset + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[offset + 2 : offset + 10], "big"), offset + 10
            if len(buffer) < start + size:
                break
            if buffer[offset] & 0x0F == 0x02:
                self._frame(buffer[start : start + size])
            offset = start + size
        self._buffer = buffer[offset:]

    def _frame(self, payload: bytes) -> None:
        if payload[:1] == bytes([BROADCAST]):
            self._on_frame(self, payload)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(payload)


class Sockets:
    """A crowd on one gateway."""

    def __init__(self, url: str, gateway: str) -> None:
        self._host = urlsplit(url)
        self._gateway = gateway
        self._sockets: list[Socket] = []
        self._sampled: set[int] = set()
        self._latencies_ms: list[float] = []
        self.received = 0

    async def connect(self, count: int) -> None:
        """Connect, pull to the end, listen."""
        for start in range(0, count, CONNECT_AT_ONCE):
            await asyncio.gather(*(self._join(number) for number in range(start, min(count, start + CONNECT_AT_ONCE))))

    async def _join(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._host.hostname or "", self._host.port or 80
        _, socket = await loop.create_connection(lambda: Socket(self._on_frame), host, port)
        await socket.handshake(self._host.netloc, f"/sync/{self._gateway}/ws")
        await socket.ask(sync.encode_request(sync.SyncPull(client_id=f"c{number}")))
        self._sockets.append(socket)
        if number % SAMPLED == 0:
            self._sampled.add(id(socket))

    def _on_frame(self, socket: Socket, payload: bytes) -> None:
        self.received += 1
        if id(socket) in self._sampled:
            now_ns = time.perf_counter_ns()
            self._latencies_ms += [(now_ns - int(found[1])) / 1e6 for found in _SENT(payload)]

    async def edit(self, writers: int, edits_per_s: float, seconds: float) -> list[float]:
        """Let some of them write for a while; the latencies that the sampled ones saw."""
        chance = random.Random(1)
        self.received = 0
        # Some that listen in the sample, and others that write.
        await asyncio.gather(
            *(
                self._write(index, socket, 1 / edits_per_s, seconds, chance.random())
                for index, socket in enumerate(self._sockets[-writers:])
            )
        )
        return self._latencies_ms

    async def _write(self, index: int, socket: Socket, every_s: float, seconds: float, phase: float) -> None:
        client = f"c{index}"
        end_s = time.perf_counter() + seconds
        await asyncio.sleep(phase * every_s)
        number = 0
        while time.perf_counter() < end_s:
            number += 1
            columns = (sync.ColumnDelta("text", b'"t%d"' % time.perf_counter_ns()),)
            hlc = pack(SystemClock().now_ms(), number)
            name = sync.delta_id(table="notes", row_id=client, columns=columns, hlc=hlc, client_id=client)
            delta = sync.RowDelta(
                op=sync.Op.UPDATE,
                table="notes",
                row_id=client,
                columns=columns,
                hlc=hlc,
                client_id=client,
                delta_id=name,
            )
            began_s = time.perf_counter()
            await socket.ask(sync.encode_request(sync.SyncPush(client_id=client, deltas=[delta])))
            await asyncio.sleep(max(0.0, every_s - (time.perf_counter() - began_s)))

    async def close(self) -> None:
        """Leave."""
        for socket in self._sockets:
            socket.transport.close()
        await asyncio.sleep(0)
