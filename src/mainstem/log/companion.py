"""The companion: state that must be exactly as durable as the log, kept beside it. Admission's dedup is one.

The file is `companion-{position}`: what the companion was after the batch that ends at that position, with the
log's own counters in the header. It is what keeps positions and clocks from being used again once every file of
frames is sealed and every segment has been dropped.
"""

import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from mainstem.log.disk import Disk, store
from mainstem.log.frames import Buffer
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.position import NOWHERE, LogPosition

_MAGIC = b"MSC1"
_HEADER = struct.Struct("<4sIQQQ")
# Before the dump of several companions; a single one's dump does not begin so.
_SEVERAL = b"MSCS"
_NAME = re.compile(r"companion-(\d{20})")


class Companion(Protocol):
    """State made of every batch that is durable. Called on the event loop, in log order, once per batch."""

    def record(self, header: BatchHeader) -> None:
        """Take note of a batch that is durable."""

    def dump(self) -> bytes:
        """Everything recorded so far."""

    def load(self, data: bytes) -> None:
        """Become what `dump` gave."""


@runtime_checkable
class ReadingCompanion(Protocol):
    """A companion that also reads what the batches hold. As `Companion`, with `apply` instead of `record`."""

    def apply(self, header: BatchHeader, payload: Buffer) -> None:
        """Take note of a batch that is durable. The payload is only lent."""

    def dump(self) -> bytes:
        """Everything recorded so far."""

    def load(self, data: bytes) -> None:
        """Become what `dump` gave."""


class Companions:
    """Several states beside one log: one that the log always had, and others by name.

    What is stored under a name without a section is kept as it is, and handed back.
    """

    def __init__(self, first: Companion, parts: Mapping[str, ReadingCompanion]) -> None:
        self._first = first
        self._parts = parts
        self._others: dict[str, bytes] = {}

    def apply(self, header: BatchHeader, payload: Buffer) -> None:
        self._first.record(header)
        for part in self._parts.values():
            part.apply(header, payload)

    def dump(self) -> bytes:
        dumped = self._others | {name: part.dump() for name, part in self._parts.items()}
        # A log that has nothing but the first looks as it always did.
        if not any(dumped.values()):
            return self._first.dump()
        return _SEVERAL + msgspec.msgpack.encode([self._first.dump(), dumped])

    def load(self, data: bytes) -> None:
        if not data.startswith(_SEVERAL):
            self._first.load(data)
            return
        try:
            first, dumped = msgspec.msgpack.decode(data[len(_SEVERAL) :], type=tuple[bytes, dict[str, bytes]])
        except msgspec.DecodeError as error:
            raise Corrupt(f"companion cannot be read. got={error}", place="companion") from error
        self._first.load(first)
        for name, part in self._parts.items():
            if stored := dumped.pop(name, b""):
                part.load(stored)
        self._others = dumped


def recorder(companion: Companion | ReadingCompanion) -> Callable[[BatchHeader, Buffer], None]:
    """How a companion is told of a batch."""
    if isinstance(companion, ReadingCompanion):
        return companion.apply
    record = companion.record
    return lambda header, _: record(header)


class NoCompanion:
    """For a log without a companion."""

    def record(self, header: BatchHeader) -> None:
        pass

    def dump(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        pass


class Stored(NamedTuple):
    """A dump and the log's counters as of the same position."""

    position: LogPosition = NOWHERE
    hlc: Hlc = Hlc(0)
    # Everything up to here was sealed when this was stored.
    sealed: LogPosition = NOWHERE
    data: bytes | None = None


def read(folder: Path) -> Stored:
    """The newest stored dump, or an empty one. A damaged one is never passed over: its state is nowhere else."""
    found = sorted(path for path in folder.glob("companion-*") if _NAME.fullmatch(path.name))
    if not found:
        return Stored()
    path = found[-1]
    raw = path.read_bytes()
    if len(raw) < _HEADER.size:
        raise Corrupt(f"companion is cut short. expected=at least {_HEADER.size} bytes got={len(raw)}", place=str(path))
    magic, crc, position, hlc, sealed = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise Corrupt(f"companion version. expected={_MAGIC!r} got={magic!r}", place=str(path))
    if (got := zlib.crc32(raw[8:])) != crc:
        raise Corrupt(f"companion checksum. expected={crc:#010x} got={got:#010x}", place=str(path))
    return Stored(LogPosition(position), Hlc(hlc), LogPosition(sealed), raw[_HEADER.size :])


def write(disk: Disk, folder: Path, scratch: Path, stored: Stored) -> None:
    """Store a dump durably, then remove the ones before it."""
    data = stored.data or b""
    counters = struct.pack("<QQQ", stored.position, stored.hlc, stored.sealed)
    crc = zlib.crc32(data, zlib.crc32(counters))
    target = folder / f"companion-{stored.position:020d}"
    store(disk, scratch / target.name, target, _MAGIC + struct.pack("<I", crc) + counters + data)
    for path in folder.glob("companion-*"):
        if _NAME.fullmatch(path.name) and path.name < target.name:
            disk.remove(path)
