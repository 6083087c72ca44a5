"""The floor of the crowd's figures: a process that passes each push on to everyone at once, and does nothing else.

No check, no disk, no cursor, no rules: what is left is what a thousand sockets cost on this machine, with this load.
`python -m benchmarks.sync_relay` prints its address.
"""

import asyncio
import sys
from typing import ClassVar, cast

import uvloop

from mainstem.wire.sync.frames import BROADCAST_TAG, PUSH

_REPLY = b"\x82\x00"
_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
_MASKED = 4


class Connection(asyncio.Protocol):
    """One client of the crowd, whose frames are masked with zeros."""

    everyone: ClassVar[set["Connection"]] = set()

    def __init__(self) -> None:
        self._buffer = b""
        self._is_open = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.discard(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            if b"\r\n\r\n" not in self._buffer:
                return
            self._is_open, self._buffer = True, self._buffer.split(b"\r\n\r\n", 1)[1]
            self.transport.write(_SWITCHING)
            self.everyone.add(self)
        while (frame := self._next()) is not None:
            self.transport.write(_REPLY)
            if frame[0] == PUSH:
                payload = BROADCAST_TAG + frame[1:]
                head = b"\x82\x7e" + len(payload).to_bytes(2, "big")
                for other in self.everyone:
                    other.transport.write(head + payload)

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(buffer[2:4], "big"), 4
        start += _MASKED
        if len(buffer) < start + size:
            return None
        self._buffer = buffer[start + size :]
        return buffer[start : start + size]


class Relay:
    """The process: `async with Relay() as url`."""

    _process: asyncio.subprocess.Process

    async def __aenter__(self) -> str:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.sync_relay", stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def __aexit__(self, *exc: object) -> None:
        self._process.terminate()
        await self._process.wait()


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1_000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
