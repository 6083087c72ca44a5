"""DoLake's own tables, row by row: every message, field, ack state, nack reason, limit, default and endpoint.

Each row is one promise of its documents, asked of a real server over real sockets. What needs no Spark runs against a
server without its pipeline; the few rows that need tables use the shared one. Where Mainstem differs on purpose, the
row says so and why.
"""

import asyncio
import base64
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zstandard
from websockets.exceptions import ConnectionClosed

from mainstem.admission import DedupSettings, Limits, RateSettings
from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.tables.maintenance import MaintenanceSettings
from tests.harness.cdcwire import WAYS, Wire
from tests.harness.inprocess import gateway_on_socket

ALONE = Config(
    server=ServerConfig(port=0),
    pipeline=PipelineConfig(enabled=False),
    # The tests come more quickly than producers do; the bound itself has a row of its own.
    limits=RateSettings(connections_per_s=10_000, connections_per_subnet=10_000),
)
_numbers = itertools.count(1)
_hosts = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("conformance"), ALONE)
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_source() -> str:
    return f"source-{next(_numbers)}"


def an_address() -> str:
    """Somewhere outside of the exempt ranges, each in a subnet of its own."""
    number = next(_hosts)
    return f"198.{number // 256}.{number % 256}.7"


def event(**changed: Any) -> dict[str, Any]:
    """As the reference has it, with every field that it requires."""
    whole = {"sequence": 1, "timestamp": 1704067200000, "operation": "INSERT", "table": "users", "rowId": "user-123"}
    return whole | {"after": {"id": "user-123", "name": "Alice"}} | changed


def batch(source: str, number: int = 1, events: list[Any] | None = None, **changed: Any) -> dict[str, Any]:
    """As the reference has it, with every field that it requires."""
    return {
        "type": "cdc_batch",
        "timestamp": 1704067200000,
        "sourceDoId": source,
        "events": [event()] if events is None else events,
        "sequenceNumber": number,
        "firstEventSequence": 1,
        "lastEventSequence": 1,
        "sizeBytes": 256,
        "isRetry": False,
        "retryCount": 0,
    } | changed


def without(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


# Messages of the client


async def test_the_quick_start_of_the_overview(server: ServerProcess, way: str) -> None:
    """Fewer fields than the reference requires, and the headers say who it is."""
    source = a_source()
    headers = {"X-Client-ID": source, "X-Shard-Name": "users-shard-1"}
    async with Wire(server.ws_url, way, headers=headers) as wire:
        message = {"type": "cdc_batch", "sourceDoId": source, "events": [event()], "sequenceNumber": 0, "timestamp": 1}
        ack = await wire.ask(message)
        assert (ack["type"], ack["status"], ack["sequenceNumber"]) == ("ack", "ok", 0)


@pytest.mark.parametrize("path", ["/ws", "/lakehouse"])
async def test_both_documents_name_the_address(server: ServerProcess, path: str) -> None:
    async with Wire(server.ws_url.removesuffix("/ws") + path) as wire:
        assert (await wire.ask(batch(a_source())))["status"] == "ok"


async def test_the_quick_start_of_the_reference(server: ServerProcess, way: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way) as wire:
        capabilities = {
            "binaryProtocol": WAYS[way][0],
            "compression": WAYS[way][1],
            "batching": True,
            "maxBatchSize": 1000,
            "maxMessageSize": 4194304,
        }
        hello = await wire.greet(
            source,
            timestamp=1,
            sourceShardName="users-shard-1",
            lastAckSequence=0,
            protocolVersion=1,
            capabilities=capabilities,
        )
        assert (hello["type"], hello["status"], hello["sequenceNumber"]) == ("ack", "ok", 0)
        assert (hello["protocolVersion"], hello["capabilities"], hello["resumeFrom"]) == (1, capabilities, 1)
        ack = await wire.ask(batch(source, correlationId="c-1"))
        assert (ack["status"], ack["sequenceNumber"], ack["correlationId"]) == ("ok", 1, "c-1")


NUMBERS = ([0, 7, 2**53], [-1, "x", None, 1.5])
COUNTS = ([0, 7, 2**53], [-1, "x"])
TEXTS = (["x"], [5, ["x"]])
FIELDS: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {
    # Per message: the field, values that are taken, values that are refused.
    "connect": {
        "timestamp": ([1704067200000, 1.5], ["now"]),
        "correlationId": TEXTS,
        "sourceDoId": (["dosql-shard-1"], [5, "", "x" * 257]),
        "sourceShardName": TEXTS,
        "lastAckSequence": NUMBERS,
        "protocolVersion": ([1, 2], ["1", 0, -1]),
        "capabilities": ([{}, {"unknown": 1}], [5, "all"]),
        "capabilities.binaryProtocol": ([False], ["yes", 1]),
        "capabilities.compression": ([True, False], ["gzip"]),
        "capabilities.batching": ([True, False], ["no"]),
        "capabilities.maxBatchSize": ([1, 1000], [-1, "many"]),
        "capabilities.maxMessageSize": ([1, 4194304], [-1, "much"]),
    },
    "cdc_batch": {
        "timestamp": ([1704067200000, 1.5], ["now"]),
        "correlationId": TEXTS,
        "sourceDoId": (["dosql-shard-1"], [5, "", "x" * 257, "a\nb"]),
        "sourceShardName": TEXTS,
        "events": ([[event()], [event(), event(rowId="2")]], [[], None, "all", {}, [5]]),
        "sequenceNumber": ([1, 2**63 - 1], [-1, "1", 2**63, None]),
        "firstEventSequence": COUNTS,
        "lastEventSequence": COUNTS,
        "sizeBytes": COUNTS,
        "isRetry": ([True, False], ["no", 1]),
        "retryCount": COUNTS,
        "priority": (["low", "normal", "high"], ["urgent", 1]),
    },
    "heartbeat": {
        "timestamp": ([1704067200000], ["now"]),
        "sourceDoId": (["dosql-shard-1"], [5, ""]),
        "lastAckSequence": COUNTS,
        "pendingEvents": COUNTS,
    },
    "event": {
        "sequence": ([0, 7], [-1, "x", 2**63]),
        "timestamp": ([1704067200000], ["now"]),
        "operation": (["INSERT", "UPDATE", "DELETE", "insert"], ["UPSERT", 5, None]),
        "table": (["users", "public.users"], ["", 5, None, "a/b"]),
        "rowId": (["user-1", 5], ["", None, 1.5]),
        "before": ([{"a": 1}, None, "text", [1]], []),
        "after": ([{"a": [1, {"b": None}]}, {}, None], [[1], "text", 5]),
        "metadata": ([{"trace": "x"}, None], [[1], "text"]),
    },
}
ROWS = [
    (message, field, value, good)
    for message, fields in FIELDS.items()
    for field, (taken, refused) in fields.items()
    for good, values in ((True, taken), (False, refused))
    for value in values
]


def with_field(kind: str, field: str, value: Any) -> dict[str, Any]:
    source = a_source()
    if kind == "event":
        return batch(source, events=[event(**{field: value})])
    whole = {"type": kind, "timestamp": 1, "sourceDoId": source}
    if kind == "cdc_batch":
        whole = batch(source, next(_numbers))
    outer, _, inner = field.partition(".")
    return whole | {outer: {inner: value} if inner else value}


@pytest.mark.parametrize("kind", FIELDS)
async def test_every_field(server: ServerProcess, way: str, kind: str) -> None:
    """One connection per message and encoding; each row on it is one value of one field."""
    async with Wire(server.ws_url, way) as wire:
        for message, field, value, good in ROWS:
            if message != kind:
                continue
            row = f"{message}.{field} = {value!r:.40}"
            answer = await wire.ask(with_field(message, field, value))
            if good and kind == "connect":
                assert (await wire.hear())["type"] == "status", row
            assert answer["type"] in (("ack", "status") if good else ("nack",)), (row, answer)
            if not good:
                assert (answer["reason"], answer["shouldRetry"]) == ("invalid_format", False), (row, answer)
                assert answer["errorMessage"]


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (batch("m"), "sequenceNumber"),
        (batch("m"), "events"),
        (batch("m", events=[without(event(), "operation")]), "operation"),
        (batch("m", events=[without(event(), "table")]), "table"),
        (batch("m", events=[without(event(), "rowId")]), "rowId"),
        ({"sourceDoId": "m"}, "type"),
    ],
)
async def test_what_cannot_be_left_out(
    server: ServerProcess, way: str, message: dict[str, Any], missing: str
) -> None:
    async with Wire(server.ws_url, way) as wire:
        nack = await wire.ask(without(message, missing))
        assert nack["reason"] == "invalid_format"
        assert missing in nack["errorMessage"]


@pytest.mark.parametrize("reason", ["manual", "shutdown", "buffer_full", "time_threshold"])
async def test_a_flush_request_brings_everything_into_the_tables(live_server: ServerProcess, reason: str) -> None:
    source = a_source()
    async with Wire(live_server.ws_url) as wire:
        assert (await wire.ask(batch(source, events=[event(table="conformed")])))["status"] == "ok"
        await wire.say(
            {"type": "flush_request", "timestamp": 1, "sourceDoId": source, "reason": reason, "correlationId": "f"}
        )
        async with asyncio.timeout(120):
            while (answer := await hear_long(wire)).get("correlationId") != "f":
                assert answer["status"] == "persisted", answer
        assert (answer["status"], answer["sequenceNumber"]) == ("persisted", 1)
        assert answer["details"]["persistedPath"].endswith("warehouse")
        assert (await wire.hear())["type"] == "status"


async def hear_long(wire: Wire) -> dict[str, Any]:
    """A commit may take longer than an answer does."""
    for _ in range(4):
        try:
            return await wire.hear()
        except TimeoutError:
            continue
    return await wire.hear()


# Messages of the server

ACK = {"type", "timestamp", "sequenceNumber", "status", "batchId", "details", "rateLimit", "correlationId"}
DETAILS = {"eventsProcessed", "bufferUtilization", "timeUntilFlush", "remainingTokens", "bucketCapacity"}


async def test_every_field_of_an_ack(server: ServerProcess, way: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way, address=an_address()) as wire:
        await wire.greet(source)
        ack = await wire.ask(batch(source, correlationId="c"))
        assert ack.keys() == ACK
        details = ack["details"]
        assert details.keys() >= DETAILS
        assert (details["eventsProcessed"], details["bucketCapacity"]) == (1, 50)
        # One token for the connect, one for the batch.
        assert 48 <= details["remainingTokens"] <= 50
        assert 0.0 <= details["bufferUtilization"] < 0.1
        assert 0 <= details["timeUntilFlush"] <= 30_000
        assert details["circuitBreakerState"] == "closed"
        # The connect and the batch, unless a second went by between them.
        assert ack["rateLimit"]["limit"] == 100 and ack["rateLimit"]["remaining"] in (98, 99)
        assert abs(ack["rateLimit"]["resetAt"] - time.time() * 1000) < 5_000
        assert abs(ack["timestamp"] - time.time() * 1000) < 5_000


async def test_every_field_of_a_status(server: ServerProcess, way: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way) as wire:
        await wire.ask(batch(source))
        heartbeat = {
            "type": "heartbeat", "timestamp": 1, "sourceDoId": source, "lastAckSequence": 1, "pendingEvents": 0,
        }  # fmt: skip
        status = await wire.ask(heartbeat)
        assert status["type"] == "status"
        assert status["state"] in ("idle", "receiving", "flushing", "recovering", "error")
        buffer = {"batchCount", "eventCount", "totalSizeBytes", "utilization", "oldestBatchTime", "newestBatchTime"}
        # What waits may have been sealed at this very moment.
        assert status["buffer"].keys() >= buffer - {"oldestBatchTime", "newestBatchTime"}
        assert status["buffer"]["eventCount"] > 0
        assert status["connectedSources"] >= 1


@pytest.mark.parametrize("status", ["ok", "duplicate"])
async def test_ack_states_of_every_day(server: ServerProcess, way: str, status: str) -> None:
    source = a_source()
    async with Wire(server.ws_url, way) as wire:
        ack = await wire.ask(batch(source))
        if status == "duplicate":
            ack = await wire.ask(batch(source, isRetry=True, retryCount=1))
        assert ack["status"] == status


async def test_persisted(live_server: ServerProcess) -> None:
    source = a_source()
    async with Wire(live_server.ws_url) as wire:
        await wire.ask(batch(source, 7, events=[event(table="conformed")]))
        told = await hear_long(wire)
        assert (told["status"], told["sequenceNumber"]) == ("persisted", 7)


async def test_fallback_and_the_state_of_the_breaker(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (_, url), httpx.AsyncClient(timeout=60) as http:
        base = url.replace("ws", "http", 1).removesuffix("/ws")
        for state, status in (("open", "fallback"), ("half-open", "fallback"), ("closed", "ok")):
            breaker = {"state": state, "failures": 5, "opened_ms": 1, "openings": 1, "error": "no route to the store"}
            report = {"state": "running", "breaker": breaker}
            (await http.post(f"{base}/v1/pipeline/report", json=report)).raise_for_status()
            async with Wire(url) as wire:
                ack = await wire.ask(batch(a_source()))
                assert (ack["status"], ack["details"]["circuitBreakerState"]) == (status, state)
            told = (await http.get(f"{base}/status")).json()["pipeline"]["circuitBreaker"]
            assert (told["state"], told["error"], told["openings"]) == (state, "no route to the store", 1)


# Nack reasons

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
        assert (await wire.ask({"type": "heartbeat", "sourceDoId": source, "timestamp": 1}))["type"] == "status"


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


# Defaults

DEFAULTS = [
    ("flushThresholdEvents", 10_000, LogConfig().flush_events),
    ("flushThresholdBytes", 33_554_432, LogConfig().flush_bytes),
    ("flushThresholdMs", 60_000, LogConfig().flush_age_s * 1000),
    ("flushIntervalMs", 30_000, LogConfig().flush_interval_s * 1000),
    # DoLake's buffer is memory, ours is the disk: 32 times its 128 MiB.
    ("maxBufferSize", 134_217_728, LogConfig().buffer_bytes_max / 32),
    ("deduplicationWindowMs", 300_000, DedupSettings().idle_ms),
    ("connectionsPerSecond", 20, RateSettings().connections_per_s),
    ("messagesPerSecond", 100, RateSettings().messages_per_s),
    ("burstCapacity", 50, RateSettings().burst),
    ("refillRate", 10, RateSettings().refill_per_s),
    ("maxPayloadSize", 4_194_304, Limits().payload_bytes_max),
    ("maxEventSize", 1_048_576, Limits().event_bytes_max),
    ("maxConnectionsPerSource", 5, RateSettings().connections_per_source),
    ("maxConnectionsPerIp", 30, RateSettings().connections_per_address),
    ("subnetRateLimitThreshold", 100, RateSettings().connections_per_subnet),
    ("backpressureThreshold", 0.8, RateSettings().pressure_threshold),
    ("baseRetryDelayMs", 100, RateSettings().retry_ms_min),
    ("maxRetryDelayMs", 30_000, RateSettings().retry_ms_max),
    ("minFilesToCompact", 5, MaintenanceSettings().min_files),
    ("maxFilesToCompact", 100, MaintenanceSettings().max_files),
    ("targetFileSizeBytes", 134_217_728, MaintenanceSettings().target_file_bytes),
    ("autoCompact", True, MaintenanceSettings().auto),
    ("compactionIntervalMs", 3_600_000, MaintenanceSettings().interval_s * 1000),
    ("circuit breaker: failures", 5, PipelineConfig().breaker_failures),
    ("circuit breaker: pause in ms", 30_000, PipelineConfig().breaker_open_s * 1000),
]


@pytest.mark.parametrize(("name", "theirs", "ours"), DEFAULTS, ids=[name for name, _, _ in DEFAULTS])
def test_defaults(name: str, theirs: float, ours: float) -> None:
    assert ours == theirs


# Endpoints

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
# In this order: what one makes the next ones need.
ENDPOINTS: list[tuple[str, str, Any, int]] = [
    ("GET", "/health", None, 200),
    ("GET", "/status", None, 200),
    ("GET", "/metrics", None, 200),
    # Nobody carries anything into tables here: it says so in time, and that nothing is lost.
    ("POST", "/flush?timeoutS=0.1", None, 504),
    ("PATCH", "/v1/config", {"flushIntervalMs": 30_000}, 200),
    ("GET", "/v1/scaling/status", None, 200),
    ("GET", "/v1/memory-stats", None, 200),
    ("GET", "/v1/write-stats", None, 200),
    ("GET", "/v1/compaction/candidates", None, 200),
    ("GET", "/v1/compaction/metrics", None, 200),
    ("POST", "/v1/compaction/auto", {}, 200),
    ("GET", "/v1/namespaces", None, 200),
    ("POST", "/v1/namespaces", {"namespace": ["rows"]}, 200),
    ("GET", "/v1/namespaces/rows", None, 200),
    ("PATCH", "/v1/namespaces/rows/properties", {"updates": {"owner": "us"}}, 200),
    ("POST", "/v1/namespaces/rows/properties", {"removals": ["owner"]}, 200),
    ("GET", "/v1/namespaces/rows/tables", None, 200),
    ("POST", "/v1/namespaces/rows/tables", {"name": "t", "schema": SCHEMA}, 200),
    ("GET", "/v1/namespaces/rows/tables/t", None, 200),
    ("POST", "/v1/namespaces/rows/tables/t/commits", {"requirements": [], "updates": []}, 200),
    ("POST", "/v1/query", {"sql": "SELECT count(*) AS n FROM rows.t"}, 200),
    ("POST", "/v1/query/plan", {"sql": "SELECT a FROM rows.t"}, 200),
    ("POST", "/v1/query/route", {"sql": "SELECT a FROM rows.t"}, 200),
    ("POST", "/v1/compaction/run", {"namespace": "rows", "table": "t", "dryRun": True}, 200),
    ("DELETE", "/v1/namespaces/rows/tables/t", None, 204),
    ("DELETE", "/v1/namespaces/rows", None, 204),
]


async def test_every_endpoint(server: ServerProcess) -> None:
    async with Wire(server.ws_url) as wire:
        await wire.ask(batch(a_source()))
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for method, path, body, status in ENDPOINTS:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == status, (method, path, answer.text)
            for name in ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"):
                assert answer.headers[name].isdecimal(), (path, name)


async def test_requests_beyond_the_limit_are_told_when_to_come_back(server: ServerProcess) -> None:
    headers = {"X-Forwarded-For": an_address()}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as http:
        answers = [await http.get("/health") for _ in range(160)]
    assert [answer.status_code for answer in answers[:100]] == [200] * 100
    remaining = [int(answer.headers["X-RateLimit-Remaining"]) for answer in answers[:100]]
    assert remaining[0] == 99
    refused = [answer for answer in answers if answer.status_code == 429]
    for answer in refused:
        assert int(answer.headers["Retry-After"]) >= 1
        assert (answer.headers["X-RateLimit-Limit"], answer.headers["X-RateLimit-Remaining"]) == ("100", "0")
        assert abs(int(answer.headers["X-RateLimit-Reset"]) - time.time()) < 60
        told = answer.json()
        assert "too many requests" in told["detail"]
        assert told["reason"] == told["error"]["reason"] == "rate_limited"
