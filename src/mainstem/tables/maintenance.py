"""What maintenance does to a table, decided from sizes and counts alone. No Spark and no I/O.

The gateway uses it to say what would be done, the pipeline to do it: one rule, so that a dry run tells the truth.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from mainstem.tables.parquet import TARGET_PROPERTY

MIB = 1 << 20
# A file of this share of the target is as good as whole: rewriting it again would gain nothing.
_SMALL_SHARE = 0.75
# One group is rewritten at a time, and held in no memory; the bound is on how long a lost race costs.
_GROUP_TARGETS_MAX = 4
# More does not fit 64 bits.
_DIGITS_MAX = 18

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class MaintenanceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When and how tables are maintained. The first five are DoLake's, with its defaults."""

    # Small files in a partition from which they are written together.
    min_files: Annotated[int, msgspec.Meta(ge=2)] = 5
    # Files that are written together at a time.
    max_files: Annotated[int, msgspec.Meta(ge=2)] = 100
    # The size that compaction aims at.
    target_file_bytes: Positive = 128 * MIB
    # Whether tables are maintained without being asked for.
    auto: bool = True
    # How often every table is looked at.
    interval_s: Seconds = 3600.0
    # A table with so many new files does not wait for the interval; this is how often that is looked for.
    new_files_max: Positive = 300
    # How often tables are looked at for new files.
    check_s: Seconds = 30.0
    # Deleted rows in a partition, as a share of its rows, from which large files are rewritten too.
    deleted_share: Share = 0.1
    # Manifests of a table from which they are written together.
    manifests_max: Positive = 50
    # Snapshots are kept for this long, but never more than so many; none is removed that is younger than the minimum.
    snapshot_age_s: Seconds = 86_400.0
    # Snapshots of a table that are kept at the most.
    snapshots_max: Positive = 500
    # No snapshot younger than this is removed.
    snapshot_age_min_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    # Files that no snapshot has, and that are this old: anything younger may belong to a write in progress.
    orphan_age_s: Annotated[float, msgspec.Meta(ge=0)] = 259_200.0
    # Orphans are looked for this often: it lists every file of the table.
    orphan_interval_s: Seconds = 86_400.0


def for_table(settings: MaintenanceSettings, properties: Mapping[str, str]) -> MaintenanceSettings:
    """The settings for one table: the size that its writers aim at is the size that compaction aims at."""
    own = count_of(properties, TARGET_PROPERTY)
    return msgspec.structs.replace(settings, target_file_bytes=own) if own else settings


def count_of(values: Mapping[str, Any], name: str) -> int:
    """A count out of a summary or a table's properties, which anybody may have written; 0 for what is none."""
    text = str(values.get(name, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else 0


class Step(StrEnum):
    """What can be done to a table, in the order in which it is done."""

    COMPACT = "compact"
    DELETES = "deletes"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"
    # Only where somebody asks for it: the state is made anew from its history.
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A data file. `path` names it in whatever way the caller needs."""

    path: str
    partition: str
    size_bytes: int
    rows: int
    # Rows that its own deletion vector, or position deletes that name it, take away.
    deleted_rows: int = 0
    # Delete files that apply to it, and whether one of them is an equality delete.
    delete_files: int = 0
    equality: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition that are rewritten together, in one commit."""

    partition: str
    files: tuple[FileFacts, ...]

    @property
    def size_bytes(self) -> int:
        """What is read."""
        return sum(file.size_bytes for file in self.files)

    @property
    def rows(self) -> int:
        """Rows in the files, deleted ones included."""
        return sum(file.rows for file in self.files)


def plan_groups(
    files: Iterable[FileFacts],
    settings: MaintenanceSettings,
    *,
    deleted_by_partition: dict[str, int] | None = None,
    partitions: Sequence[str] = (),
) -> list[Group]:
    """Which files to rewrite together: small ones, and those whose deletes cost every reader."""
    by_partition: dict[str, list[FileFacts]] = {}
    for file in files:
        if matches(file.partition, partitions):
            by_partition.setdefault(file.partition, []).append(file)
    groups: list[Group] = []
    for partition, members in by_partition.items():
        rows = sum(file.rows for file in members)
        deleted = (deleted_by_partition or {}).get(partition, 0)
        fold = deleted > 0 and deleted >= settings.deleted_share * rows
        wanted = [file for file in members if _is_small(file, settings) or _must_fold(file, fold, settings)]
        groups += _packed(partition, wanted, fold, settings)
    return sorted(groups, key=lambda group: -len(group.files))


def matches(partition: str, wanted: Sequence[str]) -> bool:
    """Whether a partition (`dt=2026-01-15/bucket=3`) is one of those named, in whole or by some of its fields."""
    if not wanted:
        return True
    fields = set(partition.split("/"))
    return any(set(name.split("/")) <= fields for name in wanted)


def _is_small(file: FileFacts, settings: MaintenanceSettings) -> bool:
    return file.size_bytes < _SMALL_SHARE * settings.target_file_bytes


def _must_fold(file: FileFacts, fold_partition: bool, settings: MaintenanceSettings) -> bool:
    own = file.deleted_rows > 0 and file.deleted_rows >= settings.deleted_share * file.rows
    return own or file.equality or (fold_partition and file.delete_files > 0)


def _packed(partition: str, files: Sequence[FileFacts], fold: bool, settings: MaintenanceSettings) -> list[Group]:
    bytes_max = _GROUP_TARGETS_MAX * settings.target_file_bytes
    groups: list[list[FileFacts]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.size_bytes):
        if not groups or len(groups[-1]) >= settings.max_files or size + file.size_bytes > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size_bytes
    return [Group(partition, tuple(group)) for group in groups if _is_worth_it(group, fold, settings)]


def _is_worth_it(group: Sequence[FileFacts], fold: bool, settings: MaintenanceSettings) -> bool:
    if any(_must_fold(file, fold, settings) for file in group):
        return True
    # Enough files, or enough of them to make one whole file.
    enough = sum(file.size_bytes for file in group) >= settings.target_file_bytes
    return len(group) >= settings.min_files or (len(group) > 1 and enough)


def expire_before_ms(times_ms: Sequence[int], now_ms: int, settings: MaintenanceSettings) -> int | None:
    """The time before which snapshots go, given those of all snapshots of main. None: none is to go."""
    newest_first = sorted(times_ms, reverse=True)
    before_ms = now_ms - round(settings.snapshot_age_s * 1000)
    if len(newest_first) > settings.snapshots_max:
        before_ms = max(before_ms, newest_first[settings.snapshots_max - 1])
    before_ms = min(before_ms, now_ms - round(settings.snapshot_age_min_s * 1000))
    # The newest one always stays.
    return before_ms if any(time_ms < before_ms for time_ms in newest_first[1:]) else None
