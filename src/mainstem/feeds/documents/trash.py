"""Tables of the store that are of no use any more: put aside at once, and emptied a little at a time.

Dropping a large table frees every page of it before anybody else is answered.
"""

import sqlite3
from collections.abc import Iterator

# Tables up to this size are dropped where they are.
ROWS_MAX = 5_000
_STEP_ROWS = 500
# By the first letter of a table's name: the columns of its primary key.
_KEYS = {"c": "place", "x": "entry, place"}


def throw_away(db: sqlite3.Connection, table: str, rows: int) -> None:
    """Take a table out of use, if it is there. `rows`: at least as many as it has."""
    if rows <= ROWS_MAX:
        db.execute(f"DROP TABLE IF EXISTS {table}")
        return
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None:
        newest = max((int(name.rpartition("_")[2]) for name in _tables(db)), default=0)
        db.execute(f"ALTER TABLE {table} RENAME TO trash_{table[0]}_{newest + 1}")


def _tables(db: sqlite3.Connection) -> list[str]:
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'trash!_%' ESCAPE '!'")
    return [name for (name,) in found.fetchall()]


def emptying(db: sqlite3.Connection) -> Iterator[None]:
    """Take away what was thrown away, some rows at each step. Between two steps the caller stores them."""
    for table in _tables(db):
        key = _KEYS[table.split("_")[1]]
        step = f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT {_STEP_ROWS})"
        while db.execute(step).rowcount:
            yield
        db.execute(f"DROP TABLE {table}")
        yield
