"""Which documents were deleted when: a change that is older than a delete does not bring its document back.

Changes of a sync client carry the client's clock and may come days late. The tables' merge rule has tombstones for
that; the store of documents keeps them for a while.
"""

from mainstem.feeds.documents.state import Collection, State
from mainstem.wire.mongo.batches import SOURCES

# Tombstones are kept that long. A device that is away for longer may bring a document back, here and not in the table.
KEPT_MS = 30 * 24 * 3600 * 1000


def bury(state: State, collection: Collection, key: bytes, hlc: int, source: str = SOURCES) -> None:
    """A document was deleted, at that time and by that source (if none is named, by this door). The latest delete
    counts."""
    state.begin()
    state.db.execute(
        "INSERT INTO buried VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET hlc = excluded.hlc, "
        "source = excluded.source WHERE (excluded.hlc, excluded.source) > (hlc, source)",
        (collection.database, collection.name, key, hlc, source),
    )


def is_buried(state: State, collection: Collection, key: bytes, hlc: int, source: str) -> bool:
    """Whether a change of that time is older than the document's delete."""
    row = state.db.execute(
        "SELECT hlc, source FROM buried WHERE database = ? AND name = ? AND key = ?",
        (collection.database, collection.name, key),
    ).fetchone()
    return row is not None and (hlc, source) <= (row[0], row[1])


def forget(state: State, now_ms: int) -> None:
    """Let go of tombstones that are old."""
    state.begin()
    state.db.execute("DELETE FROM buried WHERE hlc < ?", ((now_ms - KEPT_MS) << 16,))
