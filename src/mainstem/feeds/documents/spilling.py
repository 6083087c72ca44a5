"""Sorts that are larger than memory: sorted runs in files, merged as they are read."""

import heapq
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from mainstem.model.errors import Overloaded
from mainstem.wire.mongo.frames import decode_document, encode_document

# What one sort may have on disk.
SPILL_BYTES_MAX = 16 * 1024 * 1024 * 1024
# Sorted at once: more would hold everybody up, for Python sorts without letting go. Longer runs are merged of such.
RUN_ROWS = 8_192
_HEAD = struct.Struct("<IIq")


class Found(NamedTuple):
    """A document that matches. `values` is it decoded, where that was needed already."""

    key: bytes
    document: bytes
    values: dict[str, Any] | None
    hlc: int = 0
    # Where it stands: its place in the store, and the entry of the index that led to it.
    place: int = 0
    entry: bytes = b""

    def decoded(self) -> dict[str, Any]:
        """The document's values."""
        return decode_document(self.document) if self.values is None else self.values


class Runs:
    """Sorted runs of one sort. The files have no name, and are gone with their reader."""

    def __init__(self, folder: Path | None, key_of: Callable[[Found], Any]) -> None:
        self._folder = folder
        self._key_of = key_of
        self._files: list[IO[bytes]] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()

    def add(self, run: Iterable[Found]) -> None:
        """Write one run, which is sorted and comes after the earlier ones. Raises Overloaded (`sort_memory`)."""
        if self._folder is None or self._bytes > SPILL_BYTES_MAX:
            bound = "of memory, without the use of the disk" if self._folder is None else f"of {SPILL_BYTES_MAX} bytes"
            raise Overloaded(f"Sort exceeded its limit {bound}", retry_after_s=60.0, reason="sort_memory")
        # Closed by `__exit__`: it is read after it was written.
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._files.append(file)
        for each in run:
            file.write(_HEAD.pack(len(each.key), len(each.document), each.hlc))
            file.write(each.key)
            file.write(each.document)
        self._bytes += file.tell()
        file.seek(0)

    def merged(self, last: Iterable[Found]) -> Iterator[Found]:
        """Every document in order; `last` is the run that is in memory. Equal ones stay in the order they came."""
        if not self._files:
            return iter(last)
        return heapq.merge(*map(_read, self._files), last, key=self._key_of)


class Spool:
    """Documents that are kept on disk until all of them are known."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `close` closes it

    def add(self, document: bytes) -> None:
        """One more. Raises Overloaded (`sort_memory`)."""
        if self._file.tell() > SPILL_BYTES_MAX:
            raise Overloaded(
                f"too many results. expected=at most {SPILL_BYTES_MAX} bytes", retry_after_s=60.0, reason="sort_memory"
            )
        self._file.write(_HEAD.pack(0, len(document), 0))
        self._file.write(document)

    def documents(self) -> Iterator[bytes]:
        """All of them, in the order in which they came."""
        self._file.seek(0)
        return (each.document for each in _read(self._file))

    def close(self) -> None:
        """Let go of them."""
        self._file.close()


class SpilledDocuments:
    """Runs of a pipeline's `$sort`."""

    def __init__(self, folder: Path, key_of: Callable[[Mapping[str, Any]], Any]) -> None:
        self._runs = Runs(folder, lambda found: key_of(found.decoded()))

    def add(self, run: Iterable[Mapping[str, Any]]) -> None:
        """Write one run."""
        self._runs.add(Found(b"", encode_document(each), None) for each in run)

    def merged(self, last: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """All runs in order, the last of which is in memory."""
        inside = (Found(b"", b"", dict(each)) for each in last)
        return (each.decoded() for each in self._runs.merged(inside))

    def close(self) -> None:
        """Let go of the files."""
        self._runs.close()


def _read(file: IO[bytes]) -> Iterator[Found]:
    while head := file.read(_HEAD.size):
        key_size, document_size, hlc = _HEAD.unpack(head)
        yield Found(file.read(key_size), file.read(document_size), None, hlc)
