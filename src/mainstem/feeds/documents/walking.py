"""Ways through the store: every document, those of a range of ids, those of a range of an index, some rows at a time.

A step reads its rows whole, so that between two of them others may write.
"""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.feeds.documents.indexes import Index

CHUNK_ROWS = 256


class Stored(NamedTuple):
    """A document in the store."""

    place: int
    key: bytes
    document: bytes
    hlc: int
    # Clocks of columns that another door wrote one by one; None where the whole row has `hlc`.
    clocks: bytes | None


def scan(
    db: sqlite3.Connection,
    number: int,
    *,
    backwards: bool = False,
) -> Iterator[Stored]:
    """Every document in the order of their places. What is written meanwhile may be seen or not."""
    sign, order = ("<", "DESC") if backwards else (">", "ASC")
    place = 1 << 62 if backwards else 0
    while True:
        rows = db.execute(
            f"SELECT place, key, document, hlc, clocks FROM c{number} WHERE place {sign} ? "
            f"ORDER BY place {order} LIMIT {CHUNK_ROWS}",
            (place,),
        ).fetchall()
        for row in rows:
            yield Stored(*row)
        if len(rows) < CHUNK_ROWS:
            return
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
    while True:
        order = "DESC" if backwards else "ASC"
        rows = db.execute(
            f"SELECT place, key, document, hlc, clocks FROM {table} WHERE key >= ? AND key < ? "
            f"ORDER BY key {order} LIMIT {CHUNK_ROWS}",
            (low, high),
        ).fetchall()
        for row in rows:
            yield Stored(*row)
        if len(rows) < CHUNK_ROWS:
            return
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
    backwards: bool = False,
) -> Iterator[Stored]:
    """Documents with an entry in a range (low <= entry < high), in the order of the entries."""
    table, documents = f"x{number}_{index.number}", f"c{number}"
    sign, order = ("<", "DESC") if backwards else (">", "ASC")
    at: tuple[bytes, int] = (high, -1) if backwards else (low, -1)
    while True:
        bound = "entry >= ?" if backwards else "entry < ?"
        rows = db.execute(
            f"SELECT d.place, d.key, d.document, d.hlc, d.clocks, x.entry FROM {table} x JOIN {documents} d "
            f"ON d.place = x.place WHERE (x.entry, x.place) {sign} (?, ?) AND x.{bound} "
            f"ORDER BY x.entry {order}, x.place {order} LIMIT {CHUNK_ROWS}",
            (*at, low if backwards else high),
        ).fetchall()
        for row in rows:
            yield Stored(*row[:5])
        if len(rows) < CHUNK_ROWS:
            return
        at = (rows[-1][5], rows[-1][0])
