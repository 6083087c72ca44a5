"""DoLake's own tables, row by row: every message, its fields, and the states of an ack.

Each row is one promise of its documents, asked of a real server over real sockets. What needs no Spark runs against a
server without its pipeline; the few rows that need tables use the shared one. Where Mainstem differs on purpose, the
row says so and why.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.process import ServerProcess
from tests.contract.dolake.dolake_messages import a_number, a_source, an_address, batch, event, without
from tests.harness.cdcwire import WAYS, Wire
from tests.harness.inprocess import gateway_on_socket

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
        # The event's own is 1.
        "firstEventSequence": ([1], [-1, "x", 0, 7]),
        "lastEventSequence": ([1], [-1, "x", 0, 2**53]),
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
        whole = batch(source, a_number())
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
async def test_what_cannot_be_left_out(server: ServerProcess, way: str, message: dict[str, Any], missing: str) -> None:
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


async def until_a_flush_is_due(server: ServerProcess, way: str) -> None:
    """The server looks for its next flush ten times a second; with nothing to flush there is none."""
    source = a_source()
    async with Wire(server.ws_url, way, address=an_address()) as wire:
        for number in range(1, 50):
            if "timeUntilFlush" in (await wire.ask(batch(source, number)))["details"]:
                return
            await asyncio.sleep(0.02)
    raise AssertionError("no flush is due")


async def test_every_field_of_an_ack(server: ServerProcess, way: str) -> None:
    await until_a_flush_is_due(server, way)
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
            breaker = {"state": state, "failures": 5, "openedMs": 1, "openings": 1, "error": "no route to the store"}
            report = {"state": "running", "breaker": breaker}
            (await http.post(f"{base}/v1/pipeline/report", json=report)).raise_for_status()
            async with Wire(url) as wire:
                ack = await wire.ask(batch(a_source()))
                assert (ack["status"], ack["details"]["circuitBreakerState"]) == (status, state)
            told = (await http.get(f"{base}/status")).json()["pipeline"]["circuitBreaker"]
            assert (told["state"], told["error"], told["openings"]) == (state, "no route to the store", 1)
