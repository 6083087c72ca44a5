"""Changes as a producer writes them down: one short function per operation."""

from collections.abc import Mapping
from typing import Any

from mainstem.wire.cdc import CdcEvent, CdcOperation


def insert(table: str, key: str | int, row: Mapping[str, Any], **more: Any) -> CdcEvent:
    """A new row. `more` may give sequence, timestamp (milliseconds) and metadata."""
    return CdcEvent(operation=CdcOperation.INSERT, table=table, row_id=key, after=dict(row), **more)


def update(table: str, key: str | int, columns: Mapping[str, Any], **more: Any) -> CdcEvent:
    """New values for a row: the whole row, or only the columns that changed. `more` may also give `before`."""
    return CdcEvent(operation=CdcOperation.UPDATE, table=table, row_id=key, after=dict(columns), **more)


def delete(table: str, key: str | int, **more: Any) -> CdcEvent:
    """The row is gone. `more` may also give `before`."""
    return CdcEvent(operation=CdcOperation.DELETE, table=table, row_id=key, **more)


def read(table: str, key: str | int, row: Mapping[str, Any], **more: Any) -> CdcEvent:
    """A row as it stood when the producer took its initial copy of the table."""
    return CdcEvent(operation=CdcOperation.READ, table=table, row_id=key, after=dict(row), **more)
