"""Errors of Delta tables, and delta-rs's own turned into them.

What delta-rs raises says what happened in its words; here it becomes what the caller does next.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from mainstem.model.errors import Conflict, Invalid, MainstemError, NotFound


class VersionMismatchError(Conflict):
    """Another writer committed first, and this write cannot be laid over theirs."""

    def __init__(self, table: str, *, expected: int | None, got: int | None, detail: str = "") -> None:
        super().__init__(f"the table moved on. table={table} expected={expected} got={got} {detail}".rstrip())
        self.table = table
        self.expected = expected
        self.got = got


class DeltaFailure(MainstemError):
    """delta-rs or DuckDB could not do it, for a reason that is none of the caller's making."""


@contextmanager
def delta_errors(table: str) -> Iterator[None]:
    """Raise our errors for delta-rs's."""
    try:
        yield
    except TableNotFoundError as error:
        raise NotFound(f"no Delta table here. table={table}") from error
    except CommitFailedError as error:
        raise VersionMismatchError(table, expected=None, got=None, detail=str(error)[:500]) from error
    except SchemaMismatchError as error:
        raise Invalid(f"rows do not fit the table. table={table} {str(error)[:500]}", reason="schema") from error
    except DeltaError as error:
        text = str(error)
        if "failed validation check" in text or "onstraint" in text:
            raise Invalid(f"rows break a constraint. table={table} {text[:500]}", reason="constraint") from error
        raise DeltaFailure(f"delta-rs failed. table={table} {text[:500]}") from error
