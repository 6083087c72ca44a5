"""A Mongo client for measuring: messages that are made beforehand, over one asyncio connection each.

A driver spends more on a command than a server may. Here a command costs the client a few microseconds, so that what is
measured is the server, and the same for every server.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import urlsplit

import bson
import uvloop
from bson.raw_bson import RawBSONDocument

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
Make = Callable[[int], bytes]


def message(body: dict[str, Any], documents: tuple[str, Iterable[bytes]] | None = None) -> bytes:
    """A command as OP_MSG; `documents` as a section of its own, as drivers send them."""
    payload = struct.pack("<I", 0) + b"\x00" + bson.encode(body)
    if documents is not None:
        name, items = documents
        listed = name.encode() + b"\x00" + b"".join(items)
        payload += b"\x01" + struct.pack("<i", len(listed) + 4) + listed
    return _HEADER.pack(16 + len(payload), 1, 0, _OP_MSG) + payload


class _Client(asyncio.Protocol):
    """One connection that sends one message after another, until its time is over."""

    def __init__(self, make: Make, number: int, count: int, seconds: float) -> None:
        self._make, self._number, self._count = make, number, count
        self._ends_s = time.monotonic() + seconds
        self._buffer = bytearray()
        self._sent_s = 0.0
        self.took_s: list[float] = []
        self.last = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        if len(self.took_s) >= self._count or time.monotonic() > self._ends_s:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        data = self._make(self._number)
        self._number += 1
        self._sent_s = time.perf_counter()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < 4 or len(self._buffer) < struct.unpack_from("<i", self._buffer)[0]:
            return
        self.took_s.append(time.perf_counter() - self._sent_s)
        self.last = bytes(self._buffer)
        self._buffer.clear()
        # Cheap, and every answer is looked at: `ok: 1.0`, and no error of a statement.
        if b"\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f" not in self.last or b"writeErrors" in self.last:
            self.done.set_exception(RuntimeError(f"refused: {reply_of(self.last)}"))
            self._transport.close()
            return
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server went away"))


def reply_of(data: bytes) -> dict[str, Any]:
    """The document of a reply."""
    return bson.decode(data[21:])


class Measured:
    """What clients measured: how often, in how long, and the last answer."""

    def __init__(self, took_s: list[float], seconds: float, last: bytes) -> None:
        self.took_s = took_s
        self.seconds = seconds
        self.last = last

    @property
    def rate(self) -> float:
        """Commands per second, over all clients."""
        return len(self.took_s) / self.seconds

    @property
    def best_ms(self) -> float:
        """The quickest answer."""
        return min(self.took_s) * 1000

    def reply(self) -> dict[str, Any]:
        """The last answer."""
        return reply_of(self.last)


def drive(
    url: str, make: Make | list[Make], *, clients: int = 1, seconds: float = 2.0, count: int = 1 << 40
) -> Measured:
    """Send what `make` makes of 0, 1, 2, … over so many connections, each for so long or so often. Each connection has
    numbers of its own."""
    return uvloop.run(_drive(url, make, clients, seconds, count))


async def _drive(url: str, make: Make | list[Make], clients: int, seconds: float, count: int) -> Measured:
    place = urlsplit(url)
    if place.hostname not in LOOPBACK:
        raise ValueError(f"only loopback is put under load. got={place.hostname}")
    assert place.hostname is not None and place.port is not None
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()
    made = []
    for client in range(clients):
        chosen = make[client] if isinstance(make, list) else make
        _, protocol = await loop.create_connection(
            lambda chosen=chosen, client=client: _Client(chosen, client * 10_000_000, count, seconds),  # type: ignore[misc]
            place.hostname,
            place.port,
        )
        made.append(protocol)
    await asyncio.gather(*[each.done for each in made])
    took_s = [each for protocol in made for each in protocol.took_s]
    return Measured(took_s, time.perf_counter() - began_s, made[0].last)


def raw(documents: Iterable[dict[str, Any]]) -> list[bytes]:
    """Documents as BSON."""
    return [bson.encode(each) for each in documents]


def first_batch(reply: dict[str, Any]) -> list[Any]:
    """The documents of a cursor's first batch."""
    return [dict(each) if isinstance(each, RawBSONDocument) else each for each in reply["cursor"]["firstBatch"]]
