"""A TCP proxy that breaks when it is told to: connections are reset, or nothing passes on those that stand or come."""

import asyncio
import socket
import struct
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from mainstem.app.process import reserve_port

_CHUNK_BYTES = 64 * 1024
# Closing with this lingering set sends a reset instead of a goodbye.
_RESET = struct.pack("ii", 1, 0)


class FlakyProxy:
    """In front of one address, in a thread of its own. A context manager; every method may be called from anywhere."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        # Keeps the port while it is at no address.
        self._place = reserve_port("127.0.0.1")
        self._writers: set[asyncio.StreamWriter] = set()
        self._broken = False
        # Set while bytes pass: those of clients, and those that answer them.
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._down.set()
        # Answers that wait to pass.
        self.held = 0
        self.url = ""
        self.resets = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._place.close()

    def break_down(self) -> None:
        """Reset every connection, and those that come until `heal`."""
        self._broken = True
        self.cut()

    def stall(self, *, only_answers: bool = False) -> None:
        """Let nothing pass until `heal`, or no answer, and say nothing: as a network that drops packets."""
        asyncio.run_coroutine_threadsafe(self._stall(only_answers), self._loop).result(60)

    def vanish(self) -> None:
        """Reset every connection, and be at no address until `heal`: who comes is refused by the system."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)

    def heal(self) -> None:
        """Let connections through again, and what has waited in them."""
        asyncio.run_coroutine_threadsafe(self._heal(), self._loop).result(60)

    def cut(self) -> None:
        """Reset the connections that stand now; new ones are let through."""
        self._loop.call_soon_threadsafe(self._reset_all)

    async def _start(self) -> None:
        host, port = self._place.getsockname()
        self._server = await asyncio.start_server(self._serve, host, port)
        self.url = f"http://{host}:{port}"

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._reset_all()
        self._flow()

    async def _heal(self) -> None:
        self._broken = False
        self._flow()
        if self._server is None or not self._server.is_serving():
            await self._start()

    async def _stall(self, only_answers: bool) -> None:
        self._down.clear()
        if not only_answers:
            self._up.clear()

    def _flow(self) -> None:
        self._up.set()
        self._down.set()

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            self._reset(writer)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self.resets += 1
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
        self._writers.discard(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            self._reset(writer)
            return
        try:
            beyond_reader, beyond_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._reset(writer)
            return
        pair = {writer, beyond_writer}
        self._writers |= pair
        try:
            await asyncio.gather(
                self._pump(reader, beyond_writer, self._up), self._pump(beyond_reader, writer, self._down)
            )
        finally:
            for each in pair:
                each.close()
            self._writers -= pair

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._wait(flows)
                writer.write(data)
                await writer.drain()
            await self._wait(flows)
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            # One side is gone: let the other know.
            writer.close()

    async def _wait(self, flows: asyncio.Event) -> None:
        if flows.is_set():
            return
        is_answer = flows is self._down
        self.held += is_answer
        try:
            await flows.wait()
        finally:
            self.held -= is_answer
