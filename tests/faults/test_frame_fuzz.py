"""A seeded fuzzer of WebSocket frames: whatever comes, the server lives, others are served, and nothing wrong is taken.

`make soak` runs it for longer (FUZZ_S), from another seed (SEED). A failure prints its seed.
"""

import asyncio
import base64
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zstandard

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from tests.harness.cdcwire import Wire

CONFIG = Config(
    server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), log=LogConfig(flush_interval_s=1000)
)
TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
PARALLEL = 8
FRAMES_PER_CONNECTION_MAX = 12
# The gateway may grow by its buffers and caches, not with what it is sent.
GROWTH_BYTES_MAX = 256 * 1024 * 1024
_NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 2**53, 2**63, 2**64 - 1, 1e308, -0.0, "", "\x00", "é" * 50, "x" * 5_000, [], {}, [[[[]]]],
    {"": {"": ""}}, "cdc_batch", b"\xff\xfe",
)  # fmt: skip


def frame(rng: random.Random, opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    """One frame of a client, right but for what chance says."""
    wrong = rng.random()
    first = (0x80 if fin else 0) | opcode
    if wrong < 0.03:
        first |= rng.choice((0x10, 0x20, 0x40, 0x70))
    length = len(data)
    if wrong > 0.97:
        # A length that is not that of what follows.
        length = rng.choice((0, length + rng.randrange(1, 50), 2**16, 2**31, 2**62))
    mask = rng.randbytes(4)
    masked = 0x80 if wrong < 0.05 or wrong > 0.06 else 0
    if length < 126:
        head = struct.pack("!BB", first, masked | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", first, masked | 126, length)
    else:
        head = struct.pack("!BBQ", first, masked | 127, length)
    if not masked:
        return head + data
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def message(rng: random.Random) -> dict[str, Any]:
    """A message of the protocol with some of its parts replaced."""
    event: dict[str, Any] = {
        "operation": rng.choice(("INSERT", "UPDATE", "DELETE", "READ", "UPSERT")),
        "table": rng.choice(("fuzz", "fuzz.more", "a/b", "x_history")),
        "rowId": rng.choice(("k", 5, "")),
        "after": {"a": rng.choice(_NASTY)},
        "sequence": rng.randrange(10),
        "timestamp": 1,
    }
    whole: dict[str, Any] = {
        "type": rng.choice(("cdc_batch", "cdc_batch", "connect", "heartbeat", "disconnect", "nonsense")),
        "sourceDoId": f"fuzz-{rng.randrange(20)}",
        "sequenceNumber": rng.randrange(1_000_000),
        "events": [event] * rng.randrange(4),
        "capabilities": {"binaryProtocol": rng.random() < 0.5},
        "correlationId": "c",
    }
    for _ in range(rng.randrange(3)):
        target = rng.choice((whole, event))
        target[rng.choice((*target, "more"))] = rng.choice(_NASTY)
    return whole


def payload(rng: random.Random) -> bytes:
    """Bytes for a data frame: a message in some encoding, often broken."""
    kind = rng.randrange(6)
    if kind == 0:
        data = rng.randbytes(rng.randrange(200))
    elif kind in (1, 2):
        data = json.dumps(message(rng), default=str).encode()
    else:
        data = msgspec.msgpack.encode(message(rng))
    if rng.random() < 0.3 and data:
        place = rng.randrange(len(data))
        data = data[:place] + rng.randbytes(rng.randrange(4)) + data[place + rng.randrange(3) :]
    if rng.random() < 0.25:
        data = zstandard.ZstdCompressor(write_content_size=rng.random() < 0.5).compress(data)
        if rng.random() < 0.5:
            place = rng.randrange(len(data))
            data = data[:place] + rng.randbytes(1) + data[place + 1 :]
    return data


def frames(rng: random.Random) -> bytes:
    """One message or control frame, perhaps in pieces."""
    kind = rng.random()
    if kind < 0.08:
        size = rng.choice((0, 5, 125, 126, 300))
        return frame(rng, rng.choice((PING, PONG)), rng.randbytes(size))
    if kind < 0.1:
        return frame(rng, CLOSE, rng.choice((b"", b"\x03", struct.pack("!H", rng.randrange(6000)) + b"\xff")))
    if kind < 0.13:
        return frame(rng, rng.choice((3, 7, 11, 15, CONTINUATION)), rng.randbytes(10))
    data = payload(rng)
    opcode = rng.choice((TEXT, BINARY, BINARY))
    if kind > 0.85 and len(data) > 3:
        cut = rng.randrange(1, len(data))
        between = frame(rng, PING, b"x") if rng.random() < 0.5 else b""
        tail = rng.choice((CONTINUATION, CONTINUATION, opcode))
        return frame(rng, opcode, data[:cut], fin=False) + between + frame(rng, tail, data[cut:])
    return frame(rng, opcode, data)


async def attack(rng: random.Random, port: int) -> None:
    """One connection: a handshake, some frames, and an end, with or without a goodbye."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        key = base64.b64encode(rng.randbytes(16)).decode()
        deflate = "Sec-WebSocket-Extensions: permessage-deflate\r\n" if rng.random() < 0.3 else ""
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{deflate}"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(rng.randrange(1, FRAMES_PER_CONNECTION_MAX)):
            data = frames(rng)
            if rng.random() < 0.05:
                data = data[: rng.randrange(len(data) + 1)]
            writer.write(data)
            await writer.drain()
        if rng.random() < 0.5:
            # Hear what it says to that, as long as it says anything.
            async with asyncio.timeout(0.2):
                while await reader.read(65_536):
                    pass
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.transport.abort() if rng.random() < 0.5 else writer.close()


async def attack_until(rng: random.Random, port: int, until_s: float) -> int:
    count = 0
    while asyncio.get_running_loop().time() < until_s:
        await attack(rng, port)
        count += 1
    return count


async def fuzz(folder: Path, seed: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    async with ServerProcess(folder, CONFIG) as server:
        process = psutil.Process(server.pid)
        async with Wire(server.ws_url) as polite:
            await polite.greet("polite")
            before = process.memory_info().rss
            until_s = loop.time() + seconds
            port = int(server.url.rsplit(":", 1)[1])
            attackers = [
                asyncio.create_task(attack_until(random.Random(f"{seed}/{number}"), port, until_s))
                for number in range(PARALLEL)
            ]
            number = 0
            while not all(attacker.done() for attacker in attackers):
                number += 1
                event = {"operation": "INSERT", "table": "polite", "rowId": str(number), "after": {"n": number}}
                batch = {"type": "cdc_batch", "sourceDoId": "polite", "sequenceNumber": number, "events": [event]}
                ack = await polite.ask(batch)
                assert (ack["type"], ack["sequenceNumber"]) == ("ack", number), ack
                await asyncio.sleep(0.01)
            count = sum(await asyncio.gather(*attackers))
            print(f"seed {seed}: {count} connections, {number} batches of the polite one meanwhile")
            assert count > PARALLEL and number > 10
            # Every connection of the attack ends: those that were left open are found out by the server's pings.
            hello = await polite.greet("polite", lastAckSequence=0)
            assert (hello["sequenceNumber"], hello["resumeFrom"]) == (number, number + 1)
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX
        log = (folder / "gateway.log").read_text(errors="replace")
        assert "could not be served" not in log
        assert "Exception in" not in log and "Task exception" not in log, log[-4000:]
    # What was taken is whole: the log opens again, and everything in it can be sealed.
    async with ServerProcess(folder, CONFIG) as server:
        flushed = await server.flush(timeout_s=1)
        assert flushed["position"] >= number


async def test_frames_at_random_for_some_seconds(tmp_path: Path) -> None:
    await fuzz(tmp_path, seed=20_261_116, seconds=6)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_frames_at_random_for_longer(tmp_path: Path) -> None:
    await fuzz(tmp_path, int(os.environ.get("SEED", "1")), float(os.environ.get("FUZZ_S", "600")))
