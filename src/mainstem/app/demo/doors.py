"""The demo's second half: one table, written through every door, seen by every other door and by both engines.

Each door has its usual client: CdcClient, plain HTTP, the sync client, pymongo, librdkafka. What they write, and so
what all of them must see in the end, stands in one place, `EXPECTED`; a row that differs anywhere fails the demo.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pymongo
from rich.console import Console
from rich.table import Table

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, HttpTransport, LocalDB, SyncThread, insert
from mainstem.client import Table as SyncTable
from mainstem.model import Invalid

NAMESPACE, NOTES, TOPIC = "doors", "notes", "clicks"
# By key: which door writes it, and its text.
EXPECTED = {
    "m1": "written by pymongo",
    "w1": "written over the WebSocket",
    "h1": "written with HTTP",
    "s1": "written by a sync client",
}
CLICK = {"page": "/", "count": 3}
SEEN_S_MAX = 60.0
_NOTES = SyncTable(NOTES, {"text": "text"})

Rows = dict[str, str]


class Ports(NamedTuple):
    """Where the doors with ports of their own are."""

    kafka: int
    mongo: int


def check_clients() -> None:
    """The demo speaks to the Kafka door with librdkafka, which the server itself does not need."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise Invalid('the demo needs a Kafka client. expected=pip install "mainstem[demo]"') from error


async def through_every_door(server: ServerProcess, ports: Ports, console: Console) -> list[str]:
    """Write through each door, and look through each. Returns what differs, in words."""
    console.print("\n[bold]one table, every door[/]")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        streamed = await asyncio.to_thread(_write, server, ports, copy)
        seen: dict[str, Rows] = {"a MongoDB change stream": streamed}
        seen["a MongoDB client"] = await asyncio.to_thread(_found, ports.mongo)
        seen[f"a Kafka consumer of cdc.{NAMESPACE}.{NOTES}"] = await asyncio.to_thread(_consumed, ports.kafka)
        seen["a sync client, in its local database"] = await asyncio.to_thread(_pulled, server.url, copy)
    if not (await server.flush(timeout_s=120))["complete"]:
        return ["the flush did not complete"]
    for engine, title in (("duckdb", "DuckDB, on the Delta table"), ("spark", "Spark, on the Delta table")):
        seen[title] = await asyncio.to_thread(_selected, server.url, engine)
    clicks = {engine: await asyncio.to_thread(_clicks, server.url, engine) for engine in ("duckdb", "spark")}
    _show(console, seen)
    differences = [f"{who}: expected {EXPECTED}, saw {rows}" for who, rows in seen.items() if rows != EXPECTED]
    differences += [f"kafka.{TOPIC} by {engine}: {rows}" for engine, rows in clicks.items() if rows != [[CLICK]]]
    await _show_spark(server, console)
    return differences


def _write(server: ServerProcess, ports: Ports, copy: Path) -> Rows:
    """Through each door in turn, while a change stream listens. Returns what the stream told."""
    with pymongo.MongoClient[dict[str, Any]](
        f"mongodb://127.0.0.1:{ports.mongo}", serverSelectionTimeoutMS=20_000
    ) as mongo:
        notes = mongo[NAMESPACE][NOTES]
        with notes.watch() as stream:
            notes.insert_one({"_id": "m1", "text": EXPECTED["m1"]})
            asyncio.run(_send(server.ws_url))
            _post(server.url)
            with LocalDB.open(copy, tables=[_NOTES], client_id="demo-phone") as db, _syncing(db, server.url) as sync:
                sync.tracker.insert(NOTES, "s1", {"text": EXPECTED["s1"]})
                sync.sync_once()
            _produce(ports.kafka)
            told: Rows = {}
            while len(told) < len(EXPECTED) and (event := stream.next()) is not None:
                document = event["fullDocument"]
                told[document["_id"]] = document["text"]
            return told


async def _send(url: str) -> None:
    async with CdcClient(url, source="demo-doors") as client:
        receipt = await client.send([insert(f"{NAMESPACE}.{NOTES}", "w1", {"text": EXPECTED["w1"]})])
        await receipt.durable()


def _post(url: str) -> None:
    row = {"id": "h1", "text": EXPECTED["h1"]}
    httpx.post(f"{url}/v1/ingest/{NAMESPACE}/{NOTES}?key=id", json=[row], timeout=60).raise_for_status()


def _produce(port: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    broker: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{port}"}
    topic = NewTopic(TOPIC, num_partitions=1, config={"value.mode": "json"})
    # By a name: librdkafka drops what a client is about to answer when the client goes.
    admin = AdminClient(broker)
    admin.create_topics([topic])[TOPIC].result(SEEN_S_MAX)
    producer = Producer(broker)
    producer.produce(TOPIC, value=json.dumps(CLICK).encode())
    if producer.flush(SEEN_S_MAX):
        raise Invalid(f"the record was not acknowledged. expected=within {SEEN_S_MAX} s")


def _found(port: int) -> Rows:
    with pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}", serverSelectionTimeoutMS=20_000) as mongo:
        return {document["_id"]: document["text"] for document in mongo[NAMESPACE][NOTES].find()}


def _consumed(port: int) -> Rows:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "demo", "auto.offset.reset": "earliest"})
    seen: Rows = {}
    try:
        consumer.subscribe([f"cdc.{NAMESPACE}.{NOTES}"])
        for _ in range(int(SEEN_S_MAX)):
            if len(seen) == len(EXPECTED):
                break
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                change = json.loads(message.value() or b"{}")
                seen[json.loads(message.key() or b"{}")["id"]] = change["after"]["text"]
        return seen
    finally:
        consumer.close()


def _pulled(url: str, copy: Path) -> Rows:
    with LocalDB.open(copy, tables=[_NOTES], client_id="demo-phone") as db, _syncing(db, url) as sync:
        sync.sync_once()
        return {row["_key"]: row["text"] for row in db.query(f"SELECT _key, text FROM {NOTES}")}


def _syncing(db: LocalDB, url: str) -> SyncThread:
    return SyncThread(db, lambda: HttpTransport(url, NAMESPACE))


def _selected(url: str, engine: str) -> Rows:
    return dict(_asked(url, engine, f"SELECT _key, text FROM {NAMESPACE}.{NOTES}"))


def _clicks(url: str, engine: str) -> list[list[dict[str, Any]]]:
    names = ", ".join(CLICK)
    return [[dict(zip(CLICK, row, strict=True))] for row in _asked(url, engine, f"SELECT {names} FROM kafka.{TOPIC}")]


def _asked(url: str, engine: str, sql: str) -> Iterable[Any]:
    answer = httpx.post(f"{url}/v1/query", json={"sql": sql, "engine": engine}, timeout=120)
    if answer.is_error:
        raise Invalid(f"the query was refused. engine={engine} sql={sql} answer={answer.text[:300]}")
    rows: list[Any] = answer.json()["rows"]
    return rows


def _show(console: Console, seen: Mapping[str, Rows]) -> None:
    table = Table(title=f"{NAMESPACE}.{NOTES}: who sees what was written where", title_justify="left")
    table.add_column("seen by")
    for text in EXPECTED.values():
        table.add_column(text.removeprefix("written "), justify="center")
    for who, rows in seen.items():
        table.add_row(who, *("✓" if rows.get(key) == text else "✗" for key, text in EXPECTED.items()))
    console.print(table)


async def _show_spark(server: ServerProcess, console: Console) -> None:
    passes = (await server.status())["pipeline"]["passes"]
    table = Table(title="what Spark did: its last micro-batches", title_justify="left")
    columns: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("batch", lambda each: str(each["batch"])),
        ("tables", lambda each: str(each["tables"])),
        ("rows read", lambda each: f"{each['rowsRead']:,}"),
        ("rows written", lambda each: f"{each['rowsWritten']:,}"),
        ("files", lambda each: str(each["files"])),
        ("job, s", lambda each: f"{each['jobS']:.2f}"),
        ("commit, s", lambda each: f"{each['commitS']:.2f}"),
    )
    for title, _ in columns:
        table.add_column(title, justify="right")
    for each in passes[-6:]:
        table.add_row(*(read(each) for _, read in columns))
    console.print(table)
