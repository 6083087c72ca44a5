"""Many sync clients in a process of their own, as cheap as can be: the load must not be what is measured.

Plain sockets and one epoll, no event loop: a delivery costs this side one read, and only the sampled clients look into
what they are sent. `python -m benchmarks.sync_sockets '<Plan as JSON>'` prints a `Seen` as JSON.
"""

import asyncio
import random
import re
import select
import socket
import sys
import time
from base64 import b64encode
from urllib.parse import urlsplit

import msgspec

from benchmarks.load import tell
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from mainstem.wire.sync.frames import BROADCAST

# Large enough for what comes between two reads; small enough to be no work to make.
READ_BYTES = 32 * 1024
CONNECT_S_MAX = 60.0
# What is still on its way when the last edit was made.
LAST_S = 1.0
_SENT = re.compile(rb'"t(\d+)"').finditer


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A crowd on one gateway: how many, how many of them write, how often each, and for how long."""

    url: str
    gateway: str
    connections: int
    writers: int
    edits_per_s: float
    seconds: float
    # One reader in so many looks into what it is sent; the others only count bytes.
    sampled: int = 20
    # Whether the others read at all. Where they don't, the kernel keeps what they are sent (let it not be much), and
    # this side costs next to nothing: what is left is the server's way.
    all_read: bool = True


class Seen(msgspec.Struct, kw_only=True):
    """What the crowd saw. `late_s`: how far behind its own plan the load fell at most; it was then the bottleneck."""

    # Of each delivery that was looked at, and of each edit to the first and to the last of those who looked.
    latencies_ms: list[float] = []
    first_ms: list[float] = []
    last_ms: list[float] = []
    edits: int = 0
    received_bytes: int = 0
    busy_share: float = 0.0
    late_s: float = 0.0


class Client:
    """A WebSocket without extensions. Frames are masked with zeros, which costs nothing."""

    __slots__ = ("_buffer", "client_id", "edits", "is_sampled", "socket")

    def __init__(self, plan: Plan, number: int) -> None:
        host = urlsplit(plan.url)
        self.client_id = f"c{number}"
        self.is_sampled = False
        self.edits = 0
        self._buffer = b""
        self.socket = socket.create_connection((host.hostname or "", host.port or 80), CONNECT_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = b64encode(random.randbytes(16)).decode()
        self.socket.sendall(
            f"GET /sync/{plan.gateway}/ws HTTP/1.1\r\nHost: {host.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(4096)
        assert b" 101 " in head[:20], head[:80]
        # From the reply on the server tells of what arrives.
        self.send(sync.encode_request(sync.SyncPull(client_id=self.client_id)))
        assert self.socket.recv(4096)
        self.socket.setblocking(False)

    def send(self, payload: bytes) -> None:
        """A binary frame."""
        size = len(payload)
        head = bytes([0x82, 0x80 | size]) if size < 126 else bytes([0x82, 0xFE]) + size.to_bytes(2, "big")
        self.socket.send(head + b"\0\0\0\0" + payload)

    def edit(self) -> None:
        """Write the time into the own row."""
        self.edits += 1
        columns = (sync.ColumnDelta("text", b'"t%d"' % time.perf_counter_ns()),)
        hlc = pack(SystemClock().now_ms(), self.edits)
        name = sync.delta_id(table="notes", row_id=self.client_id, columns=columns, hlc=hlc, client_id=self.client_id)
        delta = sync.RowDelta(
            op=sync.Op.UPDATE,
            table="notes",
            row_id=self.client_id,
            columns=columns,
            hlc=hlc,
            client_id=self.client_id,
            delta_id=name,
        )
        self.send(sync.encode_request(sync.SyncPush(client_id=self.client_id, deltas=[delta])))

    def sent_ns(self, data: bytes) -> list[int]:
        """When the edits were made of which the broadcasts tell that are whole now."""
        buffer = self._buffer + data
        found: list[int] = []
        offset = 0
        while len(buffer) - offset >= 2:
            size, start = buffer[offset + 1], offset + 2
            if size == 126:
                size, start = int.from_bytes(buffer[offset + 2 : offset + 4], "big"), offset + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[offset + 2 : offset + 10], "big"), offset + 10
            end = start + size
            if len(buffer) < end:
                break
            if buffer[start] == BROADCAST:
                found += [int(sent[1]) for sent in _SENT(buffer, start, end)]
            offset = end
        self._buffer = buffer[offset:]
        return found


def run(plan: Plan) -> Seen:
    """Connect everyone, let some write, and see what the sampled ones are told."""
    clients = [Client(plan, number) for number in range(plan.connections)]
    # The first ones listen and the last ones write.
    for client in clients[: plan.connections - plan.writers : plan.sampled]:
        client.is_sampled = True
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    sys.stdin.readline()
    poll = select.epoll()
    by_number = {client.socket.fileno(): client for client in clients}
    for number, client in by_number.items():
        if plan.all_read or client.is_sampled:
            poll.register(number, select.EPOLLIN)
    seen = Seen()
    # By edit: how long it took to each of those who look.
    took_ms: dict[int, list[float]] = {}
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    times_s = _times_s(plan, began_s)
    end_s = began_s + plan.seconds + LAST_S
    while (now_s := time.perf_counter()) < end_s:
        while times_s and times_s[-1][0] <= now_s:
            due_s, index = times_s.pop()
            seen.late_s = max(seen.late_s, now_s - due_s)
            clients[-1 - index].edit()
        wait_s = (times_s[-1][0] if times_s else end_s) - now_s
        for number, _ in poll.poll(max(0.0, wait_s)):
            client = by_number[number]
            data = client.socket.recv(READ_BYTES)
            assert data, "the server closed a connection"
            seen.received_bytes += len(data)
            if client.is_sampled:
                now_ns = time.perf_counter_ns()
                for sent_ns in client.sent_ns(data):
                    took_ms.setdefault(sent_ns, []).append((now_ns - sent_ns) / 1e6)
    seen.edits = sum(client.edits for client in clients)
    seen.busy_share = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
    for each in took_ms.values():
        seen.latencies_ms += each
        seen.first_ms.append(min(each))
        seen.last_ms.append(max(each))
    for client in clients:
        client.socket.close()
    return seen


def _times_s(plan: Plan, began_s: float) -> list[tuple[float, int]]:
    """When which writer writes, the next one last: each at its own even pace, whatever the server does. An answer that
    is late delays no edit."""
    chance = random.Random(1)
    times_s = [
        (began_s + (turn + phase) / plan.edits_per_s, index)
        for index, phase in enumerate(chance.random() for _ in range(plan.writers))
        for turn in range(max(1, round(plan.seconds * plan.edits_per_s)))
    ]
    return sorted(times_s, reverse=True)


class Crowd:
    """The process of a plan: `async with Crowd(plan) as crowd` has everyone connected, `await crowd.edit()` goes on."""

    def __init__(self, plan: Plan) -> None:
        self._plan = msgspec.json.encode(plan).decode()
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> "Crowd":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.sync_sockets", self._plan, stdin=pipe, stdout=pipe
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"connected\n", "the crowd could not connect"
        return self

    async def edit(self) -> Seen:
        """Let them write; what was seen."""
        output, _ = await self._process.communicate(b"\n")
        return msgspec.json.decode(output, type=Seen)

    async def __aexit__(self, *exc: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


if __name__ == "__main__":
    tell(run(msgspec.json.decode(sys.argv[1], type=Plan)))
