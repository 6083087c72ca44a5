"""The Mongo door beside FerretDB on SQLite and mongo-java-server, each alone on the machine, one after another.

Ours syncs every write before it answers. FerretDB leaves its synchronising to SQLite's defaults, mongo-java-server
keeps everything in memory. `mongo` is 21,000 documents; `mongo_large` a million.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo
from bson.objectid import ObjectId

from benchmarks import mongo_peers
from benchmarks.mongo_load import Measured, drive, first_batch, message, raw
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config, MongoConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess, reserve_port

SECTION = "mongo"
DOCUMENTS = 21_000
COMMAND_DOCUMENTS = 5_000
CLIENTS = 16
SECONDS, SECONDS_SMALL = 2.0, 0.5
INSERT_MANY_MIN = 40_000
FINDS_MIN = 3_000
STREAM_P50_MS_MAX = 20.0
REGIONS = ("north", "south", "east", "west", "centre", "islands", "coast", "hills")
GROUP = [
    {
        "$group": {
            "_id": "$region",
            "n": {"$sum": 1},
            "quantity": {"$sum": "$quantity"},
            "amount": {"$sum": "$amount"},
        }
    }
]


def identity(number: int) -> ObjectId:
    """An id as drivers make them. FerretDB looks those up in SQLite; numbers it would scan for."""
    return ObjectId(number.to_bytes(12))


def document(number: int) -> dict[str, Any]:
    """An order of about 150 bytes; ten of a customer."""
    return {
        "_id": identity(number),
        "customer": f"c{number // 10:07d}",
        "region": REGIONS[number * 7 % 8],
        "quantity": number % 97,
        "amount": (number % 9_973) / 4,
        "score": number % 10_007,
        "note": "left at the door, the bell is broken",
    }


@dataclass
class Lines:
    """What one server measured, by line."""

    name: str
    values: dict[str, float] = field(default_factory=dict)

    def add(self, line: str, value: float) -> None:
        """Keep a value, and say it at once: a run may be long."""
        self.values[line] = value
        print(f"    {self.name}: {line} {value:,.2f}", flush=True)


def command(body: dict[str, Any]) -> bytes:
    """A command on the database of the measurements."""
    return message({**body, "$db": "bench"})


def insert_one(number: int) -> bytes:
    """A new document, with an id that nobody else has."""
    body = {"insert": "ones", "ordered": True, "$db": "bench"}
    return message(body, ("documents", raw([document(number)])))


def find_by_id(collection: str, count: int) -> Callable[[int], bytes]:
    """One document, another one each time."""
    made = [
        command({"find": collection, "filter": {"_id": identity(n * 7919 % count)}, "limit": 1, "singleBatch": True})
        for n in range(1_000)
    ]
    return lambda number: made[number % 1_000]


def update_by_id(collection: str, count: int) -> Callable[[int], bytes]:
    """One document changes. Clients draw from ids of their own, so that none waits for another."""
    made = [
        message(
            {"update": collection, "ordered": True, "$db": "bench"},
            ("updates", raw([{"q": {"_id": identity(n * 7919 % count)}, "u": {"$inc": {"quantity": 1}}}])),
        )
        for n in range(1_000)
    ]
    return lambda number: made[(number + number // 10_000_000 * 61) % 1_000]


def load(url: str, collection: str, count: int) -> float:
    """Insert so many documents in commands of 5,000: documents per second. Making them is not measured."""
    spent_s = 0.0
    for first in range(0, count, COMMAND_DOCUMENTS * 10):
        starts = range(first, min(first + COMMAND_DOCUMENTS * 10, count), COMMAND_DOCUMENTS)
        made = [
            message(
                {"insert": collection, "ordered": True, "$db": "bench"},
                ("documents", raw(map(document, range(start, min(start + COMMAND_DOCUMENTS, count))))),
            )
            for start in starts
        ]
        measured = drive(url, made.__getitem__, seconds=600, count=len(made))
        spent_s += sum(measured.took_s)
    return count / spent_s


def reads(url: str, lines: Lines, collection: str, count: int, *, repeats: int) -> None:
    """Finds by index and without one, and a group."""
    label = f"{count:,} documents"
    drive(
        url,
        lambda _: command({"createIndexes": collection, "indexes": [{"key": {"customer": 1}, "name": "customer_1"}]}),
        count=1,
        seconds=600,
    )
    by_index = [
        command({"find": collection, "filter": {"customer": f"c{n * 7919 % (count // 10):07d}"}}) for n in range(100)
    ]
    found = drive(url, lambda number: by_index[number % 100], count=repeats * 20, seconds=10)
    _expect(found, 10)
    lines.add(f"find by an index, 10 of {label} (ms)", percentile(found.took_s, 50) * 1000)
    scan = command({"find": collection, "filter": {"score": 77}})
    found = drive(url, lambda _: scan, count=repeats, seconds=30)
    _expect(found, len(range(77, count, 10_007)))
    lines.add(f"find without an index, {label} (ms)", found.best_ms)
    group = command({"aggregate": collection, "pipeline": GROUP, "cursor": {}})
    found = drive(url, lambda _: group, count=repeats, seconds=30)
    groups = first_batch(found.reply())
    if sum(each["n"] for each in groups) != count:
        raise RuntimeError(f"$group counts wrongly: {groups}")
    lines.add(f"$group, {label} (ms)", found.best_ms)


def _expect(found: Measured, count: int) -> None:
    got = len(first_batch(found.reply()))
    if got != count:
        raise RuntimeError(f"found {got} documents, not {count}")


def measure(url: str, name: str, seconds: float) -> Lines:
    """Every line of one server."""
    lines = Lines(name)
    drive(url, lambda _: insert_one(1 << 40), count=1)
    for clients in (1, CLIENTS):
        numbers = lambda number, clients=clients: insert_one(number + clients * 1_000_000_000)  # noqa: E731
        lines.add(f"insert_one, {clients} clients (/s)", drive(url, numbers, clients=clients, seconds=seconds).rate)
    lines.add("insert_many (documents/s)", load(url, "orders", DOCUMENTS))
    by_id, update = find_by_id("orders", DOCUMENTS), update_by_id("orders", DOCUMENTS)
    for clients in (1, CLIENTS):
        rate = drive(url, by_id, clients=clients, seconds=seconds).rate
        lines.add(f"find by _id, {clients} clients (/s)", rate)
        rate = drive(url, update, clients=clients, seconds=seconds).rate
        lines.add(f"update_one by _id, {clients} clients (/s)", rate)
    lines.add("find_one by _id with pymongo, 1 client (/s)", finds_with_pymongo(url, seconds))
    reads(url, lines, "orders", DOCUMENTS, repeats=5)
    by_index = [command({"find": "orders", "filter": {"customer": f"c{n * 7 % 2100:07d}"}}) for n in range(1_000)]
    found = drive(url, lambda number: by_index[number % 1_000], clients=CLIENTS, seconds=seconds)
    lines.add(f"find by an index, {CLIENTS} clients (/s)", found.rate)
    return lines


def finds_with_pymongo(url: str, seconds: float) -> float:
    """Finds by `_id` per second with a driver, which takes longer than a server may."""
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        orders = client.bench.orders
        ends_s, count = time.monotonic() + seconds, 0
        while time.monotonic() < ends_s:
            orders.find_one({"_id": identity(count * 7919 % DOCUMENTS)})
            count += 1
        return count / seconds


def stream_times_ms(url: str) -> list[float]:
    """From a write to the change stream."""
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        times_ms = []
        with client.bench.watched.watch(max_await_time_ms=1000) as stream:
            stream.try_next()
            for number in range(100):
                began_s = time.perf_counter()
                client.bench.watched.insert_one({"_id": number})
                next(stream)
                times_ms.append((time.perf_counter() - began_s) * 1000)
        return times_ms


@contextmanager
def peers(folder: Path, report: Report, section: str) -> Iterator[list[tuple[str, Any]]]:
    """The peers that can be started here, by name."""
    found: list[tuple[str, Any]] = [(mongo_peers.JAVA_SERVER, mongo_peers.java_server)]
    if mongo_peers.has_go():
        mongo_peers.build()
        found.insert(0, (mongo_peers.FERRETDB, mongo_peers.ferretdb))
    else:
        report.add(section, Figure(f"{mongo_peers.FERRETDB}: not measured", 0, "", note="there is no Go here"))
    yield found


def tell(report: Report, section: str, ours: Lines, theirs: list[Lines], bars: dict[str, tuple[str, float]]) -> None:
    """A figure per line and peer, with the ratio, and whether the bars are met."""
    for line, value in ours.values.items():
        higher = "/s" in line
        name, unit = line.rsplit(" (", 1)[0], line.rsplit(" (", 1)[1].rstrip(")")
        if line in bars:
            bar, bound = bars[line]
            report.add(section, Figure(name, value, unit, bar=bar, met=value >= bound if higher else value <= bound))
        for peer in theirs:
            other = peer.values.get(line)
            if other is None:
                report.add(section, Figure(name, value, unit, floor_name=peer.name, note=f"{peer.name} cannot"))
                continue
            ratio = value / other if higher else other / value
            judged = peer.name == mongo_peers.FERRETDB and not line.startswith("insert_one, 1 ")
            report.add(
                section,
                Figure(
                    name,
                    value,
                    unit,
                    floor=other,
                    floor_name=peer.name,
                    bar="ahead" if judged else None,
                    met=ratio >= 1 if judged else None,
                    note=f"{ratio:.2f} times as fast",
                ),
            )
        if not theirs and line not in bars:
            report.add(section, Figure(name, value, unit))


def server_config(port: int, *, pipeline: bool) -> Config:
    """A server with a Mongo port, and little else."""
    return Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=pipeline), mongo=MongoConfig(port=port))


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Ours, then each peer."""
    seconds = SECONDS_SMALL if small else SECONDS
    with peers(folder, report, SECTION) as others:
        with reserve_port("127.0.0.1") as place:
            port = place.getsockname()[1]
            async with ServerProcess(folder / "data", server_config(port, pipeline=False)):
                url = f"mongodb://127.0.0.1:{port}/"
                ours = await asyncio.to_thread(measure, url, "Mainstem", seconds)
                times_ms = await asyncio.to_thread(stream_times_ms, url)
        theirs = []
        for name, start in others:
            with start(folder / name.split()[0]) as peer_url:
                theirs.append(await asyncio.to_thread(measure, peer_url, name, seconds))
    bars = {
        "insert_many (documents/s)": (f"≥ {INSERT_MANY_MIN:,}", float(INSERT_MANY_MIN)),
        "find by _id, 1 clients (/s)": (f"≥ {FINDS_MIN:,}", float(FINDS_MIN)),
    }
    tell(report, SECTION, ours, theirs, bars)
    p50 = percentile(times_ms, 50)
    bar = f"≤ {STREAM_P50_MS_MAX:g}"
    report.add(SECTION, Figure("write to change stream, p50", p50, "ms", bar=bar, met=p50 <= STREAM_P50_MS_MAX))
