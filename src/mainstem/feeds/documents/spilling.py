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
_HEAD = struct.Struct("<IIq")


class Found(NamedTuple):
    """A document that matches. `values` is it decoded, where that was needed already."""

    key: bytes
    document: bytes
    values: dict[str, Any] | None
    hlc: int = 0

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

    def merged(self, last: list[Found]) -> Iterator[Found]:
        """Every document in order; `last` is the run that is in memory. Equal ones stay in the order they came."""
        if not self._files:
            return iter(last)
        return heapq.merge(*map(_read, self._files), last, key=self._key_of)


class SpilledDocuments:
    """Runs of a pipeline's `$sort`."""

    def __init__(self, folder: Path, key_of: Callable[[Mapping[str, Any]], Any]) -> None:
        self._runs = Runs(folder, lambda found: key_of(found.decoded()))

    def add(self, run: Iterable[Mapping[str, Any]]) -> None:
        """Write one run."""
        self._runs.add(Found(b"", encode_document(each), None) for each in run)

    def merged(self, last: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """All runs in order, the last of which is in memory."""
        inside = [Found(b"", b"", dict(each)) for each in last]
        return (each.decoded() for each in self._runs.merged(inside))

    def close(self) -> None:
        """Let go of the files."""
        self._runs.close()


def _read(file: IO[bytes]) -> Iterator[Found]:
    while head := file.read(_HEAD.size):
        key_size, document_size, hlc = _HEAD.unpack(head)
        yield Found(file.read(key_size), file.read(document_size), None, hlc)
