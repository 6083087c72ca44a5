"""The log's identity, stored in its folder: `lineage.json`, written whole and durably before anything relies on it.

A log takes a new identity where it cannot vouch for the old one. It does so by itself when its folder turns out to be
a copy (or a copy put back), which it knows by the lock file: a copy of that has another inode, or was changed later.
And it is told to when the tables have positions that it does not have: it was put back to an earlier state.
"""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from mainstem.log.disk import Disk, store
from mainstem.log.seal.segments import SegmentInfo
from mainstem.model.errors import Corrupt
from mainstem.model.position import UNNAMED, Lineage, LogId, LogPosition, Span

logger = logging.getLogger(__name__)

FILE = "lineage.json"
VERSION = 1


class _Span(msgspec.Struct, frozen=True):
    log: str
    first: int


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    spans: list[_Span]
    # Which lock file stands beside it.
    place: str


def new_log_id() -> LogId:
    """16 hex digits that no other log has."""
    return LogId(secrets.token_hex(8))


def settle(
    folder: Path,
    scratch: Path,
    disk: Disk,
    segments: list[SegmentInfo],
    last: LogPosition,
    new_id: Callable[[], LogId] = new_log_id,
) -> Lineage:
    """The lineage of a log that ends at `last`, as it goes on from here. Blocks on the disk.

    A new folder gets its first identity. One from before there were any keeps what it has as the unnamed log's.
    """
    path = folder / FILE
    place = _place(folder)
    stored = _read(path)
    lineage = _checked(stored, path, segments, last)
    if stored is not None and stored.place == place:
        return lineage
    renewed = renew(lineage, last, new_id)
    write(disk, folder, scratch, renewed)
    if stored is not None:
        logger.warning("the log's folder is a copy: from position %d on it is the log %s", last + 1, renewed.log)
    return renewed


def look(folder: Path, segments: list[SegmentInfo], last: LogPosition) -> Lineage:
    """The lineage as the folder has it, without a span where the log never had an identity. Nothing is changed."""
    path = folder / FILE
    return _checked(_read(path), path, segments, last)


def _checked(stored: _Stored | None, path: Path, segments: list[SegmentInfo], last: LogPosition) -> Lineage:
    if stored is None:
        _check_unnamed(segments, path)
        return Lineage((Span(UNNAMED, LogPosition(1)),) if last else ())
    lineage = _lineage(stored, path)
    if lineage.spans[-1].first > last + 1:
        raise Corrupt(
            f"log ends before its identity begins. expected={lineage.spans[-1].first - 1} got={last}", place=str(path)
        )
    return lineage


def renew(lineage: Lineage, last: LogPosition, new_id: Callable[[], LogId] = new_log_id) -> Lineage:
    """The lineage with a new identity for everything past `last`."""
    return Lineage((*lineage.spans, Span(new_id(), LogPosition(last + 1))))


def write(disk: Disk, folder: Path, scratch: Path, lineage: Lineage) -> None:
    """Store a lineage durably, in one step."""
    spans = [_Span(span.log, span.first) for span in lineage.spans]
    stored = _Stored(version=VERSION, spans=spans, place=_place(folder))
    store(disk, scratch / FILE, folder / FILE, msgspec.json.encode(stored))


def _read(path: Path) -> _Stored | None:
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Corrupt(f"lineage cannot be read. got={error}", place=str(path)) from error
    if stored.version != VERSION:
        raise Corrupt(f"lineage version. expected={VERSION} got={stored.version}", place=str(path))
    return stored


def _lineage(stored: _Stored, path: Path) -> Lineage:
    firsts = [span.first for span in stored.spans]
    if not firsts or firsts[0] != 1 or firsts != sorted(firsts):
        raise Corrupt(f"lineage spans. expected=from 1 on, ascending got={firsts}", place=str(path))
    return Lineage(tuple(Span(LogId(span.log), LogPosition(span.first)) for span in stored.spans))


def _check_unnamed(segments: list[SegmentInfo], path: Path) -> None:
    """Without the file a log counts as one from before: not where its segments say that it had an identity."""
    named = [segment for segment in segments if segment.log != UNNAMED]
    if named:
        raise Corrupt(f"lineage is missing. expected=the log {named[-1].log} got=no file", place=str(path))


def _place(folder: Path) -> str:
    # An inode alone may be used again after its file was removed. Nothing changes the lock file, and moving the folder
    # leaves its times alone.
    found = (folder / "lock").stat()
    return f"{found.st_ino}:{found.st_ctime_ns}"
