"""Where the live row of every key is, in memory: what makes an upsert cost what its batch costs, not its table.

A key is known by 128 bits of BLAKE2, a cryptographic hash: that two of a hundred million keys share them is less likely
than an undetected memory error, whatever the keys look like. An entry is a hash, a file's number and a row in it, 24
bytes. Most entries are in one sorted run; new keys wait in a second, small one. Old keys change their place in it.

An index belongs to one snapshot of its table. The committer moves it along with every commit of its own, and throws it
away when the table has changed in any other way.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]

# The second run is merged into the first when it has so many entries, and an eighth of the first's.
_RECENT_MIN = 65_536
_GONE = -1


class KeyHashes(NamedTuple):
    """Keys as an index knows them: the two halves of each hash."""

    high: Hashes
    low: Hashes

    @classmethod
    def of_bytes(cls, data: bytes) -> "KeyHashes":
        """Hashes of 16 bytes each, one behind the other, as the executors send them."""
        halves = np.frombuffer(data, np.uint64).reshape(-1, 2)
        return cls(np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1]))


class Places(NamedTuple):
    """Rows of files, by the files' numbers."""

    files: Numbers
    rows: Numbers


@dataclass(slots=True)
class DataFile:
    """A data file of the table, and what a delete of its rows needs to know."""

    path: str
    spec_id: int = 0
    # Its partition values as JSON text: files with the same text share delete files.
    partition: str = "[]"
    # Of version 3: its deletion vector as a manifest describes it, in JSON, and the rows in it once they were read.
    vector: str | None = None
    deleted: Any = None


class _Run:
    """Entries sorted by the first hash."""

    def __init__(self, high: Hashes, low: Hashes, files: Numbers, rows: Numbers) -> None:
        order = np.argsort(high, kind="stable")
        self.high, self.low, self.files, self.rows = high[order], low[order], files[order], rows[order]

    def __len__(self) -> int:
        return len(self.high)

    def slots(self, keys: KeyHashes) -> npt.NDArray[np.int64]:
        """Where each key stands, or -1. Keys in order are found in half the time: their neighbours are at hand."""
        if not len(self):
            return np.full(len(keys.high), -1, np.int64)
        found = np.searchsorted(self.high, keys.high)
        at = np.minimum(found, len(self) - 1)
        same = self.high[at] == keys.high
        match = same & (self.low[at] == keys.low)
        # The first hash alone may be shared: look on among those.
        for index in np.flatnonzero(same & ~match):
            slot = int(found[index])
            while slot < len(self) and self.high[slot] == keys.high[index]:
                if self.low[slot] == keys.low[index]:
                    at[index], match[index] = slot, True
                    break
                slot += 1
        return np.where(match, at, -1)

    def merged(self, other: "_Run") -> "_Run":
        """Both in one; no key is in both."""
        spots = np.searchsorted(self.high, other.high)
        merged = _Run.__new__(_Run)
        for name in ("high", "low", "files", "rows"):
            setattr(merged, name, np.insert(getattr(self, name), spots, getattr(other, name)))
        return merged


class KeyIndex:
    """The index of one table. Not to be used from two threads at once."""

    def __init__(self) -> None:
        # Files by number. One that has lost all its rows stays: a number is never given twice.
        self.files: list[DataFile] = []
        self._main = self._recent = _empty()

    def __len__(self) -> int:
        """Entries, those of deleted keys included: what its memory follows."""
        return len(self._main) + len(self._recent)

    def number_of(self, file: DataFile) -> int:
        """Take a new file in."""
        self.files.append(file)
        return len(self.files) - 1

    def find(self, keys: KeyHashes) -> Places:
        """The places of those keys that have a row; in no particular order."""
        keys, _ = _in_order(keys)
        parts = []
        for run in (self._main, self._recent):
            slots = run.slots(keys)
            slots = slots[slots >= 0]
            slots = slots[run.files[slots] != _GONE]
            parts.append(Places(run.files[slots], run.rows[slots]))
        return Places(*(np.concatenate(both) for both in zip(*parts, strict=True)))

    def places(self) -> Places:
        """The places of all keys that have a row."""
        runs = [(run, run.files != _GONE) for run in (self._main, self._recent)]
        return Places(
            np.concatenate([run.files[lives] for run, lives in runs]),
            np.concatenate([run.rows[lives] for run, lives in runs]),
        )

    def drop(self, keys: KeyHashes) -> None:
        """The keys have no row any more."""
        keys, _ = _in_order(keys)
        for run in (self._main, self._recent):
            slots = run.slots(keys)
            run.files[slots[slots >= 0]] = _GONE

    def put(self, keys: KeyHashes, places: Places) -> None:
        """Each key's row is at its place now. No key stands twice."""
        if len(self):
            keys, order = _in_order(keys)
            places = Places(places.files[order], places.rows[order])
        unknown = np.ones(len(keys.high), bool)
        for run in (self._main, self._recent):
            slots = run.slots(keys)
            known = slots >= 0
            run.files[slots[known]], run.rows[slots[known]] = places.files[known], places.rows[known]
            unknown &= ~known
        if unknown.any():
            new = _Run(keys.high[unknown], keys.low[unknown], places.files[unknown], places.rows[unknown])
            self._recent = self._recent.merged(new) if len(self._recent) else new
        if len(self._recent) >= max(_RECENT_MIN, len(self._main) // 8):
            self._main = self._main.merged(self._recent) if len(self._main) else self._recent
            self._recent = _empty()


def in_file(number: int, rows: int) -> Places:
    """All rows of one file, in order."""
    return Places(np.full(rows, number, np.int32), np.arange(rows, dtype=np.int32))


def by_file(places: Places) -> dict[int, npt.NDArray[np.int64]]:
    """The rows of each file, in order."""
    # Both in one number, which sorts in a fraction of the time.
    both = np.sort(places.files.astype(np.int64) << 32 | places.rows)
    files, rows = both >> 32, both & 0xFFFF_FFFF
    edges = np.flatnonzero(np.diff(files)) + 1
    bounds = pairwise([0, *edges.tolist(), len(both)])
    return {int(files[start]): rows[start:end] for start, end in bounds if end > start}


def _in_order(keys: KeyHashes) -> tuple[KeyHashes, npt.NDArray[np.int64]]:
    order = np.argsort(keys.high)
    return KeyHashes(keys.high[order], keys.low[order]), order


def _empty() -> _Run:
    none = np.empty(0, np.uint64)
    return _Run(none, none.copy(), np.empty(0, np.int32), np.empty(0, np.int32))
