"""A load generator in processes of its own: raw WebSocket frames, so that the server is what is measured.

Run as `python -m benchmarks.load` with a JSON plan on standard input; prints a JSON result. Only loopback addresses are
taken as a target, and both the number of batches and the time are bounded.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one generator process sends."""

    url: str
    source: str
    connections: int = 4
    batches: int = 100
    batch_size: int = 500
    keys: int = 300_000
    # Every key once, in order, from this one on; None draws them at random.
    first_key: int | None = None
    tables: tuple[str, ...] = ("events",)
    # Batches per second over all connections; None is as fast as the window allows.
    rate: float | None = None
    window: int = 4
    seconds_max: float = 600.0
    seed: int = 1
    # Also note when batches become `persisted`.
    persisted: bool = False


class Result(msgspec.Struct, kw_only=True):
    """What came of it. Latencies in milliseconds, one per batch."""

    changes: int
    began_s: float
    ended_s: float
    ack_ms: list[float]
    persisted_ms: list[float] = []
    nacks: int = 0
    # CPU seconds of the generator itself while it sent.
    cpu_s: float = 0.0


def make_events(
    rng: random.Random, size: int, keys: int, table: str, first_key: int | None = None
) -> list[dict[str, Any]]:
    """Whole rows, about 220 bytes of JSON each; keys drawn at random, or in order from `first_key` on."""
    events = []
    for index in range(size):
        key = rng.randrange(keys) if first_key is None else first_key + index
        events.append(
            {
                "sequence": index,
                "timestamp": 1_767_225_600_000 + index,
                "operation": "UPDATE",
                "table": table,
                "rowId": f"k{key}",
                "after": {
                    "id": key,
                    "name": f"n{key % 977}",
                    "qty": rng.randrange(1000),
                    "price": rng.randrange(100_000) / 100,
                    "ok": rng.random() < 0.5,
                    "city": rng.choice(("Oslo", "Lima", "Pune", "Bonn")),
                    "ts": 1_767_225_600_000 + index,
                    "note": "as good as new",
                },
            }
        )
    return events


def frames(plan: Plan, connection: int, count: int) -> list[tuple[int, bytes]]:
    """Whole messages, made before the clock starts. Each connection is a source of its own."""
    rng = random.Random(f"{plan.seed}/{connection}/{plan.source}")
    source = f"{plan.source}-{connection}"
    made = []
    for sequence in range(1, count + 1):
        # In order: each table gets its own run of keys, whichever connection brings it.
        turn = (sequence - 1) * plan.connections + connection
        first = None if plan.first_key is None else plan.first_key + turn // len(plan.tables) * plan.batch_size
        table = plan.tables[turn % len(plan.tables)]
        events = msgspec.json.encode(make_events(rng, plan.batch_size, plan.keys, table, first))
        head = f'{{"type":"cdc_batch","timestamp":0,"sourceDoId":"{source}","sequenceNumber":{sequence},"events":'
        made.append((sequence, head.encode() + events + b"}"))
    return made


class _Sender:
    """One connection: sends within its window, and notes when each batch is acknowledged."""

    def __init__(self, plan: Plan, connection: int, messages: list[tuple[int, bytes]], rate: float | None) -> None:
        self._plan = plan
        self._connection = connection
        self._messages = messages
        self._rate = rate
        self._sent_s: dict[int, float] = {}
        self._acked_s: dict[int, float] = {}
        self._unpersisted: deque[int] = deque()
        self._window = asyncio.Semaphore(plan.window)
        self.ack_ms: list[float] = []
        self.persisted_ms: list[float] = []
        self.nacks = 0

    async def run(self) -> None:
        async with (
            connect(self._plan.url, max_size=None, compression=None, write_limit=1 << 22, open_timeout=60) as socket,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._send(socket))
            tasks.create_task(self._receive(socket))

    async def _send(self, socket: ClientConnection) -> None:
        began_s = time.perf_counter()
        for index, (sequence, message) in enumerate(self._messages):
            if self._rate is not None:
                # On a fixed timetable: a slow ack makes the next ones late, and that counts as their latency.
                due_s = began_s + index / self._rate
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                self._sent_s[sequence] = max(due_s, began_s)
            await self._window.acquire()
            self._sent_s.setdefault(sequence, time.perf_counter())
            await socket.send(message, text=True)

    async def _receive(self, socket: ClientConnection) -> None:
        wanted = len(self._messages)
        while len(self.ack_ms) + self.nacks < wanted or (self._plan.persisted and self._unpersisted):
            answer = json.loads(await socket.recv())
            now_s = time.perf_counter()
            sequence = answer.get("sequenceNumber", 0)
            if answer["type"] == "nack":
                self.nacks += 1
                self._window.release()
            elif answer["type"] == "ack" and answer["status"] == "persisted":
                while self._unpersisted and self._unpersisted[0] <= sequence:
                    self.persisted_ms.append((now_s - self._acked_s.pop(self._unpersisted.popleft())) * 1000)
            elif answer["type"] == "ack" and sequence in self._sent_s:
                self.ack_ms.append((now_s - self._sent_s.pop(sequence)) * 1000)
                self._acked_s[sequence] = now_s
                self._unpersisted.append(sequence)
                self._window.release()


async def generate(plan: Plan) -> Result:
    """Send the plan's batches, and wait for their acks."""
    if urlsplit(plan.url).hostname not in LOOPBACK:
        raise SystemExit(f"a load test only ever targets this machine. got={plan.url}")
    each = plan.batches // plan.connections
    rate = None if plan.rate is None else plan.rate / plan.connections
    senders = [_Sender(plan, c, frames(plan, c, each), rate) for c in range(plan.connections)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began_s, cpu_s = time.time(), time.process_time()
    async with asyncio.timeout(plan.seconds_max), asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(sender.run())
    return Result(
        changes=each * plan.connections * plan.batch_size,
        began_s=began_s,
        ended_s=time.time(),
        ack_ms=[ms for s in senders for ms in s.ack_ms],
        persisted_ms=[ms for s in senders for ms in s.persisted_ms],
        nacks=sum(s.nacks for s in senders),
        cpu_s=time.process_time() - cpu_s,
    )


def main() -> None:
    """Read the plan, say `ready`, wait for a line, go."""
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    import uvloop

    tell(uvloop.run(generate(plan)))


def tell(result: object) -> None:
    """Print a result as one line of JSON, whatever its length.

    `sys.stdout` loses what a pipe does not take at once where PYTHONUNBUFFERED is set.
    """
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
