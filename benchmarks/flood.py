"""A producer that does not behave: it sends as fast as it can, never waits and listens to nothing.

Run as `python -m benchmarks.flood URL SECONDS CONNECTIONS`; prints how many batches were acknowledged and refused. Only
loopback addresses are taken as a target, and the time is bounded.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmarks.load import LOOPBACK, make_events

BATCH = 500
SECONDS_MAX = 120.0
SOURCE = "flood"


async def flood(url: str, seconds: float, connections: int) -> Counter[str]:
    """Answers by kind."""
    if urlsplit(url).hostname not in LOOPBACK:
        raise SystemExit(f"a load test only ever targets this machine. got={url}")
    events = msgspec.json.encode(make_events(random.Random(1), BATCH, 300_000, "flooded"))
    until_s = time.monotonic() + min(seconds, SECONDS_MAX)
    answers: Counter[str] = Counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(connections):
            tasks.create_task(_one(url, number, connections, events, until_s, answers))
    return answers


async def _one(url: str, number: int, connections: int, events: bytes, until_s: float, answers: Counter[str]) -> None:
    async with connect(url, compression=None, max_size=None, write_limit=1 << 22, open_timeout=60) as socket:
        listening = asyncio.create_task(_listen(socket, answers))
        sequence = number + 1
        try:
            while time.monotonic() < until_s:
                head = f'{{"type":"cdc_batch","sourceDoId":"{SOURCE}","sequenceNumber":{sequence},"events":'
                await socket.send(head.encode() + events + b"}", text=True)
                sequence += connections
        except ConnectionClosed:
            answers["closed"] += 1
        listening.cancel()


async def _listen(socket: ClientConnection, answers: Counter[str]) -> None:
    async for data in socket:
        answer = json.loads(data)
        answers[answer.get("reason") or answer.get("status") or answer["type"]] += 1


def main() -> None:
    """Flood, then say what came of it."""
    import uvloop

    url, seconds, connections = sys.argv[1:]
    sys.stdout.write(json.dumps(uvloop.run(flood(url, float(seconds), int(connections)))) + "\n")


if __name__ == "__main__":
    main()
