"""Bad input gets a named answer and moves nothing; the connection, or at least the server, lives on."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, connect_duckdb, insert

DEEP = b"[" * 10_000 + b"]" * 10_000


def batch(event: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A batch of one event, right but for what is given."""
    whole = {"sequence": 1, "timestamp": 1, "operation": "INSERT", "table": "bad", "rowId": "k", "after": {"a": 1}}
    message = {"type": "cdc_batch", "sourceDoId": "bad", "sequenceNumber": 1, "timestamp": 1, **fields}
    message.setdefault("events", [{**whole, **(event or {})}])
    return json.dumps(message).encode()


REFUSED = {
    "malformed JSON": (b'{"type": "cdc_batch", ', "invalid_format"),
    "not an object": (b"[]", "invalid_format"),
    "empty": (b"", "invalid_format"),
    "unknown message type": (b'{"type": "cdc_bach"}', "invalid_format"),
    "no type": (b"{}", "invalid_format"),
    "events of a wrong type": (batch(events="none"), "invalid_format"),
    "no events": (batch(events=[]), "invalid_format"),
    "sequence of a wrong type": (batch(sequenceNumber="one"), "invalid_format"),
    "negative sequence": (batch(sequenceNumber=-1), "invalid_format"),
    "unknown operation": (batch({"operation": "UPSERT"}), "invalid_format"),
    "row that is a list": (batch({"after": [1]}), "invalid_format"),
    "key that is a float": (batch({"rowId": 1.5}), "invalid_format"),
    "empty key": (batch({"rowId": ""}), "invalid_format"),
    "empty table name": (batch({"table": ""}), "invalid_format"),
    "very long table name": (batch({"table": "x" * 10_000}), "invalid_format"),
    "reserved table name": (batch({"table": "bad_history"}), "invalid_format"),
    "NaN": (batch().replace(b'"a": 1', b'"a": NaN'), "invalid_format"),
    "invalid UTF-8": (batch().replace(b'"a": 1', b'"a": "\xff\xfe"'), "invalid_format"),
    "10,000 levels": (batch().replace(b'"a": 1', b'"a": ' + DEEP), "invalid_format"),
    "too large a payload": (batch({"after": {"a": "x" * 5_000_000}}), "payload_too_large"),
    "too large an event": (batch({"after": {"a": "x" * 1_500_000}}), "event_too_large"),
}


@asynccontextmanager
async def socket(server: ServerProcess) -> AsyncIterator[ClientConnection]:
    async with connect(server.ws_url, max_size=None) as connection:
        yield connection


async def answer(connection: ClientConnection, message: bytes) -> dict[str, Any]:
    """Send a binary frame: a text frame that is not UTF-8 would be the client's own error."""
    await connection.send(message, text=False)
    reply: dict[str, Any] = json.loads(await connection.recv())
    return reply


@pytest.mark.parametrize("name", REFUSED)
async def test_each_is_refused_by_name_and_the_connection_lives(live_server: ServerProcess, name: str) -> None:
    message, reason = REFUSED[name]
    before = (await live_server.status())["log"]["durable"]
    async with socket(live_server) as connection:
        nack = await answer(connection, message)
        assert (nack["type"], nack["reason"]) == ("nack", reason), nack
        assert nack["shouldRetry"] is False
        assert nack["errorMessage"]
        alive = await answer(connection, b'{"type":"heartbeat","sourceDoId":"bad","timestamp":1}')
        assert alive["type"] in ("ack", "status")
    assert (await live_server.status())["log"]["durable"] == before


async def test_a_frame_beyond_the_largest_closes_that_connection_only(live_server: ServerProcess) -> None:
    async with socket(live_server) as connection:
        with pytest.raises(ConnectionClosed) as closed:
            await connection.send(b" " * (17 * 1024 * 1024))
            await connection.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    async with socket(live_server) as connection:
        assert (await answer(connection, b"{}"))["type"] == "nack"


@pytest.mark.parametrize("text", [True, False], ids=["text", "binary"])
async def test_what_is_not_utf8_is_nacked_and_the_connection_goes_on(live_server: ServerProcess, text: bool) -> None:
    async with socket(live_server) as connection:
        await connection.send(b'{"type":"cdc_batch","sourceDoId":"\xff","sequenceNumber":3,"events":[]}', text=text)
        refused = json.loads(await connection.recv())
        assert (refused["type"], refused["reason"]) == ("nack", "invalid_format")
        assert (await answer(connection, batch({"table": "mended"})))["type"] == "ack"


async def test_a_refused_batch_is_not_remembered(live_server: ServerProcess) -> None:
    async with socket(live_server) as connection:
        refused = batch({"operation": "UPSERT", "table": "mended"}, sourceDoId="mended", sequenceNumber=7)
        assert (await answer(connection, refused))["type"] == "nack"
        mended = batch({"table": "mended"}, sourceDoId="mended", sequenceNumber=7)
        assert (await answer(connection, mended))["status"] in ("ok", "buffered")
        assert (await answer(connection, mended))["status"] == "duplicate"


# What cannot be told at the door, since it depends on the table, is a dead letter.
DEAD = {
    "empty column name": {"": 1},
    "very long column name": {"c" * 300: 1},
    "control character in a column name": {"a\nb": 1},
    "over a thousand columns": {f"c{i}": i for i in range(1001)},
    "70 levels": {"deep": json.loads("[" * 70 + "]" * 70)},
}


async def test_rows_that_cannot_fit_are_dead_letters_with_the_reason(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="dead") as client:
        await client.send([insert("dead", name, row) for name, row in DEAD.items()])
        await client.send([insert("dead", "good", {"a": 1})])
        await client.flush()
    lake = connect_duckdb(live_server.url)
    letters = lake.execute("SELECT _key, _reason, _columns FROM lake.default.dead_dead_letters").fetchall()
    assert {key for key, _, _ in letters} == DEAD.keys()
    assert all(reason for _, reason, _ in letters)
    assert {key: json.loads(columns) for key, _, columns in letters} == DEAD
    assert lake.execute("SELECT _key, a FROM lake.default.dead").fetchall() == [("good", 1)]


async def test_numbers_that_no_table_holds_are_dead_letters(live_server: ServerProcess) -> None:
    numbers = ["1e999", "9" * 5000]
    async with socket(live_server) as connection:
        for sequence, number in enumerate(numbers, 1):
            event = {"table": "numbers", "rowId": str(sequence), "after": {"a": 1}}
            message = batch(event, sourceDoId="numbers", sequenceNumber=sequence)
            sent = await answer(connection, message.replace(b'"a": 1', b'"a": ' + number.encode()))
            assert sent["status"] in ("ok", "buffered"), sent
    assert (await live_server.flush(timeout_s=120))["complete"]
    query = "SELECT _columns, _reason FROM lake.default.numbers_dead_letters ORDER BY _key"
    letters = connect_duckdb(live_server.url).execute(query).fetchall()
    assert [columns for columns, _ in letters] == [f'{{"a": {number}}}' for number in numbers]
    assert all("cannot be read" in reason for _, reason in letters)


async def test_a_table_of_nothing_but_dead_letters_is_covered_too(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="hopeless") as client:
        await client.send([insert("hopeless", "1", {"": 1})])
    flushed = await live_server.flush(timeout_s=120)
    assert flushed["complete"], flushed
    letters = connect_duckdb(live_server.url).execute("SELECT _key FROM lake.default.hopeless_dead_letters").fetchall()
    assert letters == [("1",)]


async def test_a_value_that_does_not_fit_a_declared_type_is_a_dead_letter(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="declared") as client:
        await client.send(
            [
                insert("declared", "ok", {"price": "12.50", "day": "2026-01-31"}),
                insert("declared", "bad price", {"price": "much", "day": "2026-01-31"}),
                insert("declared", "bad day", {"price": 1, "day": "yesterday"}),
            ]
        )
        await client.flush()
    lake = connect_duckdb(live_server.url)
    rows = lake.execute("SELECT _key, price::VARCHAR, day::VARCHAR FROM lake.default.declared").fetchall()
    assert rows == [("ok", "12.50", "2026-01-31")]
    letters = dict(lake.execute("SELECT _key, _reason FROM lake.default.declared_dead_letters").fetchall())
    assert letters.keys() == {"bad price", "bad day"}
    assert "much" in letters["bad price"] and "price" in letters["bad price"]
