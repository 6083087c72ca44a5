"""The documents as they are now: a local store on disk, made of the log and the tables, and a cache of nothing else.

One SQLite file: a table per collection (the document's place, its id as ordered bytes, its BSON), one per index, the
answers that retries need, and up to which position of which log all of this is complete. All of it belongs to one
transaction with that position, so the file is always the state at some position, and the log's tail brings it on.

Belongs to the event loop. What is applied here is durable in the log already.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.feeds.documents import trash, walking
from mainstem.feeds.documents.indexes import Entries, Index, parse_index
from mainstem.feeds.documents.shapes import FieldTypes, Shape
from mainstem.feeds.documents.walking import CHUNK_ROWS, Stored
from mainstem.model.position import NOWHERE, UNNAMED, LogId, LogPosition
from mainstem.wire.mongo.frames import decode_document, encode_document

VERSION = 2
# The documents of this collection describe the others of their database.
COLLECTIONS = "system.collections"
# An index in the making is stored every so many documents.
_COMMIT_ROWS = 4_096

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER, position INTEGER, log TEXT);
CREATE TABLE IF NOT EXISTS collections (
    number INTEGER PRIMARY KEY, database TEXT, name TEXT, document BLOB, indexes_next INTEGER,
    changed INTEGER DEFAULT 0, UNIQUE (database, name)
);
CREATE TABLE IF NOT EXISTS types (
    number INTEGER, field TEXT, type TEXT, PRIMARY KEY (number, field, type)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS buried (
    database TEXT, name TEXT, key BLOB, hlc INTEGER, source TEXT, PRIMARY KEY (database, name, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS untracked (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    session BLOB, number INTEGER, position INTEGER, answers BLOB, at_ms INTEGER, PRIMARY KEY (session, number, position)
) WITHOUT ROWID;
"""


_UPSERT = (
    "INSERT INTO {} (key, document, hlc, clocks) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
    "document = excluded.document, hlc = excluded.hlc, clocks = excluded.clocks"
)


class Collection:
    """One collection: what is declared of it, and its indexes."""

    def __init__(self, number: int, database: str, name: str, document: Mapping[str, Any]) -> None:
        self.number = number
        self.database = database
        self.name = name
        self.fields = FieldTypes()
        # The position of the last change of its documents.
        self.changed = NOWHERE
        # Indexes that are being made: kept up with writes, and not read yet.
        self.building: list[Entries] = []
        self.describe(document)

    def describe(self, document: Mapping[str, Any]) -> None:
        """Take over what a document of `system.collections` says."""
        self.document = dict(document)
        self.options: dict[str, Any] = dict(document.get("options", {}))
        self.uuid = document.get("uuid")
        self.indexes: list[Entries] = [
            Entries(parse_index({k: v for k, v in each.items() if k != "number"}, each["number"]))
            for each in document.get("indexes", ())
        ]

    @property
    def kept(self) -> list[Entries]:
        """The indexes that a write keeps up, those that are being made among them."""
        return [*self.indexes, *self.building] if self.building else self.indexes

    @property
    def namespace(self) -> str:
        """As MongoDB writes it."""
        return f"{self.database}.{self.name}"

    @property
    def has_images(self) -> bool:
        """Whether change streams may ask for the documents before their changes."""
        return bool(self.options.get("changeStreamPreAndPostImages", {}).get("enabled"))


class State:
    """The store. Every method is quick, or works on a bounded number of documents."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.db = self._connect()
        # Losing the newest transactions is fine, a damaged file is not: they are made again from the log.
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        # `checkpoint` does it, in a thread: on the loop everybody would wait for the disk.
        self.db.execute("PRAGMA wal_autocheckpoint=0")
        self.db.execute("PRAGMA cache_size=-65536")
        self.db.executescript(_SCHEMA)
        self.position = NOWHERE
        self.log = UNNAMED
        self.collections: dict[tuple[str, str], Collection] = {}
        # By number, up to which position collections changed since the last commit.
        self._touched: dict[int, LogPosition] = {}
        self._load()

    @property
    def folder(self) -> Path:
        """Where the store is, and what is larger than memory for a while."""
        return self._path.parent

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, cached_statements=512)

    def _load(self) -> None:
        row = self.db.execute("SELECT version, position, log FROM about").fetchone()
        if row is None or row[0] != VERSION:
            # Also where nothing was ever stored: its tables may be of another version.
            self.clear()
            row = None
        if row is not None:
            self.position, self.log = LogPosition(row[1]), LogId(row[2])
        for number, database, name, document, changed in self.db.execute(
            "SELECT number, database, name, document, changed FROM collections"
        ):
            found = self.collections[database, name] = Collection(number, database, name, decode_document(document))
            known = self.db.execute("SELECT field, type FROM types WHERE number = ?", (number,)).fetchall()
            found.fields, found.changed = FieldTypes(known), LogPosition(changed)

    def close(self) -> None:
        """Store what was applied, and let go of the file."""
        self.commit()
        self.db.close()

    def clear(self) -> None:
        """Forget everything: it is of another log, or of another version."""
        self.commit()
        tables = [name for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        # All or nothing: a file without its position, and with some of its collections, is of no log at all.
        self.db.execute("BEGIN")
        for name in tables:
            if not name.startswith("sqlite_"):
                self.db.execute(f'DROP TABLE "{name}"')
        self.db.execute("COMMIT")
        self.db.executescript(_SCHEMA)
        self.position, self.log = NOWHERE, UNNAMED
        self.collections = {}

    # Transactions of the file

    def begin(self) -> None:
        """What is applied from here on is stored together, at `commit`."""
        if not self.db.in_transaction:
            self.db.execute("BEGIN")

    def cover(self, position: LogPosition, log: LogId) -> None:
        """Everything up to a position is applied."""
        self.begin()
        self.position, self.log = position, log

    def commit(self) -> None:
        """Let others see what was applied."""
        if self.db.in_transaction:
            self.db.execute(
                "INSERT INTO about VALUES (1, ?, ?, ?) ON CONFLICT DO UPDATE SET version = excluded.version, "
                "position = excluded.position, log = excluded.log",
                (VERSION, self.position, self.log),
            )
            changed = [(position, number) for number, position in self._touched.items()]
            self.db.executemany("UPDATE collections SET changed = ? WHERE number = ?", changed)
            self._touched.clear()
            self.db.execute("COMMIT")

    def roll_back(self) -> None:
        """Forget what was applied since the last `commit`: a part of it may be missing."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.position, self.log, self.collections = NOWHERE, UNNAMED, {}
        self._touched.clear()
        self._load()

    def checkpoint(self) -> None:
        """Bring the file up to date with its own log. May run in a thread."""
        with sqlite3.connect(self._path, isolation_level=None) as other:
            other.execute("PRAGMA synchronous=NORMAL")
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        other.close()

    def snapshot(self) -> sqlite3.Connection:
        """A view of everything as it is now, until it is closed."""
        self.commit()
        reader = self._connect()
        reader.execute("BEGIN")
        reader.execute("SELECT position FROM about").fetchone()
        return reader

    # Collections

    def find(self, database: str, name: str) -> Collection | None:
        """A collection that exists."""
        return self.collections.get((database, name))

    def describe(self, database: str, name: str, document: Mapping[str, Any]) -> Collection:
        """A collection was made, or changed: its indexes are made to match."""
        self.begin()
        known = self.collections.get((database, name))
        data = encode_document(document)
        if known is None:
            cursor = self.db.execute(
                "INSERT INTO collections (database, name, document, indexes_next) VALUES (?, ?, ?, 1)",
                (database, name, data),
            )
            assert cursor.lastrowid is not None
            known = self.collections[database, name] = Collection(cursor.lastrowid, database, name, document)
            self.db.execute(
                f"CREATE TABLE c{known.number} (place INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, document BLOB "
                "NOT NULL, hlc INTEGER NOT NULL, clocks BLOB)"
            )
            for entries in known.indexes:
                self._make_index(known, entries)
            return known
        before = {entries.index.number: entries for entries in known.indexes}
        self.db.execute("UPDATE collections SET document = ? WHERE number = ?", (data, known.number))
        known.describe(document)
        after = {entries.index.number: entries for entries in known.indexes}
        for number in before.keys() - after.keys():
            trash.throw_away(self.db, f"x{known.number}_{number}", self.last_place(known))
        built = {entries.index.number for entries in known.building}
        known.building = [entries for entries in known.building if entries.index.number not in after]
        for number in after.keys() - before.keys() - built:
            self._make_index(known, after[number])
        return known

    def _make_index(self, collection: Collection, entries: Entries) -> None:
        """Make an index at once: of a collection that is being described anew, from the log."""
        self._index_table(collection, entries)
        for stored in walking.scan(self.db, collection.number):
            self._enter(collection, entries, stored)

    def _index_table(self, collection: Collection, entries: Entries) -> None:
        self.begin()
        table = f"x{collection.number}_{entries.index.number}"
        # One may be left of an index that was not finished.
        self.db.execute(f"DROP TABLE IF EXISTS {table}")
        self.db.execute(f"CREATE TABLE {table} (entry BLOB, place INTEGER, PRIMARY KEY (entry, place)) WITHOUT ROWID")

    def _enter(self, collection: Collection, entries: Entries, stored: Stored) -> None:
        table = f"x{collection.number}_{entries.index.number}"
        found = entries.stored(decode_document(stored.document))
        rows = [(entry, stored.place) for entry in found]
        self.db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", rows)

    def build_index(self, collection: Collection, entries: Entries) -> Iterator[Stored]:
        """Make an index step by step, while others write: each document is entered after it was given. A caller that
        takes them all has an index that `describe` takes over; `abandon_index` it otherwise."""
        self._index_table(collection, entries)
        collection.building.append(entries)
        for number, stored in enumerate(walking.scan(self.db, collection.number)):
            yield stored
            if self.collections.get((collection.database, collection.name)) is not collection:
                return
            self.begin()
            # As it is now: it may have been changed, or be gone, since it was read.
            newest = self.get(collection, stored.key)
            if newest is not None and newest.place == stored.place:
                self._enter(collection, entries, newest)
            if number % _COMMIT_ROWS == 0:
                self.commit()

    def abandon_index(self, collection: Collection, entries: Entries) -> None:
        """An index that was not finished goes."""
        if entries in collection.building:
            collection.building.remove(entries)
            self.begin()
            trash.throw_away(self.db, f"x{collection.number}_{entries.index.number}", self.last_place(collection))

    def drop(self, database: str, name: str) -> None:
        """A collection is gone, with all that is in it."""
        known = self.collections.pop((database, name), None)
        if known is None:
            return
        self.begin()
        rows = self.last_place(known)
        for entries in known.kept:
            trash.throw_away(self.db, f"x{known.number}_{entries.index.number}", rows)
        trash.throw_away(self.db, f"c{known.number}", rows)
        self.db.execute("DELETE FROM collections WHERE number = ?", (known.number,))
        self.db.execute("DELETE FROM types WHERE number = ?", (known.number,))

    # Documents

    def touched(self, collection: Collection, position: LogPosition) -> None:
        """Documents of a collection changed, at a position."""
        self.begin()
        collection.changed = max(collection.changed, position)
        self._touched[collection.number] = collection.changed

    def shaped(self, collection: Collection, shapes: Iterable[Shape] | None) -> None:
        """Documents of these shapes are written to a collection; None: some of which no column tells exactly."""
        fresh = collection.fields.lose() if shapes is None else collection.fields.add(shapes)
        if fresh:
            self.begin()
            rows = [(collection.number, field, kind) for field, kind in fresh]
            self.db.executemany("INSERT OR IGNORE INTO types VALUES (?, ?, ?)", rows)

    def put_all(self, collection: Collection, rows: list[tuple[bytes, bytes, int]]) -> None:
        """Documents are now these: key, document and clock of each."""
        if collection.kept:
            for key, document, hlc in rows:
                self.put(collection, key, document, hlc)
            return
        self.begin()
        self.db.executemany(_UPSERT.format(f"c{collection.number}"), [(*row, None) for row in rows])

    def put(self, collection: Collection, key: bytes, document: bytes, hlc: int, clocks: bytes | None = None) -> None:
        """A document is now this."""
        self.begin()
        table = f"c{collection.number}"
        if not collection.kept:
            self.db.execute(_UPSERT.format(table), (key, document, hlc, clocks))
            return
        old = self.get(collection, key)
        if old is None:
            cursor = self.db.execute(
                f"INSERT INTO {table} (key, document, hlc, clocks) VALUES (?, ?, ?, ?)", (key, document, hlc, clocks)
            )
            assert cursor.lastrowid is not None
            self._index(collection, cursor.lastrowid, None, document)
        else:
            self.db.execute(
                f"UPDATE {table} SET document = ?, hlc = ?, clocks = ? WHERE place = ?",
                (document, hlc, clocks, old.place),
            )
            self._index(collection, old.place, old.document, document)

    def delete(self, collection: Collection, key: bytes) -> None:
        """A document is gone."""
        self.begin()
        if collection.kept:
            old = self.get(collection, key)
            if old is None:
                return
            self._index(collection, old.place, old.document, None)
        self.db.execute(f"DELETE FROM c{collection.number} WHERE key = ?", (key,))

    def _index(self, collection: Collection, place: int, old: bytes | None, new: bytes | None) -> None:
        before = None if old is None else decode_document(old)
        after = None if new is None else decode_document(new)
        for entries in collection.kept:
            had = entries.stored(before)
            has = entries.stored(after)
            table = f"x{collection.number}_{entries.index.number}"
            if gone := had - has:
                self.db.executemany(
                    f"DELETE FROM {table} WHERE entry = ? AND place = ?", [(entry, place) for entry in gone]
                )
            if fresh := has - had:
                self.db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", [(each, place) for each in fresh])

    def get(self, collection: Collection, key: bytes, db: sqlite3.Connection | None = None) -> Stored | None:
        """One document by its id."""
        row = (
            (db or self.db)
            .execute(f"SELECT place, key, document, hlc, clocks FROM c{collection.number} WHERE key = ?", (key,))
            .fetchone()
        )
        return None if row is None else Stored(*row)

    def taken(self, collection: Collection, keys: list[bytes]) -> set[bytes]:
        """Which of these ids there are. `keys` are at most as many as a statement may have parameters."""
        marks = ",".join("?" * len(keys))
        # Ids mostly grow: then one look at the greatest is enough.
        newest = self.db.execute(f"SELECT max(key) FROM c{collection.number}").fetchone()[0]
        if newest is None or newest < min(keys):
            return set()
        rows = self.db.execute(f"SELECT key FROM c{collection.number} WHERE key IN ({marks})", keys)
        return {key for (key,) in rows.fetchall()}

    def in_place(self, collection: Collection, keys: list[bytes]) -> list[bytes]:
        """Those of the ids that there are, in the order of their documents."""
        found: list[tuple[int, bytes]] = []
        for first in range(0, len(keys), CHUNK_ROWS):
            part = keys[first : first + CHUNK_ROWS]
            marks = ",".join("?" * len(part))
            sql = f"SELECT place, key FROM c{collection.number} WHERE key IN ({marks})"
            found += self.db.execute(sql, part).fetchall()
        return [key for _, key in sorted(found)]

    def count(self, collection: Collection, db: sqlite3.Connection | None = None) -> int:
        """How many documents there are."""
        return int((db or self.db).execute(f"SELECT count(*) FROM c{collection.number}").fetchone()[0])

    def last_place(self, collection: Collection) -> int:
        """At least as many documents as there are, at the cost of one look."""
        row = self.db.execute(f"SELECT max(place) FROM c{collection.number}").fetchone()
        return int(row[0] or 0)

    def size_bytes(self, collection: Collection, db: sqlite3.Connection | None = None) -> int:
        """How many bytes the documents have."""
        row = (db or self.db).execute(f"SELECT coalesce(sum(length(document)), 0) FROM c{collection.number}").fetchone()
        return int(row[0])

    def holders(self, collection: Collection, index: Index, entry: bytes) -> list[bytes]:
        """The ids of documents that have an entry of a unique index."""
        rows = self.db.execute(
            f"SELECT d.key FROM x{collection.number}_{index.number} x JOIN c{collection.number} d ON d.place = x.place "
            "WHERE x.entry = ?",
            (entry,),
        ).fetchall()
        return [key for (key,) in rows]

    # Answers for retries

    def answer(self, session: bytes, number: int, position: LogPosition, answers: dict[int, bytes], at_ms: int) -> None:
        """What the statements of a session's command were answered. A session retries only its newest command."""
        self.begin()
        self.db.execute("DELETE FROM answers WHERE session = ? AND number < ?", (session, number))
        self.db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
            (session, number, position, msgspec.msgpack.encode(answers), at_ms),
        )

    def answered(self, session: bytes, number: int) -> dict[int, bytes]:
        """By statement, what a command of a session was answered."""
        rows = self.db.execute("SELECT answers FROM answers WHERE session = ? AND number = ?", (session, number))
        found: dict[int, bytes] = {}
        for (answers,) in rows.fetchall():
            found |= _answers(answers)
        return found

    def forget_answers(self, before_ms: int) -> None:
        """These are not retried any more."""
        self.begin()
        self.db.execute("DELETE FROM answers WHERE at_ms < ?", (before_ms,))


_answers = msgspec.msgpack.Decoder(dict[int, bytes]).decode
