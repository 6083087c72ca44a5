"""Sync within the process: for tests and demos. Messages go through their bytes, so that nothing is shared."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from mainstem.client.sync.transports.transport import LiveListener
from mainstem.wire.sync import (
    SyncPull,
    SyncPush,
    SyncResponse,
    decode_pull,
    decode_push,
    decode_response,
    encode_pull,
    encode_push,
    encode_response,
)

BROADCAST_DELTAS_MAX = 1_000


class LocalGateway(Protocol):
    """A gateway in the same process. It raises what a transport raises."""

    @property
    def newest(self) -> int:
        """The arrival clock of the newest delta; 0 while there is none."""

    def push(self, push: SyncPush) -> SyncResponse: ...

    def pull(self, pull: SyncPull) -> SyncResponse: ...

    def checkpoint(self) -> Iterable[SyncResponse]: ...

    def on_arrival(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call the listener after each push; the answer stops it."""


class LocalTransport:
    """A transport to a gateway in the same process and event loop."""

    def __init__(self, gateway: LocalGateway) -> None:
        self._gateway = gateway
        # How far this client has been told; broadcasts begin once a pull has caught up.
        self._told: int | None = None

    async def push(self, push: SyncPush) -> SyncResponse:
        return _copy(self._gateway.push(decode_push(encode_push(push))))

    async def pull(self, pull: SyncPull) -> SyncResponse:
        response = self._gateway.pull(decode_pull(encode_pull(pull)))
        if not response.has_more:
            self._told = response.server_hlc
        return _copy(response)

    async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
        if self._gateway.newest == 0:
            return None
        return _pieces(list(self._gateway.checkpoint()))

    def subscribe(self, listener: LiveListener) -> Callable[[], None] | None:
        def tell() -> None:
            since = self._told
            if since is None or self._gateway.newest <= since:
                return
            response = _copy(self._gateway.pull(SyncPull(since_hlc=since, max_deltas=BROADCAST_DELTAS_MAX)))
            # More than a broadcast holds: the client pulls when it meets the gap.
            self._told = None if response.has_more else response.server_hlc
            listener.broadcast(response)

        return self._gateway.on_arrival(tell)

    async def close(self) -> None:
        """There is nothing to let go of."""


async def _pieces(pieces: list[SyncResponse]) -> AsyncIterator[SyncResponse]:
    for piece in pieces:
        yield _copy(piece)


def _copy(response: SyncResponse) -> SyncResponse:
    return decode_response(encode_response(response))
