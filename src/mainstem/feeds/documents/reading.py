"""Reads: documents that match a filter, one after another, in the order that was asked for.

A read is an iterator that yields `None` now and then while it finds nothing, so that whoever drives it can let others
have the loop. It sees what was acknowledged; inside a transaction, its snapshot with the transaction's own writes.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from mainstem.documents import matcher, sort_key
from mainstem.documents.ast import And, Compare, Field, Node, Op
from mainstem.feeds.documents import walking
from mainstem.feeds.documents.access import Access, choose
from mainstem.feeds.documents.spilling import Found, Runs
from mainstem.feeds.documents.state import Collection, State
from mainstem.feeds.documents.walking import Stored
from mainstem.wire.mongo.frames import decode_document

# As MongoDB bounds a sort in memory: beyond that it goes to disk, or is refused with `allowDiskUse: false`.
SORT_BYTES_MAX = 100 * 1024 * 1024
# After so many documents without a result the reader gives way.
TICK_DOCUMENTS = 128
_DOCUMENT_OVERHEAD_BYTES = 300

# By collection and id, what a transaction has written and nobody else sees yet; None is a delete.
Overlay = dict[tuple[str, str], dict[bytes, bytes | None]]


class View:
    """What one reader sees."""

    def __init__(self, state: State, db: sqlite3.Connection | None = None, overlay: Overlay | None = None) -> None:
        self.state = state
        self._db = db
        self._overlay: Overlay = {} if overlay is None else overlay

    def overlay_of(self, collection: Collection) -> dict[bytes, bytes | None]:
        """What the reader itself wrote to a collection."""
        return self._overlay.get((collection.database, collection.name), {})

    def get(self, collection: Collection, key: bytes) -> Found | None:
        """One document by its id."""
        own = self.overlay_of(collection)
        if key in own:
            document = own[key]
            return None if document is None else Found(key, document, None)
        stored = self.state.get(collection, key, self._db) if self._has(collection) else None
        return None if stored is None else Found(key, stored.document, None, stored.hlc)

    def _has(self, collection: Collection) -> bool:
        # One that is being made has no number yet, and one that came after the snapshot has no table in it.
        if self._db is None or not collection.number:
            return bool(collection.number)
        row = self._db.execute("SELECT 1 FROM collections WHERE number = ?", (collection.number,)).fetchone()
        return row is not None

    def find(self, collection: Collection, node: Node, access: Access | None = None) -> Iterator[Found | None]:
        """Documents that match, in the order of the access."""
        access = access or choose(collection, node)
        # As it is now: a statement that writes while it reads must not find its own writes.
        own = dict(self.overlay_of(collection))
        passes = None if node == And(()) else matcher(node)
        if access.stage == "IDHACK" and _is_only_id(node):
            passes = None
        if self._has(collection):
            yield from self._stored(collection, access, own, passes)
        for key, document in own.items():
            if document is not None:
                values = decode_document(document)
                if passes is None or passes(values):
                    if access.stage == "IDHACK" and passes is None and access.ranges and access.ranges[0].low != key:
                        continue
                    yield Found(key, document, values)

    def _stored(
        self,
        collection: Collection,
        access: Access,
        own: Mapping[bytes, bytes | None],
        passes: Callable[[Any], bool] | None,
    ) -> Iterator[Found | None]:
        waited = 0
        for stored in self._candidates(collection, access):
            if stored.key in own:
                continue
            if passes is None:
                yield Found(stored.key, stored.document, None, stored.hlc)
                continue
            values = decode_document(stored.document)
            if passes(values):
                waited = 0
                yield Found(stored.key, stored.document, values, stored.hlc)
            else:
                waited += 1
                if waited >= TICK_DOCUMENTS:
                    waited = 0
                    yield None

    def _candidates(self, collection: Collection, access: Access) -> Iterator[Stored]:
        state, db, number = self.state, self._db or self.state.db, collection.number
        if access.ranges is None:
            yield from walking.scan(db, number, backwards=access.backwards)
            return
        if access.index is None:
            for low, high in access.ranges:
                if high == low + b"\x00":
                    stored = state.get(collection, low, db)
                    if stored is not None:
                        yield stored
                else:
                    yield from walking.by_id(db, number, low, high, backwards=access.backwards)
            return
        # A document may have several entries in the ranges.
        seen: set[int] = set()
        for low, high in access.ranges:
            for stored in walking.by_index(db, number, access.index, low, high, backwards=access.backwards):
                if stored.place not in seen:
                    seen.add(stored.place)
                    yield stored

    def query(
        self,
        collection: Collection,
        node: Node,
        *,
        sort: Mapping[str, Any] | None = None,
        skip: int = 0,
        limit: int | None = None,
        hint: Any = None,
        access: Access | None = None,
        may_spill: bool = True,
    ) -> Iterator[Found | None]:
        """What `find` of MongoDB returns, before any projection."""
        access = access or choose(collection, node, sort, hint)
        found = self.find(collection, node, access)
        if sort and not (access.is_sorted and not self.overlay_of(collection)):
            fields = {k: v for k, v in sort.items() if k != "$natural"}
            return _sorted(found, fields, skip, limit, self.state.folder if may_spill else None)
        return _sliced(found, skip, limit)


def _is_only_id(node: Node) -> bool:
    if not isinstance(node, Field) or node.path != ("_id",):
        return False
    return isinstance(node.test, Compare) and node.test.op is Op.EQ


def _sliced(found: Iterator[Found | None], skip: int, limit: int | None) -> Iterator[Found | None]:
    for each in found:
        if each is None:
            yield None
        elif skip:
            skip -= 1
        else:
            yield each
            if limit is not None:
                limit -= 1
                if limit <= 0:
                    return


def _sorted(
    found: Iterator[Found | None], sort: Mapping[str, Any], skip: int, limit: int | None, folder: Path | None
) -> Iterator[Found | None]:
    """In order. What is more than the bound goes to files of the folder, or is refused where there is none."""
    if not sort:
        yield from _sliced(found, skip, limit)
        return
    key_of = sort_key(sort)
    size = 0
    kept: list[tuple[Any, int, Found]] = []
    wanted = None if limit is None else skip + limit
    with Runs(folder, lambda each: key_of(each.decoded())) as runs:
        for number, each in enumerate(found):
            if number % TICK_DOCUMENTS == 0:
                yield None
            if each is None:
                continue
            kept.append((key_of(each.decoded()), number, Found(each.key, each.document, None, each.hlc)))
            size += len(each.document) + _DOCUMENT_OVERHEAD_BYTES
            if wanted is not None and len(kept) >= 2 * wanted + 1_000:
                kept = heapq.nsmallest(wanted, kept)
                size = sum([len(item[2].document) + _DOCUMENT_OVERHEAD_BYTES for item in kept])
            if size > SORT_BYTES_MAX:
                kept.sort()
                runs.add([item[2] for item in kept])
                kept, size = [], 0
        kept.sort()
        yield from islice(runs.merged([item[2] for item in kept]), skip, wanted)
