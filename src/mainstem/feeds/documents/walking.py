"""Ways through the store: every document, those of a range of ids, those of a range of an index, some rows at a time.

A step reads its rows whole, so that between two of them others may write.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from mainstem.feeds.documents.indexes import Index

CHUNK_ROWS = 256
# The first rows of a walk are few, for most readers want few; then twice as many each time, up to so many bytes.
_FIRST_ROWS = 16
_CHUNK_BYTES = 4 * 1024 * 1024


class Stored(NamedTuple):
    """A document in the store."""

    place: int
    key: bytes
    document: bytes
    hlc: int
    # Clocks of columns that another door wrote one by one; None where the whole row has `hlc`.
    clocks: bytes | None
    # The entry of an index that led to it.
    entry: bytes = b""


def scan(
    db: sqlite3.Connection,
    number: int,
    *,
    after: int | None = None,
    backwards: bool = False,
) -> Iterator[Stored]:
    """Every document in the order of their places, or those beyond a place. What is written meanwhile may be seen or
    not."""
    sign, order = ("<", "DESC") if backwards else (">", "ASC")
    place = after if after is not None else 1 << 62 if backwards else 0
    count = _FIRST_ROWS
    while True:
        rows = db.execute(
            f"SELECT place, key, document, hlc, clocks FROM c{number} WHERE place {sign} ? "
            f"ORDER BY place {order} LIMIT ?",
            (place, count),
        ).fetchall()
        for row in rows:
            yield Stored(*row)
        if len(rows) < count:
            return
        count = _more(rows, count)
        place = rows[-1][0]


def by_id(
    db: sqlite3.Connection,
    number: int,
    low: bytes = b"",
    high: bytes | None = None,
    *,
    backwards: bool = False,
) -> Iterator[Stored]:
    """Documents whose id is in a range (low <= id < high), in order."""
    table = f"c{number}"
    high = b"\xff" if high is None else high
    count = _FIRST_ROWS
    while True:
        order = "DESC" if backwards else "ASC"
        rows = db.execute(
            f"SELECT place, key, document, hlc, clocks FROM {table} WHERE key >= ? AND key < ? "
            f"ORDER BY key {order} LIMIT ?",
            (low, high, count),
        ).fetchall()
        for row in rows:
            yield Stored(*row)
        if len(rows) < count:
            return
        count = _more(rows, count)
        if backwards:
            high = rows[-1][1]
        else:
            low = rows[-1][1] + b"\x00"


def by_index(
    db: sqlite3.Connection,
    number: int,
    index: Index,
    low: bytes,
    high: bytes,
    *,
    after: tuple[bytes, int] | None = None,
    backwards: bool = False,
) -> Iterator[Stored]:
    """Documents with an entry in a range (low <= entry < high), in the order of the entries and then of their places;
    `after`: those beyond an entry and a place."""
    table, documents = f"x{number}_{index.number}", f"c{number}"
    sign, order = ("<", "DESC") if backwards else (">", "ASC")
    at = after if after is not None else (high, -1) if backwards else (low, -1)
    count = _FIRST_ROWS
    while True:
        bound = "entry >= ?" if backwards else "entry < ?"
        rows = db.execute(
            f"SELECT d.place, d.key, d.document, d.hlc, d.clocks, x.entry FROM {table} x JOIN {documents} d "
            f"ON d.place = x.place WHERE (x.entry, x.place) {sign} (?, ?) AND x.{bound} "
            f"ORDER BY x.entry {order}, x.place {order} LIMIT ?",
            (*at, low if backwards else high, count),
        ).fetchall()
        for row in rows:
            yield Stored(*row)
        if len(rows) < count:
            return
        count = _more(rows, count)
        at = (rows[-1][5], rows[-1][0])


def _more(rows: list[Any], count: int) -> int:
    """How many rows to read next."""
    mean_bytes = sum([len(row[2]) for row in rows]) // len(rows) + 1
    return max(1, min(CHUNK_ROWS, count * 2, _CHUNK_BYTES // mean_bytes))
