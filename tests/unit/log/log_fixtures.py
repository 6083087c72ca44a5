"""What the tests of the log share: batches, a sealer without a process, and a disk that fails on demand."""

import asyncio
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainstem.log import LogSettings
from mainstem.log.disk import Buffer, OsDisk
from mainstem.log.seal import sealer
from mainstem.log.seal.children import SealRequest
from mainstem.model.batch import Admitted, Batch, BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.names import TableName
from mainstem.model.position import LogId


def event(sequence: int, table: str = "orders", **fields: Any) -> dict[str, Any]:
    base = {
        "sequence": sequence,
        "timestamp": 1_700_000_000_000 + sequence,
        "operation": "INSERT",
        "table": table,
        "rowId": f"key-{sequence}",
        "after": {"id": sequence, "note": f"note {sequence}"},
    }
    return {name: value for name, value in (base | fields).items() if value is not ...}


def batch(sequence: int, events: Sequence[dict[str, Any]] | None = None, source: str = "app") -> Admitted:
    return raw_batch(sequence, msgspec.json.encode(events := events or [event(sequence)]), len(events), source)


def raw_batch(sequence: int, payload: bytes, count: int, source: str = "app") -> Admitted:
    return Admitted(
        Batch(
            source=SourceId(source),
            sequence=sequence,
            count=count,
            encoding=Encoding.CDC_JSON,
            payload=payload,
            fingerprint=zlib.crc32(payload),
            tables=frozenset([TableName("default", "orders")]),
        )
    )


def quiet(folder: Path, **changed: Any) -> LogSettings:
    """Settings under which nothing is sealed unless a test asks for it."""
    settings = LogSettings(
        folder=folder, seal_changes=10**9, seal_bytes=10**12, seal_age_s=10**6, seal_interval_s=10**6
    )
    return msgspec.structs.replace(settings, **changed)


class InlineSealer:
    """Seals in the test's own process; fails and waits when it is told to."""

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self.broken: Exception | None = None
        self.sealed: list[list[Path]] = []
        self.said_more: list[bool] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def start(self, lock_fd: int) -> None:
        pass

    async def seal(self, files: list[Path], scratch: Path, *, more: bool, log: LogId) -> None:
        await self.may_go_on.wait()
        if self.broken is not None:
            raise self.broken
        self.sealed.append(files)
        self.said_more.append(more)
        request = SealRequest(files=[str(file) for file in files], scratch=str(scratch), more=more, log=log)
        await asyncio.to_thread(sealer.seal, request)

    async def close(self) -> None:
        pass


class Diary:
    """A companion that remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int, int]] = []

    def record(self, header: BatchHeader) -> None:
        self.seen.append((header.source, header.sequence, header.first, header.count))

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(self.seen)

    def load(self, data: bytes) -> None:
        self.seen = msgspec.msgpack.decode(data, type=list[tuple[str, int, int, int]]) if data else []


class BrokenDisk(OsDisk):
    """A real disk on which the named operations fail while `broken` holds an error for them."""

    def __init__(self) -> None:
        self.broken: dict[str, OSError] = {}
        # Bytes of a failing write that reach the file all the same.
        self.torn_bytes = 0

    def _check(self, operation: str) -> None:
        if operation in self.broken:
            raise self.broken[operation]

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def write(self, fd: int, buffers: Sequence[Buffer]) -> None:
        if "write" in self.broken and self.torn_bytes:
            super().write(fd, [b"".join(buffers)[: self.torn_bytes]])
        self._check("write")
        super().write(fd, buffers)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def truncate(self, path: Path, size: int) -> None:
        self._check("truncate")
        super().truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._check("remove")
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self._check("sync_dir")
        super().sync_dir(path)
