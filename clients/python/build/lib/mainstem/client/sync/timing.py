"""Time, chance and threads of the sync, as one argument, so that simulations replay from a seed."""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol, TypeVar

from mainstem.runtime.clock import Clock, SystemClock

T = TypeVar("T")


class Timing(Protocol):
    """What a coordinator needs of the world."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> random.Random: ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def offload(self, work: Callable[[], T]) -> T:
        """Do what takes the disk's time without holding the event loop up."""


class SystemTiming:
    """The machine's."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.rng = random.Random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)
