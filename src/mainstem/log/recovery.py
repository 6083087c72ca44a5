"""What is found when a log is opened: files of frames, checked byte by byte, and the tail that a crash tore.

Only the last file may end badly, and only past everything that was ever durable: that tail was never acknowledged,
so it is cut and reported. Anything else that cannot be read, or a gap, is `Corrupt` with its place; nothing is
skipped.
"""

from pathlib import Path
from typing import NamedTuple

from mainstem.log import frames
from mainstem.log.wal.files import WalFile, first_of
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Corrupt
from mainstem.model.position import LogPosition


class Scan(NamedTuple):
    """One file: what it holds, headers and payloads in order, and how many bytes after them are torn."""

    file: WalFile
    headers: list[BatchHeader]
    payloads: list[memoryview]
    torn_bytes: int


def list_files(folder: Path) -> list[WalFile]:
    """The files of frames in order, by their names."""
    found = [(first, path) for path in folder.iterdir() if (first := first_of(path)) is not None]
    return [WalFile(path, first) for first, path in sorted(found)]


def scan(file: WalFile, *, is_last: bool) -> Scan:
    """Read a whole file and check that it holds what it must. Counts go into the file."""
    data = file.path.read_bytes()
    headers: list[BatchHeader] = []
    payloads: list[memoryview] = []
    offset = 0
    while offset < len(data):
        frame = _next(data, offset, file, is_last)
        if frame is None:
            break
        header = frame.header
        expected = LogPosition(file.last + 1)
        if header.first != expected:
            raise Corrupt(f"position gap. expected={expected} got={header.first}", place=f"{file.path}:{offset}")
        file.add(1, header.count, frame.end - offset, header.arrival_ms)
        headers.append(header)
        payloads.append(frame.payload)
        offset = frame.end
    return Scan(file, headers, payloads, len(data) - offset)


def _next(data: bytes, offset: int, file: WalFile, is_last: bool) -> frames.Frame | None:
    """The frame at the offset, or None for a torn tail."""
    place = f"{file.path}:{offset}"
    try:
        frame = frames.decode(data, offset, str(file.path))
    except Corrupt:
        if not is_last or _was_durable(data, offset, LogPosition(file.last + 1)):
            raise
        return None
    if isinstance(frame, frames.Frame):
        return frame
    if not is_last or _was_durable(data, offset, LogPosition(file.last + 1)):
        raise Corrupt(f"file ends inside a frame. expected={frame.bytes_at_least} more bytes", place=place)
    return None


def _was_durable(data: bytes, offset: int, expected: LogPosition) -> bool:
    """Whether a later frame testifies that what should stand here was synced.

    Frames of one group reach the disk in any order, so a valid frame after a bad one proves nothing by itself; one of
    a later group does, as a group is only written when the one before it is durable.
    """
    return any(frame.group_first > expected for frame in frames.find_later(data, offset))
