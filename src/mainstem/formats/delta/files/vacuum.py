"""Files of a table that no version within the retention needs: which they are. The caller removes them.

A file is needed while it is in the newest version, or was until lately; so are the deletion vectors of both. delta-rs
does not know of files with vectors: it would leave the old ones for ever, or take those that are in use for strays.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow.fs as pafs

from mainstem.formats.delta.log import LOG, AddFile, DeltaLog, Removed, State
from mainstem.model.errors import Corrupt, Invalid

RETENTION = "delta.deletedFileRetentionDuration"
_WEEK_S = 7 * 24 * 3600
_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 24 * 3600, "week": _WEEK_S}
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_FEED = "_change_data"


@dataclass(frozen=True)
class Unneeded:
    """Paths below the storage's root: of versions that are too old, and of no version at all."""

    expired: tuple[str, ...]
    orphans: tuple[str, ...]


def retention_s(configuration: dict[str, str | None]) -> int:
    """How long the table keeps what older versions need."""
    text = configuration.get(RETENTION)
    if text is None:
        return _WEEK_S
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"{RETENTION}. expected=interval N days got={text!r}")
    return int(match[1]) * _UNITS_S[match[2].lower()]


def unneeded(log: DeltaLog, before_ms: int) -> Unneeded:
    """What neither the newest version nor one since `before_ms` needs, and was there already then."""
    state = log.newest()
    needed = {path for file in state.files.values() for path in _files_of(file, log.table)}
    known: set[str] = set()
    for removed in log.removals():
        of_it = set(_files_of(removed, log.table))
        known |= of_it
        if removed.deletionTimestamp is None or removed.deletionTimestamp >= before_ms:
            needed |= of_it
    expired: list[str] = []
    orphans: list[str] = []
    for path in _old_files(log, before_ms):
        if path in needed:
            continue
        in_feed = path.startswith(f"{log.table}/{_FEED}/")
        (expired if path in known or in_feed else orphans).append(path)
    return Unneeded(tuple(expired), tuple(orphans))


def missing_of(log: DeltaLog, state: State) -> list[str]:
    """Files that a version needs and that are not there any more. The newest version's are not looked for."""
    there = {path for file in log.newest().files.values() for path in _files_of(file, log.table)}
    needed = {path for file in state.files.values() for path in _files_of(file, log.table)}
    return sorted(path for path in needed - there if not log.storage.exists(path))


def _files_of(file: AddFile | Removed, table: str) -> Iterator[str]:
    yield f"{table}/{unquote(file.path)}"
    if file.deletionVector is not None:
        try:
            path = file.deletionVector.file(table)
        except Corrupt:
            # In somebody else's folder: none of our business.
            path = None
        if path is not None:
            yield path


def _old_files(log: DeltaLog, before_ms: int) -> Iterator[str]:
    """Files of the table's folder that were last written before. Hidden folders, and tables in it, are others'."""
    listing = log.storage.listing(log.table, recursive=True)
    files = [info for info in listing if info.type == pafs.FileType.File]
    inner = {path.partition(f"/{LOG}/")[0] for path in (str(info.path) for info in files) if f"/{LOG}/" in path}
    others = tuple(f"{path}/" for path in inner - {log.table})
    for info in sorted(files, key=lambda each: str(each.path)):
        path = str(info.path)
        is_old = info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms
        if is_old and not path.startswith(others) and not _is_hidden(path.removeprefix(f"{log.table}/")):
            yield path


def _is_hidden(path: str) -> bool:
    """As Hive has it; a partition's folder may well begin with an underscore, as a column of ours does."""
    parts = path.split("/")
    seen = parts[1:] if parts[0] == _FEED else parts
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in seen)
