"""Looking at many tables: what is wrong with one is told of that one, and the others are looked at all the same."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from mainstem.maintenance.answers import TableFailure
from mainstem.model import Corrupt, MainstemError, NotFound, TableName

logger = logging.getLogger(__name__)

T = TypeVar("T")


def named(error: Exception, name: TableName) -> MainstemError:
    """What went wrong with a table, as one of our errors: its metadata and its files may be anything."""
    if isinstance(error, MainstemError):
        return error
    return Corrupt(f"table cannot be looked at. got={type(error).__name__}: {error}", place=str(name))


def failure(error: Exception, name: TableName) -> TableFailure:
    """The same, for a request about all tables."""
    told = str(named(error, name))
    logger.warning("a table could not be looked at: %s", told, extra={"table": str(name)})
    return TableFailure(table=str(name), error=told)


async def look_at_each(
    names: Iterable[TableName], look: Callable[[TableName], Awaitable[T]]
) -> tuple[list[tuple[TableName, T]], list[TableFailure]]:
    """What was seen of each table, and which could not be looked at. Tables that are gone by now are left out."""
    found: list[tuple[TableName, T]] = []
    failures: list[TableFailure] = []
    for name in names:
        try:
            found.append((name, await look(name)))
        except NotFound:
            continue
        # The edge of one table.
        except Exception as error:
            failures.append(failure(error, name))
    return found, failures
