"""Whether the log still knows everything that the tables have of it, asked once, before anything is accepted.

A log that was put back to an earlier state (a restored backup, a disk rolled back) would issue positions that tables
have marks for already, and whatever it then accepts would count as persisted without being in any table. So it goes on
as another log.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from mainstem.catalog import Store, TableIdent
from mainstem.catalog.stores.store import Kind, Pointer
from mainstem.feeds.cursors import is_told_apart
from mainstem.log import Log
from mainstem.model import NOWHERE, LogId, LogPosition, MainstemError

if TYPE_CHECKING:
    from mainstem.query.delta import DeltaTables

logger = logging.getLogger(__name__)

_READERS = 8
# With half of all cursors taken, not one start in 10^19 needs more.
TRIES_MAX = 64


async def vouch(log: Log, store: Store, delta: "Callable[[], DeltaTables]") -> None:
    """Give the log a new identity where a table is ahead of it, or where its cursors could pass for another log's."""
    here = log.lineage.log
    ahead = await asyncio.to_thread(_first_ahead, store, delta, here, log.durable)
    if ahead is not None:
        await log.renew_identity()
    if log.durable < log.lineage.spans[-1].first:
        # It has issued nothing yet. Tables know of a log that was lost, or of another gateway's.
        others = await asyncio.to_thread(logs_of, store, delta)
        for _ in range(TRIES_MAX):
            if is_told_apart(log.lineage.log, others):
                break
            await log.renew_identity()
        else:
            logger.error("the cursors of the log %s may pass for those of another: %d are known", here, len(others))
    if ahead is not None:
        logger.warning(
            "the log %s ends at %d, but %s: it goes on as the log %s", here, log.durable, ahead, log.lineage.log
        )


def logs_of(store: Store, delta: "Callable[[], DeltaTables]") -> set[LogId]:
    """Every log that a table has a mark of."""
    generic = store.entries(None, Kind.GENERIC)
    found = {each for _, pointer in (*store.entries(None, Kind.TABLE), *generic) for each in pointer.marks}
    if generic:
        tables = delta()
        for ident, pointer in generic:
            if tables.is_at(ident.table_name, pointer.location):
                with suppress(MainstemError, OSError):
                    found |= tables.marks(ident.table_name).keys()
    return found


def _first_ahead(store: Store, delta: "Callable[[], DeltaTables]", log: LogId, last: LogPosition) -> str | None:
    """What speaks against going on, in words; None where nothing does."""
    generic = store.entries(None, Kind.GENERIC)
    for ident, pointer in (*store.entries(None, Kind.TABLE), *generic):
        if pointer.marks.get(log, NOWHERE) > last:
            return f"the table {ident} has it up to {pointer.marks[log]}"
    return _first_ahead_in_delta(generic, delta, log, last) if generic else None


def _first_ahead_in_delta(
    generic: list[tuple[TableIdent, Pointer]], delta: "Callable[[], DeltaTables]", log: LogId, last: LogPosition
) -> str | None:
    """The same of our Delta tables, which keep their marks themselves."""
    tables = delta()
    names = [ident.table_name for ident, pointer in generic if tables.is_at(ident.table_name, pointer.location)]
    with ThreadPoolExecutor(_READERS) as readers:
        found: Iterator[dict[LogId, LogPosition]] = iter(readers.map(lambda name: dict(tables.marks(name)), names))
        for name in names:
            try:
                position = next(found).get(log, NOWHERE)
            except (MainstemError, OSError) as error:
                # It may be ahead. A new identity costs nothing, a wrong one loses changes.
                return f"what the table {name} has of it cannot be read ({error})"
            if position > last:
                return f"the table {name} has it up to {position}"
    return None
