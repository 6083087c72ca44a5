"""A gateway on a real socket, in the test's own process, so that a test can break its disk."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from mainstem.app.config import Config, PipelineConfig
from mainstem.app.gateway import Gateway
from mainstem.doors.cdc.ws import SERVER_FRAME_BYTES_MAX
from mainstem.doors.http.quick import QuickProtocol
from mainstem.doors.http.ws_protocol import RawTextProtocol
from mainstem.log.disk import Disk

CONFIG = Config(pipeline=PipelineConfig(enabled=False))


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield


@asynccontextmanager
async def gateway_on_socket(
    data: Path,
    disk: Disk | None = None,
    gateway_config: Config = CONFIG,
    around: Callable[[Any], Any] = lambda app: app,
) -> AsyncIterator[tuple[Gateway, str]]:
    """The gateway and its WebSocket URL. Loopback is a trusted proxy, so X-Forwarded-For names any client address.

    `around` puts something of the test's own around the application.
    """
    gateway = await Gateway.open(gateway_config, data, disk=disk)
    # Said to be TCP: asyncio sends small answers at once (TCP_NODELAY) on such sockets only.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    options = uvicorn.Config(
        around(gateway.app()),
        lifespan="off",
        http=QuickProtocol,
        ws=RawTextProtocol,
        ws_max_size=SERVER_FRAME_BYTES_MAX,
        log_config=None,
    )
    server = _Server(options)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield gateway, f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"
    finally:
        await gateway.close()
        server.should_exit = True
        await serving
