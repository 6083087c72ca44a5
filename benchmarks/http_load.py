"""Clients of a catalog, as many as wanted in one thread: by hand and over one selector.

What the clients take of two cores is missing to the server that is measured, and to the slower one less than to the
faster one. So nothing is done here but to send, to count bytes and to look at the clock.
"""

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RECEIVE_BYTES = 256 * 1024
TIMEOUT_S = 60.0
_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"

# Gives a client's next request, whole.
NextRequest = Callable[[], bytes]
# Makes, for the number of a client, what it sends.
Calls = Callable[[int], NextRequest]


@dataclass
class Measured:
    """Answers of one run: how long each took, how many failed, how long it all took."""

    took_ms: list[float] = field(default_factory=list)
    failed: int = 0
    elapsed_s: float = 0.0

    def add(self, other: "Measured") -> None:
        """Another slice of the same run."""
        self.took_ms += other.took_ms
        self.failed += other.failed
        self.elapsed_s += other.elapsed_s

    @property
    def rate(self) -> float:
        """Successes per second."""
        return len(self.took_ms) / self.elapsed_s


def request(method: str, target: str, body: bytes | None = None) -> bytes:
    """A request as bytes."""
    head = f"{method} /v1/{target} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Connection:
    """One client, its connection kept open."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._status = 0
        # What is missing of the body; None where only its end will tell.
        self._missing: int | None = 0
        self._tail = b""

    def send(self, data: bytes) -> None:
        """Send a request; the next bytes that come are its answer."""
        self._status = 0
        self._tail = b""
        self.socket.sendall(data)

    def receive(self) -> int | None:
        """Take what is there. The status, once the answer is whole."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        if not self._status:
            data = self._tail + data
            end = data.find(_END_OF_HEAD)
            if end < 0:
                self._tail = data
                return None
            self._tail = b""
            self._read_head(data[:end].lower())
            data = data[end + len(_END_OF_HEAD) :]
        if self._missing is None:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            return self._status if self._tail == _LAST_CHUNK else None
        self._missing -= len(data)
        return self._status if self._missing <= 0 else None

    def _read_head(self, head: bytes) -> None:
        self._status = int(head[9:12])
        length = head.find(b"content-length:")
        if length >= 0:
            self._missing = int(head[length + 15 :].split(b"\r\n", 1)[0])
        else:
            self._missing = None if b"transfer-encoding: chunked" in head else 0

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


class _Turn:
    """A client with a request under way."""

    def __init__(self, port: int, next_request: NextRequest) -> None:
        self.connection = Connection(port)
        self._next = next_request
        self._began_s = 0.0

    def begin(self) -> None:
        data = self._next()
        self._began_s = time.perf_counter()
        self.connection.send(data)

    def go_on(self, measured: Measured) -> bool:
        """Whether the answer is whole."""
        status = self.connection.receive()
        if status is None:
            return False
        if status in (200, 204):
            measured.took_ms.append((time.perf_counter() - self._began_s) * 1000)
        else:
            measured.failed += 1
        return True


def load_run(port: int, clients: int, seconds: float, calls: Calls) -> Measured:
    """Let clients ask as fast as they are answered, for a while. What is under way at the end is waited for."""
    measured = Measured()
    turns = [_Turn(port, calls(number)) for number in range(clients)]
    with selectors.DefaultSelector() as selector:
        for turn in turns:
            selector.register(turn.connection.socket, selectors.EVENT_READ, turn)
        began_s = time.perf_counter()
        until_s = began_s + seconds
        for turn in turns:
            turn.begin()
        waiting = clients
        while waiting:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"no answer within {TIMEOUT_S} s")
            for key, _ in ready:
                if not key.data.go_on(measured):
                    continue
                if time.perf_counter() < until_s:
                    key.data.begin()
                else:
                    waiting -= 1
        measured.elapsed_s = time.perf_counter() - began_s
    for turn in turns:
        turn.connection.close()
    return measured
