"""A proxy between Kafka's clients and the server that notes what is asked, and what members of groups are told."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.app.process import reserve_port
from mainstem.wire.kafka.frames import Framer, framed, read_head
from mainstem.wire.kafka.messages import decode_response
from tests.harness.kafka import KafkaServer

# The APIs whose answers are read: those that members ask.
_READ = {8: "OffsetCommit", 11: "JoinGroup", 12: "Heartbeat", 14: "SyncGroup", 68: "ConsumerGroupHeartbeat"}
_FRAME_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Told:
    """What clients asked, and how often each (by its `client.id`) was answered what, by which API."""

    # API → versions.
    asked: dict[int, set[int]] = field(default_factory=dict)
    codes: Counter[tuple[str, str, ErrorCode]] = field(default_factory=Counter)

    def count(self, client: str, code: ErrorCode) -> int:
        """Over all APIs. `client` is the beginning of the ids that count."""
        return sum(n for (who, _, what), n in self.codes.items() if who.startswith(client) and what is code)

    def all_of(self, client: str) -> dict[tuple[str, str], int]:
        """Everything that such clients were told."""
        return {(api, str(code.name)): n for (who, api, code), n in self.codes.items() if who.startswith(client)}


@contextmanager
def told_server(folder: Path, **kafka: Any) -> Iterator[tuple[str, Told]]:
    """A server that clients are told to reach by the proxy: where that is, and what it hears."""
    with ExitStack() as stack:
        port = stack.enter_context(reserve_port("127.0.0.1")).getsockname()[1]
        server = KafkaServer(folder, advertised=f"127.0.0.1:{port}", **kafka)
        asyncio.run(server.start())
        stack.callback(lambda: asyncio.run(server.stop()))
        yield f"127.0.0.1:{port}", stack.enter_context(_listening(port, int(server.bootstrap.rpartition(":")[2])))


@contextmanager
def _listening(port: int, server_port: int) -> Iterator[Told]:
    """A proxy on one port of loopback to another, in a thread of its own. What it heard is the answer."""
    told = Told()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stopping = asyncio.Event()

    async def serve() -> None:
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(current := asyncio.current_task())  # type: ignore[arg-type]
            try:
                await _carry(reader, writer, server_port, told)
            except (ConnectionError, asyncio.CancelledError):
                pass
            finally:
                writer.close()
                connections.discard(current)

        server = await asyncio.start_server(accept, "127.0.0.1", port)
        ready.set()
        try:
            await stopping.wait()
        finally:
            server.close()
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield told
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
        loop.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, told: Told) -> None:
    to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
    asked: dict[int, tuple[int, int, str]] = {}

    def on_request(frame: bytes) -> None:
        head = read_head(frame)
        told.asked.setdefault(head.api_key, set()).add(head.version)
        if head.api_key in _READ:
            asked[head.correlation_id] = head.api_key, head.version, head.client_id or ""

    def on_answer(frame: bytes) -> None:
        if (known := asked.pop(int.from_bytes(frame[:4], "big"), None)) is not None:
            api, version, client = known
            for code in set(_codes(decode_response(api, version, frame))):
                told.codes[client, _READ[api], code] += 1

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, to_writer, on_request))
            group.create_task(_pump(to_reader, writer, on_answer))
    except* ConnectionError:
        pass
    finally:
        to_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Any) -> None:
    framer = Framer(_FRAME_BYTES_MAX)
    while data := await reader.read(1 << 16):
        for frame in framer.feed(data):
            hear(frame)
            writer.writelines(framed([frame]))
        await writer.drain()
    # The other direction ends with it.
    raise ConnectionError


def _codes(answer: Any) -> Iterator[ErrorCode]:
    if isinstance(found := getattr(answer, "error_code", None), ErrorCode):
        yield found
    for topic in getattr(answer, "topics", None) or ():
        for part in topic.partitions:
            yield part.error_code
