"""A log's folder, made anew from the partition: files of frames, the companion, and segments from where they are kept.

Everything in such a folder is derived. A file beside it (`journal.json`) says so, and of which log: a folder that has a
log of its own is never emptied.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mainstem.formats.segments import is_segment_name, segment_name
from mainstem.log import companion as companions
from mainstem.log import frames
from mainstem.log.companion import Stored
from mainstem.log.disk import Disk, store
from mainstem.log.kafka.moved import read_moved, refuse_half_moved
from mainstem.log.kafka.port import DERIVED_FILE, Derived, SegmentStore, read_derived
from mainstem.log.kafka.records import Mark, Move, Note, Piece, Reading
from mainstem.log.recovery import list_files
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import first_of, wal_path
from mainstem.model.errors import Invalid
from mainstem.model.hlc import Hlc
from mainstem.model.position import Lineage, LogId, LogPosition

logger = logging.getLogger(__name__)


class Hydration:
    """Fills a folder with what is read. Blocks on the disk."""

    def __init__(self, settings: LogSettings, disk: Disk, topic: str) -> None:
        self._settings = settings
        self._disk = disk
        self._topic = topic
        self._fd = -1
        # Where the first frame in the partition begins, and the files with the last position of each.
        self._first: LogPosition | None = None
        self._files: list[tuple[Path, LogPosition]] = []
        # Segments that came in pieces.
        self._segments: list[Path] = []

    def begin(self) -> None:
        """Empty the folder, but for its segments. Raises Invalid where it has a log of its own."""
        folder = self._settings.folder
        moved = read_moved(folder)
        if moved is not None and moved.state != "moved":
            refuse_half_moved(folder, moved)
        own = [path for path in self._settings.wal_folder.iterdir() if first_of(path) is not None]
        own += folder.glob("companion-*")
        if own and read_derived(folder) is None:
            raise Invalid(
                f"this folder has a log of its own. got={folder}. "
                "Run `mainstem migrate` to move it to Kafka, or start on an empty folder."
            )
        self._close()
        for path in own:
            path.unlink()
        self._first, self._files, self._segments = None, [], []

    def take(self, said: frames.Frame | Note | None, value: bytes) -> None:
        """A record that counts."""
        if isinstance(said, Move):
            # What came before it is void.
            self._close()
            for path in (*(path for path, _ in self._files), *self._segments):
                path.unlink(missing_ok=True)
            self._first, self._files, self._segments = LogPosition(said.next), [], []
        elif isinstance(said, Piece):
            self._take_piece(said)
        elif isinstance(said, Mark):
            self._first = self._first or LogPosition(said.next)
            self._close()
        elif isinstance(said, frames.Frame):
            first, last = said.header.first, said.header.last
            self._first = self._first or first
            if self._fd < 0:
                path = wal_path(self._settings.wal_folder, first)
                self._fd = self._disk.create(path)
                self._files.append((path, last))
            self._disk.write(self._fd, [value])
            self._files[-1] = (self._files[-1][0], last)

    def _take_piece(self, piece: Piece) -> None:
        name = segment_name(LogPosition(piece.first), LogPosition(piece.last))
        scratch = self._settings.scratch_folder / name
        with scratch.open("wb" if piece.number == 0 else "ab") as file:
            file.write(piece.data)
        if piece.number == piece.of - 1:
            self._segments.append(self._settings.segments_folder / name)
            self._disk.rename(scratch, self._segments[-1])

    def _close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
        self._fd = -1

    def finish(self, reading: Reading, lineage: Lineage, kept_segments: SegmentStore | None) -> None:
        """All records were read: put in place what the log opens."""
        self._close()
        self._settle_identity([span.log for span in lineage.spans])
        if kept_segments is not None:
            self._fetch(kept_segments)
        sealed = self._settle_segments(LogPosition((self._first or reading.next) - 1))
        kept = reading.kept
        if kept is not None:
            stored = Stored(kept.position, Hlc(kept.hlc), sealed, kept.data)
            companions.write(self._disk, self._settings.folder, self._settings.scratch_folder, stored)
            for path, last in self._files:
                if last <= min(sealed, kept.position):
                    path.unlink()
        if not list_files(self._settings.wal_folder):
            # A log always has a file, and by it its end is known.
            self._disk.close(self._disk.create(wal_path(self._settings.wal_folder, reading.next)))

    def _settle_identity(self, logs: Sequence[LogId]) -> None:
        folder = self._settings.folder
        before, now = read_derived(folder), Derived(self._topic, [str(log) for log in logs])
        if before is not None and before.logs != now.logs[: len(before.logs)]:
            raise Invalid(
                f"this folder was made from another log. expected={before.logs[-1]} got={now.logs[-1]} of topic "
                f"{self._topic}. If the topic was made anew on purpose, remove the folder."
            )
        store(self._disk, self._settings.scratch_folder / DERIVED_FILE, folder / DERIVED_FILE, msgspec.json.encode(now))

    def _fetch(self, kept: SegmentStore) -> None:
        """The store decides which segments there are: others may have been made since this folder was written."""
        there = {name for name in kept.names() if is_segment_name(name)}
        here = {path.name for path in self._settings.segments_folder.iterdir()}
        for name in here - there:
            (self._settings.segments_folder / name).unlink()
        for name in sorted(there - here):
            scratch = self._settings.scratch_folder / name
            kept.fetch(name, scratch)
            self._disk.rename(scratch, self._settings.segments_folder / name)
        if there - here:
            logger.info("fetched %d segments from the store", len(there - here))

    def _settle_segments(self, before: LogPosition) -> LogPosition:
        """Keep the segments that lead up to the partition's first position or further; where they end."""
        found = sorted(path for path in self._settings.segments_folder.iterdir() if is_segment_name(path.name))
        kept: list[Path] = []
        for path in reversed(found):
            if kept and _last(path) + 1 != _first(kept[-1]):
                break
            kept.append(path)
        sealed = _last(kept[0]) if kept else LogPosition(0)
        if sealed < before:
            # Everything before was done with when it was deleted from the partition.
            kept, sealed = [], before
        for path in set(found) - set(kept):
            path.unlink()
        return sealed


def _first(path: Path) -> LogPosition:
    return LogPosition(int(path.name[:20]))


def _last(path: Path) -> LogPosition:
    return LogPosition(int(path.name[21:41]))


StoreOf = Callable[[Lineage], SegmentStore | None]
