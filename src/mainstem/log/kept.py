"""Where a frame lies on the disk, and files of frames that are kept for readers after they were sealed.

Only readers who want batches as they came still need a sealed file: a consumer of a topic that is a little behind. Such
files are moved into a folder of their own, the oldest are removed at a bound, and all of them when the log
is opened again: everything in them is in segments too, so nothing depends on them.
"""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from typing import NamedTuple

from mainstem.log import frames
from mainstem.log.disk import Disk
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile, wal_path
from mainstem.model.errors import Corrupt
from mainstem.model.position import LogPosition


class Place(NamedTuple):
    """Some bytes of a file of frames: the file by its first position, from where, and how many."""

    file: LogPosition
    start: int
    size: int


class KeptFrames:
    """The files that are kept. Called in one thread at a time."""

    def __init__(self, settings: LogSettings, disk: Disk) -> None:
        self._folder = settings.kept_folder
        self._bytes_max = settings.kept_bytes_max
        self._disk = disk
        self._files: deque[WalFile] = deque()
        self._bytes = 0

    def clear(self) -> None:
        """Remove what an earlier process left."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def take(self, file: WalFile) -> None:
        """A file that the log itself needs no longer: keep it while there is room, or remove it."""
        if file.bytes > self._bytes_max:
            self._disk.remove(file.path)
            return
        try:
            self._folder.mkdir(exist_ok=True)
            self._disk.rename(file.path, wal_path(self._folder, file.first))
        except FileNotFoundError:
            # Dealt with before, by a call that failed at a later file.
            return
        except OSError:
            # Readers can do without the file: where the disk cannot rename, the log must be able to let go of it.
            self._disk.remove(file.path)
            return
        self._files.append(file)
        self._bytes += file.bytes
        while self._bytes > self._bytes_max:
            oldest = self._files.popleft()
            self._disk.remove(wal_path(self._folder, oldest.first))
            self._bytes -= oldest.bytes


def read_places(settings: LogSettings, places: Sequence[Place]) -> list[bytes]:
    """The bytes of places that were durable, in order. Blocks. Raises FileNotFoundError where a file is gone."""
    found: list[bytes] = []
    fd, opened = -1, LogPosition(-1)
    try:
        for file, start, size in places:
            if file != opened:
                if fd >= 0:
                    os.close(fd)
                    fd = -1
                fd, opened = _open(settings, file), file
            found.append(_read(fd, start, size, file))
    finally:
        if fd >= 0:
            os.close(fd)
    return found


def _open(settings: LogSettings, file: LogPosition) -> int:
    # A file goes from the first to the second, and never back.
    try:
        return os.open(wal_path(settings.wal_folder, file), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(wal_path(settings.kept_folder, file), os.O_RDONLY | os.O_CLOEXEC)


def _read(fd: int, start: int, size: int, file: LogPosition) -> bytes:
    data = os.pread(fd, size, start)
    while len(data) < size:
        more = os.pread(fd, size - len(data), start + len(data))
        if not more:
            raise Corrupt(f"file of frames ends early. expected={size} bytes got={len(data)}", place=f"{file}:{start}")
        data += more
    return data


def read_tail(files: Sequence[WalFile], after: LogPosition) -> Generator[frames.Frame, None, None]:
    """The frames of files past a position, as far as they are durable now. The files are opened at once."""
    parts = [(file.path.open("rb"), file.bytes) for file in files]

    def read() -> Generator[frames.Frame, None, None]:
        try:
            for handle, size in parts:
                with handle:
                    data = handle.read(size)
                for frame in frames.decode_all(data, handle.name):
                    if frame.header.last > after:
                        yield frame
        finally:
            # A caller that stops early leaves files behind that were not read yet.
            for handle, _ in parts:
                handle.close()

    return read()


def placed(
    tail: Generator[frames.Frame, None, None], files: Sequence[LogPosition]
) -> Generator[tuple[frames.Frame, Place], None, None]:
    """Frames with where each of them is, in files that begin with these positions."""
    for frame in tail:
        file = files[bisect_right(files, frame.header.first) - 1]
        size = frames.OVERHEAD_BYTES + len(frame.header.source.encode()) + len(frame.payload)
        yield frame, Place(file, frame.end - size, size)
