"""What stands in a log's folder, put together: the companion, the segments and the files of frames.

Each of them is checked by its own module; here they are checked against each other. A position that is neither in a
segment nor in a file, though it should be, is `Corrupt`.
"""

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

from mainstem.log import companion as companions
from mainstem.log import recovery
from mainstem.log.companion import Companion, ReadingCompanion, Stored
from mainstem.log.disk import Disk
from mainstem.log.seal.segments import SegmentInfo, list_segments
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition

logger = logging.getLogger(__name__)


class Torn(NamedTuple):
    """The tail that a crash left, never acknowledged, and cut."""

    path: Path
    offset: int
    bytes: int


class Found(NamedTuple):
    """A log as its folder holds it."""

    segments: list[SegmentInfo]
    # Files of frames past the last segment, and those that a segment holds already.
    unsealed: list[WalFile]
    spent: list[WalFile]
    sealed: LogPosition
    last: LogPosition
    hlc: Hlc
    torn: Torn | None


async def find(settings: LogSettings, disk: Disk, companion: Companion | ReadingCompanion) -> Found:
    """Read everything and bring the companion up to date. Called on the loop; the disk's part is in threads."""
    await asyncio.to_thread(_empty, settings.scratch_folder)
    found = await look(settings, companion)
    # Only now that everything is found to be whole is anything changed.
    if found.torn is not None:
        path, offset, torn_bytes = found.torn
        await asyncio.to_thread(disk.truncate, path, offset)
        logger.warning("log.recovered", extra={"file": str(path), "offset": offset, "bytes_cut": torn_bytes})
    return found


async def look(settings: LogSettings, companion: Companion | ReadingCompanion) -> Found:
    """The same, and change nothing."""
    record = companions.recorder(companion)
    stored = await asyncio.to_thread(companions.read, settings.folder)
    if stored.data is not None:
        companion.load(stored.data)
    segments = await asyncio.to_thread(list_segments, settings.segments_folder)
    files = await asyncio.to_thread(recovery.list_files, settings.wal_folder)
    sealed = LogPosition(max(stored.sealed, segments[-1].last if segments else 0))
    _check_start(settings, files, segments, stored, sealed)
    hlc = max([stored.hlc, *(segment.hlc_last for segment in segments)])
    torn: Torn | None = None
    last = LogPosition(files[0].first - 1) if files else sealed
    for file in files:
        if file.first != last + 1:
            raise Corrupt(f"log files have a gap. expected={last + 1} got={file.first}", place=str(file.path))
        scan = await asyncio.to_thread(recovery.scan, file, is_last=file is files[-1])
        if file.first <= sealed < file.last:
            raise Corrupt(f"a segment ends inside a log file. got={sealed}", place=str(file.path))
        for header, payload in zip(scan.headers, scan.payloads, strict=True):
            hlc = max(hlc, Hlc(header.hlc_first + header.count - 1))
            # The stored companion is exactly as of its position.
            if header.first > stored.position:
                record(header, payload)
        last = file.last
        if scan.torn_bytes:
            torn = Torn(file.path, file.bytes, scan.torn_bytes)
    if last < max(stored.position, sealed):
        place = str(files[-1].path) if files else str(settings.wal_folder)
        raise Corrupt(f"log ends early. expected={max(stored.position, sealed)} got={last}", place=place)
    unsealed = [file for file in files if file.first > sealed and file.changes]
    spent = [file for file in files if file.first <= sealed]
    return Found(segments, unsealed, spent, sealed, last, hlc, torn)


def _check_start(
    settings: LogSettings, files: list[WalFile], segments: list[SegmentInfo], stored: Stored, sealed: LogPosition
) -> None:
    if not files:
        # A log always has an active file, so here somebody removed it, and with it perhaps changes.
        if segments or stored.position:
            raise Corrupt("log files are missing. expected=at least one got=none", place=str(settings.wal_folder))
    elif files[0].first > sealed + 1:
        raise Corrupt(
            f"log files are missing. expected=one that begins at {sealed + 1} or before got={files[0].first}",
            place=str(files[0].path),
        )


def _empty(folder: Path) -> None:
    """Whatever was being written when we went down has no name yet, so no reader has seen it."""
    for path in folder.iterdir():
        path.unlink()
