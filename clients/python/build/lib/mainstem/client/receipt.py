"""What a producer holds for a batch that it sent."""

import asyncio
from dataclasses import dataclass

from mainstem.model.errors import MainstemError


@dataclass(frozen=True, slots=True)
class Durable:
    """A batch is in the log. `positions` is (first, last) where the server told; a duplicate was there before."""

    sequence: int
    positions: tuple[int, int] | None
    duplicate: bool


class Receipt:
    """The fate of one batch. Wait for as much as you need to know; the client goes on in any case."""

    __slots__ = ("__weakref__", "_durable", "_durable_known", "_error", "_persisted_known", "count", "sequence")

    def __init__(self, sequence: int, count: int) -> None:
        self.sequence = sequence
        self.count = count
        self._durable: Durable | None = None
        self._error: MainstemError | None = None
        self._durable_known = asyncio.Event()
        self._persisted_known = asyncio.Event()

    async def durable(self) -> Durable:
        """Wait until the batch survives a crash. Raises Invalid where the server refused it for good, and
        OutcomeUnknown where the client was closed before it knew."""
        await self._durable_known.wait()
        if self._error is not None and self._durable is None:
            raise self._error
        assert self._durable is not None
        return self._durable

    async def persisted(self) -> None:
        """Wait until the tables show the batch. Raises as `durable` does."""
        await self._persisted_known.wait()
        if self._error is not None:
            raise self._error

    @property
    def is_durable(self) -> bool:
        """Whether it is known to be in the log."""
        return self._durable is not None

    @property
    def is_persisted(self) -> bool:
        """Whether it is known to be in the tables."""
        return self._persisted_known.is_set() and self._error is None

    def settle_durable(self, durable: Durable) -> None:
        """For the client: the server acknowledged it."""
        self._durable = durable
        self._durable_known.set()

    def settle_persisted(self) -> None:
        """For the client: the tables have it."""
        self._persisted_known.set()

    def settle_failed(self, error: MainstemError) -> None:
        """For the client: nothing further will be known. What is known already stays."""
        if not self._persisted_known.is_set():
            self._error = error
            self._durable_known.set()
            self._persisted_known.set()
