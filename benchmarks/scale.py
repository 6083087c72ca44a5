"""The log on Apache Kafka beside the embedded one: changes per second, their cost, acks, and takeovers.

Everything runs on this machine, the broker too. Gateways have no pipeline: that is measured elsewhere.
"""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import psutil
from confluent_kafka import Producer

from benchmarks.generators import send
from benchmarks.ingest import BATCH, CONFIG, CONNECTIONS, STEADY
from benchmarks.load import Plan, frames
from benchmarks.report import Figure, Report, percentile
from mainstem.app.config import Config
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.client import CdcClient, insert
from mainstem.wire.cdc import decode_whole_batch
from tests.harness.apachekafka import ApacheKafka

SECTION = "scale"
TURNS = 3
P50_S_BAR, P99_S_BAR, ACK_TIMES_BAR = 3.0, 10.0, 2.0


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Rates by turns, the latency beside Kafka's own at the same time, what another gateway adds, then takeovers."""
    with ApacheKafka(folder / "kafka") as kafka:
        await _rates(report, folder, kafka, 200 if small else 1_200)
        await _acks(report, folder, kafka, 5 if small else 20)
        await _through(report, folder, kafka, 3 if small else 10, 200 if small else 1_200)
        await asyncio.to_thread(_transactions, report, kafka, 100 if small else 500)
        await _takeovers(report, folder, kafka, 4 if small else 20)


def _on_kafka(kafka: ApacheKafka, prefix: str) -> Config:
    log = msgspec.structs.replace(CONFIG.log, kind="kafka", bootstrap_servers=kafka.bootstrap, topic_prefix=prefix)
    return msgspec.structs.replace(CONFIG, log=log)


def _cpu_s(pid: int) -> float:
    """Of a process and its children."""
    root = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (root, *root.children(recursive=True)))


async def _rates(report: Report, folder: Path, kafka: ApacheKafka, batches: int) -> None:
    rates: dict[str, list[float]] = {"embedded": [], "kafka": []}
    costs: dict[str, list[float]] = {"embedded": [], "kafka": [], "broker": []}
    for turn in range(TURNS):
        for kind, config in (("embedded", CONFIG), ("kafka", _on_kafka(kafka, f"rate{turn}"))):
            async with ServerProcess(folder / f"{kind}-{turn}", config) as server:
                await send([Plan(url=server.ws_url, source="warm", connections=CONNECTIONS, batches=80)])
                before, broker_before = _cpu_s(server.pid), _cpu_s(kafka.pid)
                result = await send([Plan(url=server.ws_url, source="load", connections=CONNECTIONS, batches=batches)])
                costs[kind].append((_cpu_s(server.pid) - before) / result.changes * 1e6)
                if kind == "kafka":
                    costs["broker"].append((_cpu_s(kafka.pid) - broker_before) / result.changes * 1e6)
            rates[kind].append(result.changes / (result.ended_s - result.began_s))
    embedded, ours = median(rates["embedded"]), median(rates["kafka"])
    name = f"acknowledged changes, {CONNECTIONS} connections, batches of {BATCH}, the log on Kafka"
    note = f"{ours / embedded:.2f} of it (medians of {TURNS} turns)"
    report.add(SECTION, Figure(name, ours, "changes/s", embedded, "embedded", note=note))
    for kind, what in (("embedded", "gateway, embedded log"), ("kafka", "gateway, log on Kafka"), ("broker", "broker")):
        report.add(SECTION, Figure(f"CPU per change: {what}", median(costs[kind]), "us"))


async def _acks(report: Report, folder: Path, kafka: ApacheKafka, seconds: int) -> None:
    """Acks of the gateway and of a producer of Kafka's, of the same batches at the same rate and at the same time."""
    async with ServerProcess(folder / "acks", _on_kafka(kafka, "acks")) as server:
        plan = Plan(
            url=server.ws_url,
            source="steady",
            connections=CONNECTIONS,
            batches=STEADY // BATCH * seconds,
            rate=STEADY / BATCH,
        )
        # They begin when the load's own processes have.
        own = asyncio.create_task(asyncio.to_thread(_produce, kafka, seconds + 2, STEADY / BATCH))
        result = await send([plan])
        kafkas_ms = await own
    for percent in (50, 99):
        ours, theirs = percentile(result.ack_ms, percent), percentile(kafkas_ms, percent)
        bar, met = (f"<= {ACK_TIMES_BAR} times", ours <= ACK_TIMES_BAR * theirs) if percent == 99 else (None, None)
        name = f"ack latency p{percent} at {STEADY:,} changes/s"
        note = f"{ours / theirs:.2f} times; {len(result.ack_ms)} batches, {result.nacks} nacks"
        report.add(SECTION, Figure(name, ours, "ms", theirs, "Kafka's produce of the same beside it", bar, met, note))


async def _through(report: Report, folder: Path, kafka: ApacheKafka, seconds: int, batches: int) -> None:
    """The same to the gateway that leads, and by way of one that stands by, in turns."""
    config = _on_kafka(kafka, "through")
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
    other = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
    standing = ServerProcess(folder / "through-stands-by", other)
    async with ServerProcess(folder / "through-leads", config) as leader:
        waiting = asyncio.create_task(standing.start())
        urls = {"direct": leader.ws_url, "through": f"ws://127.0.0.1:{port}/ws"}
        try:
            await _until_passed_on(standing.data / "gateway.log")
            acks: dict[str, list[float]] = {way: [] for way in urls}
            rates: dict[str, list[float]] = {way: [] for way in urls}
            costs: list[float] = []
            for turn in range(TURNS):
                for way, url in urls.items():
                    steady = Plan(
                        url=url,
                        source=f"steady{turn}{way}",
                        connections=CONNECTIONS,
                        batches=STEADY // BATCH * seconds,
                        rate=STEADY / BATCH,
                    )
                    acks[way] += (await send([steady])).ack_ms
                    before = _cpu_s(standing.pid)
                    load = Plan(url=url, source=f"load{turn}{way}", connections=CONNECTIONS, batches=batches)
                    result = await send([load])
                    rates[way].append(result.changes / (result.ended_s - result.began_s))
                    if way == "through":
                        costs.append((_cpu_s(standing.pid) - before) / result.changes * 1e6)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await standing.stop()
    for percent in (50, 99):
        ours, direct = percentile(acks["through"], percent), percentile(acks["direct"], percent)
        name = f"ack latency p{percent} at {STEADY:,} changes/s by way of a gateway that stands by"
        report.add(SECTION, Figure(name, ours, "ms", direct, "to the one that leads", note=f"{ours - direct:+.1f} ms"))
    ours, direct = median(rates["through"]), median(rates["direct"])
    name = "acknowledged changes by way of a gateway that stands by"
    note = f"{ours / direct:.2f} of it (medians of {TURNS} turns)"
    report.add(SECTION, Figure(name, ours, "changes/s", direct, "to the one that leads", note=note))
    report.add(SECTION, Figure("CPU per change: the gateway that stands by", median(costs), "us"))


async def _until_passed_on(log: Path) -> None:
    while not _is_passing_on(log):
        await asyncio.sleep(0.05)


def _is_passing_on(log: Path) -> bool:
    return log.exists() and "passed on to the gateway that leads" in log.read_text()


def _payloads() -> list[bytes]:
    found = (decode_whole_batch(message) for _, message in frames(Plan(url="", source="own", connections=1), 0, 64))
    return [bytes(decoded[1]) for decoded in found if decoded is not None]


def _produce(kafka: ApacheKafka, seconds: float, rate: float) -> list[float]:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
    )
    payloads, taken_ms = _payloads(), []
    # The first one waits for the topic and for the producer's number.
    producer.produce("own.log", payloads[0])
    producer.flush()
    began_s = time.perf_counter()
    for number in range(round(seconds * rate)):
        while (left_s := began_s + number / rate - time.perf_counter()) > 0:
            producer.poll(left_s)
        sent_s = time.perf_counter()
        producer.produce(
            "own.log",
            payloads[number % len(payloads)],
            on_delivery=lambda *_, sent_s=sent_s: taken_ms.append((time.perf_counter() - sent_s) * 1000),
        )
    producer.flush()
    return taken_ms


def _transactions(report: Report, kafka: ApacheKafka, count: int) -> None:
    """What each group would cost as a transaction: the other way to fence an owner."""
    payload = _payloads()[0]
    common = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 0}
    plain, transactional = Producer(common), Producer({**common, "transactional.id": "bench"})
    transactional.init_transactions(30)
    taken: dict[str, list[float]] = {"plain": [], "transaction": []}
    for _ in range(count):
        began_s = time.perf_counter()
        plain.produce("plain.log", payload)
        plain.flush()
        taken["plain"].append((time.perf_counter() - began_s) * 1000)
        began_s = time.perf_counter()
        transactional.begin_transaction()
        transactional.produce("transactional.log", payload)
        transactional.commit_transaction()
        taken["transaction"].append((time.perf_counter() - began_s) * 1000)
    for percent in (50, 99):
        ours, theirs = percentile(taken["plain"], percent), percentile(taken["transaction"], percent)
        name = f"one batch at a time by an idempotent producer, p{percent}"
        report.add(SECTION, Figure(name, ours, "ms", theirs, "in a transaction each"))


async def _takeovers(report: Report, folder: Path, kafka: ApacheKafka, kills: int) -> None:
    """Kill the owner under load, again and again: from the last ack before to the first one after."""
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
    config = _on_kafka(kafka, "takeover")
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
    servers = [ServerProcess(folder / f"takeover-{number}", config) for number in range(2)]
    acks_s: list[float] = []
    gaps_s: list[float] = []

    async def load() -> None:
        async with CdcClient(f"ws://127.0.0.1:{port}/ws", source="load") as client:
            while True:
                receipt = await client.send([insert("orders", str(len(acks_s)), {"n": len(acks_s)})])
                await receipt.durable()
                acks_s.append(time.perf_counter())

    await servers[0].start()
    loading = asyncio.create_task(load())
    try:
        for kill in range(kills):
            owner, other = servers[kill % 2], servers[(kill + 1) % 2]
            log = other.data / "gateway.log"
            told = log.read_text().count("standing by") if log.exists() else 0
            serving = asyncio.create_task(other.start())
            while not log.exists() or log.read_text().count("standing by") == told:
                await asyncio.sleep(0.05)
            target = len(acks_s) + 100
            while len(acks_s) < target:
                await asyncio.sleep(0.01)
            owner.kill()
            killed = len(acks_s) - 1
            await serving
            # Answers that the owner had sent still come after it was killed: the pause is what lies between.
            target = len(acks_s) + 20
            while len(acks_s) < target:
                await asyncio.sleep(0.01)
            gaps_s.append(max(after - before for before, after in pairwise(acks_s[killed:])))
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        for server in servers:
            await server.stop()
    for percent, bar in ((50, P50_S_BAR), (99, P99_S_BAR)):
        value = percentile(gaps_s, percent)
        name = f"the owner is killed: last ack before to first ack after, p{percent}"
        note = f"{kills} kills, lease {config.log.lease_s:g} s; slowest {max(gaps_s):.1f} s"
        report.add(SECTION, Figure(name, value, "s", bar=f"<= {bar:g} s", met=value <= bar, note=note))
