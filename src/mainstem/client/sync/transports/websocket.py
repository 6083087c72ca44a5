"""Sync over one WebSocket: requests are answered in their order, and changes of others come by themselves.

Connects when first used and, after a loss, with the next request. Checkpoints come over HTTP.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from mainstem.client.sync.errors import ClockDrift, CursorExpired, Refused, Unreachable
from mainstem.client.sync.signal import Signal
from mainstem.client.sync.transports.http import HttpTransport, decoded, server_clock
from mainstem.client.sync.transports.transport import FEATURES, TIMEOUT_S, LiveListener, TokenSource, token_of
from mainstem.model.errors import Denied, MainstemError, Overloaded
from mainstem.runtime.clock import Clock
from mainstem.wire.sync import SyncPull, SyncPush, SyncResponse, encode_request
from mainstem.wire.sync.frames import BROADCAST, SUBPROTOCOL, Close

FRAME_BYTES_MAX = 32 * 1024 * 1024
_UNREACHABLE = (OSError, WebSocketException, TimeoutError)
_DENIALS = frozenset((401, 403))


class WebSocketTransport:
    """A gateway that tells of changes as they happen. `token` as in `HttpTransport`."""

    def __init__(
        self,
        base_url: str,
        gateway: str,
        *,
        token: TokenSource = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        base = base_url.rstrip("/").replace("http", "ws", 1)
        self._url = f"{base}/sync/{quote(gateway, safe='')}/ws?features={FEATURES}"
        self._token = token
        self._timeout_s = timeout_s
        self._http = HttpTransport(base_url, gateway, token=token, timeout_s=timeout_s, clock=clock)
        self._heard: Signal[SyncResponse] = Signal()
        self._lost: Signal[None] = Signal()
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def push(self, push: SyncPush) -> SyncResponse:
        return await self._exchange(encode_request(push))

    async def pull(self, pull: SyncPull) -> SyncResponse:
        return await self._exchange(encode_request(pull))

    async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
        return await self._http.checkpoint(client_id)

    def subscribe(self, listener: LiveListener) -> Callable[[], None] | None:
        stops = (self._heard.connect(listener.broadcast), self._lost.connect(lambda _: listener.lost()))

        def stop() -> None:
            for each in stops:
                each()

        return stop

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        await self._http.close()

    async def _exchange(self, frame: bytes) -> SyncResponse:
        # One that gives up on a request closes the connection: no later reply could be told apart.
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                return await connection.request(frame)
        except TimeoutError as error:
            await self._abandon()
            raise Unreachable(f"no answer within {self._timeout_s} s") from error
        except asyncio.CancelledError:
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._open()
            return self._connection

    async def _open(self) -> "_Connection":
        token = await token_of(self._token)
        try:
            socket = await connect(
                self._url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                max_size=FRAME_BYTES_MAX,
                open_timeout=self._timeout_s,
                close_timeout=1.0,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status in _DENIALS:
                raise Denied(f"the connection was refused. got={status}") from error
            raise Unreachable(f"no connection. got={status}") from error
        except _UNREACHABLE as error:
            raise Unreachable(f"no connection. got={error!r}") from error
        return _Connection(socket, self._heard.emit, lambda: self._lost.emit(None))


class _Connection:
    """An open socket: requests go out in order, and each reply belongs to the oldest request that has none yet."""

    def __init__(
        self, socket: ClientConnection, hear: Callable[[SyncResponse], None], lost: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._hear = hear
        self._lost = lost
        self._waiting: deque[asyncio.Future[SyncResponse]] = deque()
        self.closed = False
        self._reader = asyncio.create_task(self._read(), name="mainstem-sync-socket")

    async def request(self, frame: bytes) -> SyncResponse:
        """Send, and wait for the reply."""
        if self.closed:
            raise Unreachable("the connection was closed")
        reply: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        with suppress(ConnectionClosed):  # The reader learns why, and tells the reply.
            await self._socket.send(frame)
        return await reply

    async def close(self) -> None:
        """Close, and give up on what has no reply."""
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        with suppress(*_UNREACHABLE):
            await self._socket.close()

    async def _read(self) -> None:
        error: MainstemError = Unreachable("the connection was closed")
        try:
            while True:
                self._take(await self._socket.recv())
        except ConnectionClosed as closed:
            received = closed.rcvd
            if received is not None:
                error = close_error(received.code, received.reason)
        except MainstemError as unreadable:
            error = unreadable
        finally:
            self._end(error)
        await self._socket.close()

    def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, str):
            raise Unreachable("the server sent text")
        if frame[:1] == bytes([BROADCAST]):
            self._hear(decoded(frame[1:]))
            return
        response = decoded(frame)
        if not self._waiting:
            raise Unreachable("the server sent a reply to no request")
        reply = self._waiting.popleft()
        if not reply.done():
            reply.set_result(response)

    def _end(self, error: MainstemError) -> None:
        self.closed = True
        # A refusal is about the oldest request; the outcome of those behind it is unknown.
        for index, reply in enumerate(self._waiting):
            if not reply.done():
                reply.set_exception(error if index == 0 else Unreachable("the connection was closed"))
        self._waiting.clear()
        self._lost()


def close_error(code: int, text: str) -> MainstemError:
    """The close reason's first word says what is wrong; `key=value` words after it say more. Only a refusal with a
    word of the protocol may put a delta aside."""
    reason, *rest = text.split(" ")
    details = dict(word.split("=", 1) for word in rest if "=" in word)
    message = f"the connection was closed. got={code} {text}"
    error: MainstemError = Unreachable(message)
    match code, reason:
        case Close.OVERLOADED, _:
            error = Overloaded(message, retry_after_s=_seconds(details.get("retry_after_s")))
        case Close.TOO_LARGE, _:
            error = Refused("refused: too_large", reason="too_large")
        case Close.REFUSED, "denied":
            error = Denied(message)
        case Close.REFUSED, "cursor_expired":
            error = CursorExpired(message)
        case Close.REFUSED, "clock_drift":
            error = ClockDrift(message, server_hlc=server_clock(details.get("server_hlc")))
        case Close.REFUSED, str() if reason:
            error = Refused(f"refused: {reason}", reason=reason, delta_id=details.get("delta_id"))
    return error


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or ""))
    except ValueError:
        return 1.0
