"""DoLake's own tables, row by row: every reason of a nack, and every limit behind one.

Each row is one promise of its documents, asked of a real server over real sockets. What needs no Spark runs against a
server without its pipeline; the few rows that need tables use the shared one. Where Mainstem differs on purpose, the
row says so and why.
"""

import asyncio
import base64
import itertools
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from websockets.exceptions import ConnectionClosed

from mainstem.admission import RateSettings
from mainstem.app.config import LogConfig
from mainstem.app.process import ServerProcess
from tests.contract.dolake.dolake_messages import ALONE, a_source, an_address, batch, event
from tests.harness.cdcwire import WAYS, Wire
from tests.harness.inprocess import gateway_on_socket


def check_nack(nack: dict[str, Any], reason: str, *, retried: bool) -> None:
    assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", reason, retried), nack
    assert nack["errorMessage"] and isinstance(nack["timestamp"], int)
    if retried:
        assert 100 <= nack["retryDelayMs"] <= 30_000, nack
    else:
        assert "retryDelayMs" not in nack


async def test_invalid_format(server: ServerProcess, way: str) -> None:
    async with Wire(server.ws_url, way) as wire:
        nack = await wire.ask(batch(a_source(), 9, [event(operation="UPSERT")], correlationId="c"))
        check_nack(nack, "invalid_format", retried=False)
        assert (nack["sequenceNumber"], nack["correlationId"]) == (9, "c")


async def test_invalid_sequence(server: ServerProcess, way: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way) as wire:
        await wire.ask(batch(source, 4))
        nack = await wire.ask(batch(source, 4, [event(rowId="another")]))
        check_nack(nack, "invalid_sequence", retried=False)
        assert nack["nextSequence"] == 5


@pytest.mark.parametrize(("reason", "size_max"), [("payload_too_large", 4 << 20), ("event_too_large", 1 << 20)])
async def test_sizes_are_inclusive(server: ServerProcess, way: str, reason: str, size_max: int) -> None:
    """Exactly the maximum passes, one byte more does not. A size is that of the text, whatever carries it."""
    source = a_source()
    events = 5 if reason == "payload_too_large" else 1
    frame = len(msgspec.json.encode([event(after={"x": ""})] * events)) - (0 if events > 1 else 2)
    # The text of an event is counted as sent: this is how msgspec writes it, and so is MessagePack's twin of it.
    sized = [event(after={"x": "y" * ((size_max - frame) // events)}) for _ in range(events)]
    sized[0]["after"]["x"] += "y" * ((size_max - frame) % events)
    over = [dict(each) for each in sized]
    over[0] = event(after={"x": sized[0]["after"]["x"] + "y" * (1 if not WAYS[way][0] else 512)})
    async with RawJson(server.ws_url, way) as wire:
        assert (await wire.ask(batch(source, 1, sized)))["status"] == "ok"
        nack = await wire.ask(batch(source, 2, over))
        check_nack(nack, reason, retried=False)
        assert (nack["maxSize"], nack["sequenceNumber"]) == (size_max, 2)


class RawJson(Wire):
    """JSON without the spaces that Python's own writer puts in."""

    async def say(self, message: dict[str, Any]) -> None:
        if self._packed:
            await super().say(message)
            return
        data = msgspec.json.encode(message)
        if self._zstd:
            data = zstandard.ZstdCompressor().compress(data)
        await self.say_bytes(data)


async def test_a_bomb_of_the_websockets_own_compression_closes_the_connection(server: ServerProcess) -> None:
    async with Wire(server.ws_url, "json+deflate") as wire:
        await wire.say_bytes(bytes(17 << 20))
        assert await wire.closed() == 1009


async def test_a_bomb_of_zstd_is_refused(server: ServerProcess) -> None:
    async with Wire(server.ws_url) as wire:
        await wire.say_bytes(zstandard.ZstdCompressor().compress(bytes(64 << 20)))
        nack = await wire.hear()
        check_nack(nack, "payload_too_large", retried=False)
        assert nack["maxSize"] == 16 << 20


async def test_the_third_oversized_message_closes_the_connection(server: ServerProcess, way: str) -> None:
    large = [event(after={"x": "y" * (1 << 20)})]
    async with Wire(server.ws_url, way) as wire:
        for number in (1, 2):
            check_nack(await wire.ask(batch("large", number, large)), "event_too_large", retried=False)
            assert (await wire.ask(batch(a_source())))["status"] == "ok"
        check_nack(await wire.ask(batch("large", 3, large)), "event_too_large", retried=False)
        assert await wire.closed() == 1008


async def test_rate_limited_by_tokens_and_heartbeats_are_lighter(server: ServerProcess) -> None:
    source = a_source()
    began_s = time.monotonic()
    async with Wire(server.ws_url, address=an_address()) as wire:
        for number in range(1, 121):
            await wire.say(batch(source, number))
        answers = [await wire.hear() for _ in range(120)]
        acks = [answer for answer in answers if answer["type"] == "ack"]
        # The burst passes whole, and what came back meanwhile.
        assert 50 <= len(acks) <= 50 + 10 * (time.monotonic() - began_s)
        assert [ack["sequenceNumber"] for ack in acks[:50]] == list(range(1, 51))
        nacks = [answer for answer in answers if answer["type"] == "nack"]
        check_nack(nacks[0], "rate_limited", retried=True)
        assert {nack["reason"] for nack in nacks} == {"rate_limited"}
        # The last batch may have left less than the tenth of a token that a heartbeat takes. That is back after 10 ms;
        # the token of a batch takes 100.
        heartbeat = {"type": "heartbeat", "sourceDoId": source, "timestamp": 1}
        answer = await wire.ask(heartbeat)
        if answer["type"] == "nack":
            await asyncio.sleep(0.05)
            answer = await wire.ask(heartbeat)
        assert answer["type"] == "status"


async def test_rate_limited_by_messages_per_second(server: ServerProcess) -> None:
    async with Wire(server.ws_url, address=an_address()) as wire:
        for _ in range(160):
            await wire.say({"type": "heartbeat", "sourceDoId": "h", "timestamp": 1})
        answers = [await wire.hear() for _ in range(160)]
        assert [answer["type"] for answer in answers[:100]] == ["status"] * 100
        nacks = [answer for answer in answers if answer["type"] == "nack"]
        if nacks:
            check_nack(nacks[0], "rate_limited", retried=True)


async def test_a_producer_that_waits_as_suggested_is_never_refused(server: ServerProcess) -> None:
    source = a_source()
    async with Wire(server.ws_url, address=an_address()) as wire:
        for number in range(1, 61):
            ack = await wire.ask(batch(source, number))
            assert ack["type"] == "ack", ack
            await asyncio.sleep(ack["details"].get("suggestedDelayMs", 0) / 1000)


async def test_connection_limit_per_source(server: ServerProcess) -> None:
    source, address = a_source(), an_address()
    async with AsyncStack() as stack:
        for _ in range(5):
            wire = await stack.enter(Wire(server.ws_url, address=address))
            assert (await wire.greet(source))["type"] == "ack"
        sixth = await stack.enter(Wire(server.ws_url, address=address))
        check_nack(await sixth.greet(source), "connection_limit", retried=True)
        by_header = await stack.enter(Wire(server.ws_url, address=address, headers={"X-Client-ID": source}))
        check_nack(await by_header.hear(), "connection_limit", retried=True)
        assert await by_header.closed() == 1013


async def test_ip_limit_and_that_exempt_addresses_have_none(server: ServerProcess) -> None:
    address = an_address()
    async with AsyncStack() as stack:
        for _ in range(30):
            wire = await stack.enter(Wire(server.ws_url, address=address))
            assert (await wire.ask({"type": "heartbeat", "sourceDoId": "h", "timestamp": 1}))["type"] == "status"
        refused = await stack.enter(Wire(server.ws_url, address=address))
        check_nack(await refused.hear(), "ip_limit", retried=True)
        assert await refused.closed() == 1013
        for private in ["127.0.0.1"] * 15 + ["10.0.0.9"] * 35:
            wire = await stack.enter(Wire(server.ws_url, address=private))
            assert (await wire.ask({"type": "heartbeat", "sourceDoId": "h", "timestamp": 1}))["type"] == "status"


async def reasons_of(folder: Path, limits: RateSettings) -> list[str]:
    """What 30 hosts of one subnet hear that come one after the other and stay."""
    config = msgspec.structs.replace(ALONE, limits=limits)
    async with gateway_on_socket(folder, gateway_config=config) as (_, url), AsyncStack() as stack:
        reasons = []
        for host in range(1, 31):
            wire = await stack.enter(Wire(url, address=f"203.0.113.{host}"))
            # One that is refused is closed at once; it hears why all the same.
            with suppress(ConnectionClosed):
                await wire.say({"type": "heartbeat", "sourceDoId": "h", "timestamp": 1})
            answer = await wire.hear()
            reasons.append(answer.get("reason", "taken"))
        return reasons


async def test_connections_per_subnet(tmp_path: Path) -> None:
    reasons = await reasons_of(tmp_path, RateSettings(connections_per_s=10_000, connections_per_subnet=25))
    assert reasons == ["taken"] * 25 + ["ip_limit"] * 5


async def test_connections_per_second(tmp_path: Path) -> None:
    began_s = time.monotonic()
    reasons = await reasons_of(tmp_path, RateSettings(connections_per_s=3))
    assert set(reasons[:3]) == {"taken"} and set(reasons) == {"taken", "rate_limited"}
    # Three in any one second, however slow the machine is.
    assert reasons.count("taken") <= 3 * (time.monotonic() - began_s + 1)


async def test_buffer_full_load_shedding_and_buffered_in_order(tmp_path: Path) -> None:
    """Backpressure by bytes on disk: nothing carries them away here, so they add up."""
    log = LogConfig(buffer_bytes_max=100_000, flush_bytes=99_000, flush_interval_s=1000)
    config = msgspec.structs.replace(ALONE, log=log)
    seen: list[str] = []
    # What is sealed becomes smaller, but not by much.
    rng = random.Random(1)
    async with gateway_on_socket(tmp_path, gateway_config=config) as (_, url):
        for number, priority in itertools.product(range(1, 400), ("low", "normal", "high")):
            async with Wire(url) as wire:
                source = f"{priority}-{number}"
                row = {"x": base64.b85encode(rng.randbytes(1_000)).decode()}
                answer = await wire.ask(batch(source, 1, [event(after=row)], priority=priority))
                delayed = "suggestedDelayMs" in answer.get("details", {})
                told = answer.get("reason") or f"{answer['status']}{', delayed' if delayed else ''}"
                if answer["type"] == "nack":
                    check_nack(answer, answer["reason"], retried=True)
                    told += "" if told == "buffer_full" else f" {priority}"
                if told not in seen:
                    seen.append(told)
                if told == "buffer_full":
                    break
    assert seen == [
        "ok", "ok, delayed", "buffered, delayed", "load_shedding low", "load_shedding normal", "buffer_full",
    ]  # fmt: skip


async def test_shutting_down(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, url), Wire(url) as wire:
        assert (await wire.ask(batch(a_source())))["status"] == "ok"
        assert await gateway.door.drain(10)
        assert await wire.closed() == 1001
        async with Wire(url) as late:
            check_nack(await late.hear(), "shutting_down", retried=True)
            assert await late.closed() == 1001


async def test_last_ack_sequence_resumes(server: ServerProcess, way: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way) as wire:
        await wire.greet(source)
        for number in (1, 2, 3, 5):
            await wire.ask(batch(source, number))
    async with Wire(server.ws_url, way) as wire:
        hello = await wire.greet(source, lastAckSequence=1)
        assert (hello["sequenceNumber"], hello["resumeFrom"]) == (5, 4)
        assert (await wire.ask(batch(source, 3)))["status"] == "duplicate"
        assert (await wire.ask(batch(source, 4)))["status"] == "ok"
        assert (await wire.greet(source, lastAckSequence=3))["resumeFrom"] == 6


class AsyncStack:
    """Connections that are held until the end of a test."""

    def __init__(self) -> None:
        self._wires: list[Wire] = []

    async def __aenter__(self) -> "AsyncStack":
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires:
            await wire.__aexit__(None, None, None)

    async def enter(self, wire: Wire) -> Wire:
        self._wires.append(await wire.__aenter__())
        return wire
