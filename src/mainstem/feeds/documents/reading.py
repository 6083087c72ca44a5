"""Reads: documents that match a filter, one after another, in the order that was asked for.

A read is an iterator that yields `None` now and then while it finds nothing, so that its driver can let others
have the loop. It sees what was acknowledged; inside a transaction, its snapshot with the transaction's own writes.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.documents import matcher, sort_key
from mainstem.documents.filters.ast import And, Compare, Field, Node, Op
from mainstem.feeds.documents import walking
from mainstem.feeds.documents.access import Access, Range, choose, may_repeat
from mainstem.feeds.documents.indexes import Entries, Index
from mainstem.feeds.documents.spilling import RUN_ROWS, Found, Runs
from mainstem.feeds.documents.state import Collection, State
from mainstem.feeds.documents.walking import Stored
from mainstem.wire.mongo.frames import decode_document

# As MongoDB bounds a sort in memory: beyond that it goes to disk, or is refused with `allowDiskUse: false`.
SORT_BYTES_MAX = 100 * 1024 * 1024
# After so many documents without a result the reader gives way.
TICK_DOCUMENTS = 128
_DOCUMENT_OVERHEAD_BYTES = 300

# By collection and id, what a transaction has written and no other reader sees yet; None is a delete.
Overlay = dict[tuple[str, str], dict[bytes, bytes | None]]


class Footprint:
    """What a read holds in memory, once it is known."""

    bytes: int = 0


class Position(NamedTuple):
    """Where a read is: the document that it gave last."""

    place: int
    key: bytes
    entry: bytes


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

    def find(
        self, collection: Collection, node: Node, access: Access | None = None, after: Position | None = None
    ) -> Iterator[Found | None]:
        """Documents that match, in the order of the access; `after`: those beyond a position of it."""
        access = access or choose(collection, node)
        # As it is now: a statement that writes while it reads must not find its own writes.
        own = dict(self.overlay_of(collection))
        passes = None if node == And(()) else matcher(node)
        if access.stage == "IDHACK" and _is_only_id(node):
            passes = None
        if self._has(collection):
            yield from self._stored(collection, access, own, passes, after)
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
        after: Position | None,
    ) -> Iterator[Found | None]:
        waited = 0
        for stored in self._candidates(collection, access, after):
            place, key, document, hlc, _, entry = stored
            if key in own:
                continue
            if passes is None:
                yield Found(key, document, None, hlc, place, entry)
                continue
            values = decode_document(document)
            if passes(values):
                waited = 0
                yield Found(key, document, values, hlc, place, entry)
            else:
                waited += 1
                if waited >= TICK_DOCUMENTS:
                    waited = 0
                    yield None

    def _candidates(self, collection: Collection, access: Access, after: Position | None) -> Iterator[Stored]:
        state, db, number = self.state, self._db or self.state.db, collection.number
        if access.ranges is None:
            place = None if after is None else after.place
            yield from walking.scan(db, number, after=place, backwards=access.backwards)
        elif access.index is not None:
            yield from self._by_index(collection, access, access.index, after)
        else:
            for low, high in access.ranges if after is None else _beyond(access, after.key):
                if high == low + b"\x00":
                    stored = state.get(collection, low, db)
                    if stored is not None:
                        yield stored
                else:
                    yield from walking.by_id(db, number, low, high, backwards=access.backwards)

    def _by_index(
        self, collection: Collection, access: Access, index: Index, after: Position | None
    ) -> Iterator[Stored]:
        assert access.ranges is not None
        db, ranges, backwards = self._db or self.state.db, access.ranges, access.backwards
        at = None
        if after is not None:
            at = (after.entry, after.place)
            ranges = tuple(
                each for each in ranges if (each.low <= after.entry if backwards else after.entry < each.high)
            )
        entries = Entries(index) if may_repeat(collection, index) else None
        for low, high in ranges:
            beyond = at if at is not None and low <= at[0] < high else None
            for stored in walking.by_index(db, collection.number, index, low, high, after=beyond, backwards=backwards):
                # Of several entries of a document in the ranges, the first one on the way gives it.
                if entries is None or _is_first(entries, stored, access):
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
        after: Position | None = None,
        footprint: Footprint | None = None,
    ) -> Iterator[Found | None]:
        """What `find` of MongoDB returns, before any projection. `after`: of what is in order, the rest.
        `footprint` is told what a sort holds."""
        access = access or choose(collection, node, sort, hint)
        found = self.find(collection, node, access, after)
        if sort and not (access.is_sorted and not self.overlay_of(collection)):
            fields = {k: v for k, v in sort.items() if k != "$natural"}
            return _sorted(found, fields, skip, limit, self.state.folder if may_spill else None, footprint)
        return _sliced(found, skip, limit)


def _beyond(access: Access, key: bytes) -> tuple[Range, ...]:
    """What of an access by ids is left after one of them."""
    assert access.ranges is not None
    if access.backwards:
        return tuple(Range(low, min(high, key)) for low, high in access.ranges if low < key)
    return tuple(Range(max(low, key + b"\x00"), high) for low, high in access.ranges if high > key + b"\x00")


def _is_first(entries: Entries, stored: Stored, access: Access) -> bool:
    assert access.ranges is not None
    ranges = access.ranges
    found = entries.stored(decode_document(stored.document))
    inside = [each for each in found if any(low <= each < high for low, high in ranges)] if len(found) > 1 else found
    if not inside:
        # It was changed since it was entered.
        return True
    return stored.entry == (max(inside) if access.backwards else min(inside))


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
    found: Iterator[Found | None],
    sort: Mapping[str, Any],
    skip: int,
    limit: int | None,
    folder: Path | None,
    footprint: Footprint | None,
) -> Iterator[Found | None]:
    """In order. What is more than the bound goes to files of the folder, or is refused where there is none."""
    if not sort:
        yield from _sliced(found, skip, limit)
        return
    key_of = sort_key(sort)
    wanted = None if limit is None else skip + limit
    with Runs(folder, lambda each: key_of(each.decoded())) as runs:
        held = _Held(key_of, wanted)
        for number, each in enumerate(found):
            if number % TICK_DOCUMENTS == 0:
                yield None
            if each is None:
                continue
            held.add(number, each)
            if held.bytes > SORT_BYTES_MAX:
                runs.add(held.in_order())
                held = _Held(key_of, wanted)
        if footprint is not None:
            footprint.bytes = held.bytes
        yield from islice(runs.merged(held.in_order()), skip, wanted)


class _Held:
    """The documents of a sort that are in memory: short runs, each sorted."""

    def __init__(self, key_of: Callable[[Any], Any], wanted: int | None) -> None:
        self.bytes = 0
        self._key_of = key_of
        # Where few are wanted no more than a run of them is held.
        self._wanted = wanted if wanted is not None and wanted < RUN_ROWS // 2 else None
        self._runs: list[list[tuple[Any, int, Found]]] = []
        self._run: list[tuple[Any, int, Found]] = []

    def add(self, number: int, each: Found) -> None:
        """One more; `number` is its place among those that came."""
        self._run.append((self._key_of(each.decoded()), number, Found(each.key, each.document, None, each.hlc)))
        self.bytes += len(each.document) + _DOCUMENT_OVERHEAD_BYTES
        if len(self._run) >= (RUN_ROWS if self._wanted is None else 2 * self._wanted + 1_000):
            self._end_run()

    def _end_run(self) -> None:
        self._run.sort()
        if self._wanted is None:
            self._runs.append(self._run)
            self._run = []
        else:
            del self._run[self._wanted :]
            self.bytes = sum([len(item[2].document) + _DOCUMENT_OVERHEAD_BYTES for item in self._run])

    def in_order(self) -> Iterator[Found]:
        """All of them by their keys, those with the same one as they came."""
        self._run.sort()
        return (item[2] for item in heapq.merge(*self._runs, self._run))
