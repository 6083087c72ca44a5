"""Threads for requests that block, so that the event loop does not.

A commit to the catalog takes well under a millisecond of the interpreter, and the pools of anyio and of the standard
library took 150 and 60 microseconds of that to hand it over and back. Here it is a queue and one call of the loop.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
_Queue = SimpleQueue[_Work | None]


class Threads:
    """Started as they are needed, up to a bound; what comes beyond that waits. For the loop's own thread to call."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._running = 0
        self._queue: _Queue = SimpleQueue()
        weakref.finalize(self, self._queue.put, None)

    async def run(self, call: Callable[[], T]) -> T:
        """Let a thread make the call. It goes on to its end even where its caller was cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def end(value: T, error: BaseException | None) -> None:
            self._running -= 1
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def ended(value: T, error: BaseException | None) -> None:
            # The loop was closed meanwhile, and the caller with it.
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, value, error)

        self._running += 1
        if self._running > self._count and self._count < self._count_max:
            self._count += 1
            # A request that hangs must not keep the process from ending.
            threading.Thread(target=_work, args=(self._queue,), name="request", daemon=True).start()
        self._queue.put((call, ended))
        return await future


def _work(queue: _Queue) -> None:
    # Nothing here holds the pool itself: once it is let go, its threads end one after the other.
    while (work := queue.get()) is not None:
        call, ended = work
        try:
            value = call()
        except BaseException as error:
            ended(None, error)
        else:
            ended(value, None)
            del value
        # Not until the next request comes.
        del work, call, ended
    queue.put(None)
