"""A raw producer: dicts in and out over a real WebSocket, in any encoding. None of the product's own client code."""

import asyncio
import json
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import zstandard
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

# Every way to write a message: MessagePack or not, zstd or not, the WebSocket's own compression or not.
WAYS = {
    "json": (False, False, False),
    "json+deflate": (False, False, True),
    "json+zstd": (False, True, False),
    "msgpack": (True, False, False),
    "msgpack+zstd": (True, True, False),
}
HEAR_S_MAX = 60.0


class Wire:
    """One connection. `address` is where it seems to come from, as a proxy on this machine would tell."""

    def __init__(
        self, url: str, way: str = "json", *, address: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self._url = url
        self._packed, self._zstd, self._deflate = WAYS[way]
        self._headers = dict(headers or {}) | ({"X-Forwarded-For": address} if address else {})
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        self._socket = await connect(
            self._url,
            compression="deflate" if self._deflate else None,
            max_size=None,
            additional_headers=self._headers,
            open_timeout=HEAR_S_MAX,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._socket is not None
        await self._socket.close()

    async def greet(self, source: str, **more: Any) -> dict[str, Any]:
        """Connect, asking for this way of writing; the answer to it."""
        capabilities = {"binaryProtocol": self._packed, "compression": self._zstd}
        await self.say({"type": "connect", "sourceDoId": source, "capabilities": capabilities, **more})
        answer = await self.hear()
        if answer["type"] == "ack":
            assert (await self.hear())["type"] == "status"
        return answer

    async def say(self, message: dict[str, Any]) -> None:
        """Send one message."""
        data = msgspec.msgpack.encode(message) if self._packed else json.dumps(message).encode()
        await self.say_bytes(zstandard.ZstdCompressor().compress(data) if self._zstd else data)

    async def say_bytes(self, data: bytes) -> None:
        """Send a binary frame as it is."""
        assert self._socket is not None
        await self._socket.send(data)

    async def hear(self) -> dict[str, Any]:
        """The next message, in whatever encoding it comes."""
        assert self._socket is not None
        async with asyncio.timeout(HEAR_S_MAX):
            data = await self._socket.recv()
        message: dict[str, Any] = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
        return message

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message, and hear the next."""
        await self.say(message)
        return await self.hear()

    async def closed(self) -> int | None:
        """Wait for the end; the code that the server closed with."""
        assert self._socket is not None
        with suppress(ConnectionClosed):
            async with asyncio.timeout(HEAR_S_MAX):
                while True:
                    await self._socket.recv()
        return self._socket.close_code
