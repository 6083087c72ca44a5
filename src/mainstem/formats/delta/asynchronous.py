"""The same table for asyncio: every call runs in a thread, since the work is delta-rs's, DuckDB's and the disk's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from mainstem.formats.delta.queries import Filter
from mainstem.formats.delta.storage import Storage
from mainstem.formats.delta.table import DeltaTable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _threaded(
    method: Callable[Concatenate[DeltaTable, _P], _R],
) -> Callable[Concatenate["AsyncDeltaTable", _P], Awaitable[_R]]:
    async def call(self: "AsyncDeltaTable", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.to_thread(method, self.table, *args, **kwargs)

    call.__name__ = method.__name__
    call.__doc__ = method.__doc__
    return call


class AsyncDeltaTable:
    """A Delta table whose calls are awaited. `table` is the one that blocks."""

    def __init__(self, storage: Storage | str | None, name: str) -> None:
        self.table = DeltaTable(storage, name)

    exists = _threaded(DeltaTable.exists)
    snapshot = _threaded(DeltaTable.snapshot)
    history = _threaded(DeltaTable.history)
    changes = _threaded(DeltaTable.changes)
    create = _threaded(DeltaTable.create)
    add_columns = _threaded(DeltaTable.add_columns)
    add_constraint = _threaded(DeltaTable.add_constraint)
    drop_constraint = _threaded(DeltaTable.drop_constraint)
    set_properties = _threaded(DeltaTable.set_properties)
    write = _threaded(DeltaTable.write)
    upsert = _threaded(DeltaTable.upsert)
    update = _threaded(DeltaTable.update)
    delete = _threaded(DeltaTable.delete)
    optimize = _threaded(DeltaTable.optimize)
    vacuum = _threaded(DeltaTable.vacuum)
    restore = _threaded(DeltaTable.restore)
    checkpoint = _threaded(DeltaTable.checkpoint)

    async def query(self, filter: Filter | None = None, **options: Any) -> list[dict[str, Any]]:
        """The matching rows as documents."""
        return await asyncio.to_thread(self.table.query, filter, **options)

    async def query_arrow(self, filter: Filter | None = None, **options: Any) -> pa.Table:
        """The matching rows in Arrow."""
        return await asyncio.to_thread(self.table.query_arrow, filter, **options)

    async def version(self) -> int:
        """The newest version."""
        return await asyncio.to_thread(lambda: self.table.version)

    async def query_batches(self, filter: Filter | None = None, **options: Any) -> AsyncIterator[pa.RecordBatch]:
        """The matching rows in Arrow, batch by batch."""
        batches = await asyncio.to_thread(self.table.query_batches, filter, **options)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch
