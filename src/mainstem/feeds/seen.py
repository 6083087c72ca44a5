"""Which deltas are in the log already: every one, for ever, on disk.

An index beside the log and made of nothing but the log: it says up to which position it is complete, and is caught up
from there after a restart. A delta counts as seen only once it is durable. Most pushes need no look at the disk: a
client's clock only grows, so what is newer than all that it ever sent is new.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from mainstem.feeds.cursors import Cursors
from mainstem.model.errors import Overloaded
from mainstem.model.position import NOWHERE, UNNAMED, LogId, LogPosition
from mainstem.wire.sync import RowDelta

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (gateway TEXT, client TEXT, hlc INTEGER, PRIMARY KEY (gateway, client)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS covered (one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS covered_log (one INTEGER PRIMARY KEY CHECK (one = 1), log TEXT NOT NULL);
"""
_WAITING_MAX = 2_000_000
_CLIENTS_CACHED_MAX = 100_000
_LOOKUP_MAX = 500
_RETRY_AFTER_S = 2.0

ClientId = tuple[str, str]


class Identified(NamedTuple):
    """A delta as the index knows it."""

    gateway: str
    client: str
    delta_id: str
    hlc: int


class SeenDeltas:
    """Belongs to the event loop; `store` and large lookups work in threads."""

    def __init__(self, path: Path, cursors: Cursors | None = None) -> None:
        self._cursors = cursors or Cursors()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # Losing the newest transactions is fine, a damaged file is not: they are made again from the log.
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)
        self._reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._writing = Lock()
        self._reading = Lock()
        # Everything up to here is in the file; `_complete` says the same of file and memory together.
        found = self._found()
        # Whether it has to be made from the beginning: what tables have of other logs is in it as well.
        self.is_new = found is None
        self.stored = found or NOWHERE
        self._complete = self.stored
        # Seen and not in the file yet: what is being stored, and what came since.
        self._storing: set[bytes] = set()
        self._waiting: set[bytes] = set()
        self._newest: dict[ClientId, int] = {}
        self._newest_waiting: set[ClientId] = set()

    def _found(self) -> LogPosition | None:
        """How far the file is. One of another log knows deltas that ours may lack: it is emptied, and made again."""
        with self._connection as connection:
            row = connection.execute("SELECT position FROM covered").fetchone()
            of = connection.execute("SELECT log FROM covered_log").fetchone()
            position = LogPosition(row[0]) if row else NOWHERE
            if self._cursors.is_ours(LogId(of[0]) if of else UNNAMED, position):
                return position if row else None
            connection.execute("BEGIN")
            for table in ("seen", "newest", "covered", "covered_log"):
                connection.execute(f"DELETE FROM {table}")
            return None

    @property
    def waiting_count(self) -> int:
        """Deltas that are seen and not yet in the file."""
        return len(self._waiting) + len(self._storing)

    @property
    def is_stored(self) -> bool:
        """Whether the file has everything."""
        return not self._waiting and self.stored == self._complete

    async def unseen(self, gateway: str, client: str, deltas: Iterable[RowDelta]) -> list[int]:
        """Which of them are new, each once, by their place."""
        if self.waiting_count > _WAITING_MAX:
            raise Overloaded(
                f"the index of deltas is behind. expected=at most {_WAITING_MAX}", retry_after_s=_RETRY_AFTER_S
            )
        newest = self._newest_of((gateway, client))
        fresh: dict[bytes, int] = {}
        asked: list[bytes] = []
        for index, delta in enumerate(deltas):
            key = _key(gateway, client, delta.delta_id)
            if key in fresh:
                continue
            if delta.hlc <= newest:
                if key in self._waiting or key in self._storing:
                    continue
                asked.append(key)
            fresh[key] = index
        if not asked:
            return list(fresh.values())
        known = self._find(asked) if len(asked) <= _LOOKUP_MAX else await asyncio.to_thread(self._find, asked)
        return [index for key, index in fresh.items() if key not in known]

    def record(self, gateway: str, client: str, deltas: Sequence[RowDelta]) -> None:
        """These are durable."""
        self._waiting.update([_key(gateway, client, delta.delta_id) for delta in deltas])
        place = (gateway, client)
        highest = max(delta.hlc for delta in deltas)
        if highest > self._newest_of(place):
            self._newest[place] = highest
            self._newest_waiting.add(place)

    def record_again(self, found: Iterable["Identified"]) -> None:
        """These were found in the log or in the tables."""
        for gateway, client, delta_id, hlc in found:
            self._waiting.add(_key(gateway, client, delta_id))
            place = (gateway, client)
            if hlc > self._newest_of(place):
                self._newest[place] = hlc
                self._newest_waiting.add(place)

    def advance(self, last: LogPosition) -> None:
        """Everything up to here was recorded, or is none of ours."""
        self._complete = max(self._complete, last)

    async def store(self) -> None:
        """Bring the file up to date. One call at a time."""
        self._storing, self._waiting = self._waiting, set()
        newest = [(*place, self._newest[place]) for place in self._newest_waiting]
        self._newest_waiting = set()
        complete = self._complete
        try:
            await asyncio.to_thread(self._write, sorted(self._storing), newest, complete)
        except BaseException:
            self._waiting |= self._storing
            self._newest_waiting |= {(gateway, client) for gateway, client, _ in newest}
            raise
        finally:
            self._storing = set()
        self.stored = complete
        if len(self._newest) > _CLIENTS_CACHED_MAX:
            self._newest = {place: self._newest[place] for place in self._newest_waiting}

    def close(self) -> None:
        """Let go of the file."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._connection.close()

    def _newest_of(self, place: ClientId) -> int:
        newest = self._newest.get(place)
        if newest is None:
            with self._reading:
                row = self._reader.execute("SELECT hlc FROM newest WHERE gateway = ? AND client = ?", place).fetchone()
            newest = self._newest[place] = row[0] if row else -1
        return newest

    def _find(self, keys: list[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        with self._reading:
            for start in range(0, len(keys), _LOOKUP_MAX):
                part = keys[start : start + _LOOKUP_MAX]
                marks = ",".join("?" * len(part))
                rows = self._reader.execute(f"SELECT key FROM seen WHERE key IN ({marks})", part)
                found.update([key for (key,) in rows])
        return found

    def _write(self, keys: list[bytes], newest: list[tuple[str, str, int]], complete: LogPosition) -> None:
        with self._writing, self._connection as connection:
            connection.execute("BEGIN")
            connection.executemany("INSERT OR IGNORE INTO seen VALUES (?)", [(key,) for key in keys])
            connection.executemany(
                "INSERT INTO newest VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET hlc = max(hlc, excluded.hlc)", newest
            )
            connection.execute(
                "INSERT INTO covered VALUES (1, ?) ON CONFLICT DO UPDATE SET position = excluded.position", (complete,)
            )
            connection.execute(
                "INSERT INTO covered_log VALUES (1, ?) ON CONFLICT DO UPDATE SET log = excluded.log",
                (self._cursors.log_at(complete),),
            )


def _key(gateway: str, client: str, delta_id: str) -> bytes:
    return hashlib.blake2b(f"{gateway}\0{client}\0{delta_id}".encode(), digest_size=16).digest()
