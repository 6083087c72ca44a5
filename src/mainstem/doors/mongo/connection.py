"""One connection: bytes to requests, one command after another, replies to bytes.

The protocol has no interleaving: a connection's requests are answered in order. While one is under way no more than a
few are read ahead; beyond that the socket is left alone until the client's earlier ones are answered.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from mainstem.admission import ANYONE, Principal
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.compression import Compressor
from mainstem.wire.mongo.frames import MESSAGE_BYTES_MAX, BadFrame, Decoder, Request, encode_document, reply
from mainstem.wire.passing import TOLD

if TYPE_CHECKING:
    from mainstem.admission.scram import Exchange
    from mainstem.doors.mongo.server import MongoDoor

logger = logging.getLogger(__name__)

# Requests that wait, and bytes of them: beyond either the socket is left alone.
READ_AHEAD = 16
READ_AHEAD_BYTES_MAX = 16 * 1024 * 1024
# The largest message of one that has not said who it is, where that is asked.
LOGIN_MESSAGE_BYTES_MAX = 512 * 1024


class Connection(asyncio.Protocol):
    """The server's end of one socket."""

    def __init__(self, door: "MongoDoor", number: int) -> None:
        self.door = door
        self.number = number
        self._decoder = Decoder()
        self.principal: Principal | None
        # As of which version of the users the principal is who it is.
        self.users_version: int
        self.log_out()
        # A login that is under way.
        self.exchange: Exchange | None = None
        self.client: dict[str, Any] = {}
        self.compressors: tuple[Compressor, ...] = ()
        self.peer = ""
        self.address = ""
        # What it is to connect to, where it came by another gateway.
        self.told = ""
        self._requests: deque[Request] = deque()
        self._waiting_bytes = 0
        self._woken = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_paused = False
        self._ended = False
        self._replies = 0
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else ""
        host = f"[{here[0]}]" if here and ":" in here[0] else (here[0] if here else "localhost")
        self.address = f"{host}:{here[1]}" if here else host
        if (told := transport.get_extra_info(TOLD)) is not None:
            self.told = f"{told[0]}:{told[1]}"
        if not self.door.enter(self):
            transport.close()
            self._ended = True
            return
        # Not in a task group: it lives as long as the socket, and the door waits for it when it closes.
        self._task = asyncio.create_task(self._run())

    def data_received(self, data: bytes) -> None:
        try:
            requests = self._decoder.feed(data)
        except (BadFrame, Invalid) as error:
            # Nothing after it can be read; what came before is still answered.
            logger.info("a Mongo client sent what is no message: %s", error, extra={"peer": self.peer})
            self._ended = True
            self._woken.set()
            return
        self._requests.extend(requests)
        self._waiting_bytes += sum([request.size_bytes for request in requests])
        if self._requests:
            self._woken.set()
        if not self._is_paused and self._is_ahead(READ_AHEAD, READ_AHEAD_BYTES_MAX):
            self._is_paused = True
            self._transport.pause_reading()

    def _is_ahead(self, requests: int, size: int) -> bool:
        return len(self._requests) > requests or self._waiting_bytes > size

    def eof_received(self) -> bool:
        self._ended = True
        self._woken.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._can_write.set()
        self._woken.set()
        if hasattr(self, "_task"):
            self._task.cancel()
        self.door.leave(self)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    # What the door calls

    def log_in(self, principal: Principal) -> None:
        """From now on it is somebody's."""
        self.principal, self.users_version = principal, self.door.users.version
        self._decoder.message_bytes_max = MESSAGE_BYTES_MAX

    def log_out(self) -> None:
        """It has no user again; where no login is asked for, it needs none."""
        self.principal, self.users_version = None if self.door.asks_for_login else ANYONE, self.door.users.version
        self._decoder.message_bytes_max = MESSAGE_BYTES_MAX if self.principal else LOGIN_MESSAGE_BYTES_MAX

    def look_up(self) -> None:
        """Users changed: find out who it is now. Where that user is gone, it has none."""
        if self.principal is not None and self.principal.is_authenticated:
            found = self.door.users.find(self.principal.sub, self.users_version)
            if found is None:
                self.log_out()
            else:
                self.principal = found
        self.users_version = self.door.users.version

    def close(self) -> None:
        """Let go of the socket once what is under way is answered."""
        self._ended = True
        self._woken.set()

    def kill(self) -> None:
        """Let go of the socket now. What is under way is cancelled; a write on its way to the log gets there."""
        self._transport.abort()

    async def _run(self) -> None:
        try:
            while True:
                while not self._requests:
                    if self._ended:
                        return
                    self._woken.clear()
                    await self._woken.wait()
                request = self._requests.popleft()
                self._waiting_bytes -= request.size_bytes
                if self._is_paused and not self._is_ahead(READ_AHEAD // 2, READ_AHEAD_BYTES_MAX // 2):
                    self._is_paused = False
                    self._transport.resume_reading()
                await self._answer(request)
        # The task's edge: one connection's trouble is its own.
        except Exception:
            logger.exception("a Mongo connection failed", extra={"peer": self.peer})
        finally:
            self._transport.close()

    async def _answer(self, request: Request) -> None:
        while True:
            body, again = await self.door.answer(self, request)
            if request.more_to_come:
                # The client does not read an answer.
                return
            if self._transport.is_closing():
                return
            more = again and request.exhaust_allowed
            self._replies += 1
            data = body if isinstance(body, bytes) else encode_document(body)
            self._transport.write(reply(request, data, self._replies, more_to_come=more))
            if not self._can_write.is_set():
                # A slow reader holds one reply, and does not delay others.
                await self._can_write.wait()
            if not more or self._ended:
                return
