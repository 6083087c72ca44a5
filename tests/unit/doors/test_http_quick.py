"""When a connection that the socket answered counts as idle: bytes in, a clock by hand."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from mainstem.doors.http.at_hand import AtHand
from mainstem.doors.http.quick import QuickProtocol

LOAD = b"GET /v1/namespaces/db/tables/t HTTP/1.1\r\nHost: localhost\r\n\r\n"
IDLE_S = 5


class App:
    """Has one answer to everything."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing goes the ordinary way here")

    def at_hand(self, _: Any) -> AtHand:
        return AtHand(200, ((b"content-length", b"2"),), b"hi")


class Timer:
    def __init__(self, at_s: float, run: Callable[[], None]) -> None:
        self.at_s = at_s
        self.run = run
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A clock that is moved by hand, and what waits for it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, run: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, run))
        return self.timers[-1]

    def move(self, seconds: float) -> None:
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.at_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer.at_s > self.now_s]
        for timer in due:
            if not timer.is_cancelled:
                timer.run()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def test_a_connection_is_idle_from_its_last_answer_on() -> None:
    loop, transport = Loop(), Transport()
    config = uvicorn.Config(App(), lifespan="off", log_config=None, timeout_keep_alive=IDLE_S)
    protocol = QuickProtocol(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    protocol.connection_made(transport)
    for _ in range(4):
        protocol.data_received(LOAD)
        loop.move(IDLE_S - 1)
    assert transport.written.count(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi") == 4
    assert not transport.is_closed
    assert len(loop.timers) == 2, "one for the idle connection, one for unfinished requests: none for each answer"
    loop.move(1)
    assert transport.is_closed
