"""Memory per idle connection: thousands of producers that have said who they are and then say nothing.

Beside it the same number of connections on the bare WebSocket server that Mainstem uses, with an application that does
nothing but wait: what is above that is ours.
"""

import asyncio
import base64
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.report import Figure, Report
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.runtime.descriptors import raise_descriptor_limit

SECTION = "idle connections"
CONNECTIONS = 5_000
CONNECTIONS_SMALL = 1_000
# What an idle connection may cost: a tenth of a megabyte would make 5,000 of them half a gigabyte.
KIB_MAX = 64.0
OPENING_AT_ONCE = 64
CONFIG = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
_PING = 0x89

# The server alone, as the gateway runs it.
BARE = """
import asyncio, sys, uvicorn, uvloop
async def app(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)
uvloop.run(Server(uvicorn.Config(app, port=0, lifespan="off", ws="websockets-sansio", log_config=None,
                                 access_log=False)).serve())
"""


class Idle(asyncio.Protocol):
    """A client that says its hello and then only answers pings."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._transport: asyncio.Transport | None = None
        self._upgraded = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\n"
            f"X-Client-ID: idle-{self._number}\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._upgraded:
            if b"\r\n\r\n" in data:
                self._upgraded = True
                self._transport.write(_frame(1, b'{"type":"connect"}'))
                self.ready.set_result(None)
        elif data[0] == _PING:
            self._transport.write(_frame(10, data[2:6]))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"refused: {error}"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


def _frame(opcode: int, data: bytes) -> bytes:
    # A mask of zeros leaves the data as it is.
    return struct.pack("!BB4x", 0x80 | opcode, 0x80 | len(data)) + data


async def hold(port: int, pid: int, connections: int, seconds: float) -> float:
    """Open them, hold them, and say how many bytes each takes in the server."""
    process = psutil.Process(pid)
    # The first ones pay for what all of them share.
    first = await _open(port, 20)
    before = process.memory_info().rss
    opened = await _open(port, connections)
    await asyncio.sleep(seconds)
    after = process.memory_info().rss
    lost = sum(client.lost for client in opened)
    for client in (*first, *opened):
        client.close()
    if lost:
        raise RuntimeError(f"{lost} of {connections} connections were lost while nothing was said")
    return (after - before) / connections


async def _open(port: int, count: int) -> list[Idle]:
    limit = asyncio.Semaphore(OPENING_AT_ONCE)
    loop = asyncio.get_running_loop()

    async def one(number: int) -> Idle:
        async with limit:
            _, client = await loop.create_connection(lambda: Idle(number), "127.0.0.1", port)
            await client.ready
            return client

    return list(await asyncio.gather(*(one(number) for number in range(count))))


async def bare(connections: int, seconds: float) -> float:
    """The floor."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BARE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        return await hold(port, process.pid, connections, seconds)
    finally:
        process.terminate()
        await process.wait()


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Floor, then the real thing."""
    raise_descriptor_limit()
    connections, seconds = (CONNECTIONS_SMALL, 2.0) if small else (CONNECTIONS, 25.0)
    floor_kib = await bare(connections, 2.0) / 1024
    async with ServerProcess(folder / "idle", CONFIG) as server:
        began_s = time.perf_counter()
        each = await hold(int(server.url.rsplit(":", 1)[1]), server.pid, connections, seconds)
        elapsed_s = time.perf_counter() - began_s - seconds
    kib = each / 1024
    report.add(
        SECTION,
        Figure(
            f"memory per idle connection, {connections:,} of them",
            kib,
            "KiB",
            floor_kib,
            "the WebSocket server alone",
            f"<= {KIB_MAX:g} KiB",
            kib <= KIB_MAX,
            f"{kib * connections / 1024:.0f} MiB together; held {seconds:.0f} s, opened in {elapsed_s:.1f} s",
        ),
    )
