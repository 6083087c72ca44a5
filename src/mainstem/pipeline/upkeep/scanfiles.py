"""What a scan of a table reads: its data files, as Iceberg's own tasks, and the deletes that apply to them.

Every call into the JVM takes a good part of a millisecond. A busy table has hundreds of small delete files, and each of
them may apply to every data file, so pairs are never asked for: both sides are read once, and Iceberg's rule of what
applies to what is ours to evaluate. It may name a pair too many (a delete whose bounds exclude a file), never too few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.pipeline.commit.lake import LakeTable
from mainstem.pipeline.commit.own_files import refuse_beyond
from mainstem.tables.deletes import Content, DeleteFile, DeleteIndex, PartitionKey
from mainstem.tables.maintenance import FileFacts
from mainstem.tables.partitions import HOUR_OF_DAY, shown_transforms

_CONTENTS = {"POSITION_DELETES": Content.POSITION_DELETES, "EQUALITY_DELETES": Content.EQUALITY_DELETES}


@dataclass(slots=True)
class Planned:
    """The table's files at one snapshot, as Iceberg's scan sees them."""

    snapshot_id: int | None
    target_bytes: int = 0
    tasks: dict[str, Any] = field(default_factory=dict)
    facts: list[FileFacts] = field(default_factory=list)
    deleted_by_partition: dict[str, int] = field(default_factory=dict)
    # By location: the delete file, and the data files that it applies to; none where all of them are gone already.
    deletes: dict[str, Any] = field(default_factory=dict)
    applies_to: dict[str, set[str]] = field(default_factory=dict)
    # Data files that groups of this plan have replaced.
    gone: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Delete:
    """A delete file and what counts of it."""

    location: str
    java: Any
    content: Content
    partition: PartitionKey
    path: str
    data_path: str | None
    rows: int


class _Places:
    """Partitions by name. One of a spec without fields has none: such an equality delete holds everywhere."""

    def __init__(self, table: LakeTable) -> None:
        self._specs = table.java.specs()
        # By the spec's number: the spec, whether it has no fields, and which of them are hours below their day.
        self._known: dict[int, tuple[Any, bool, tuple[int, ...]]] = {}

    def of(self, file: Any) -> tuple[PartitionKey, str]:
        """The partition of a data or delete file, and its path."""
        number = int(file.specId())
        if number not in self._known:
            spec = self._specs.get(number)
            fields = [_Field(str(each.sourceId()), str(each.transform().toString())) for each in spec.fields()]
            hours = [at for at, transform in enumerate(shown_transforms(fields)) if transform == HOUR_OF_DAY]
            self._known[number] = (spec, bool(spec.isUnpartitioned()), tuple(hours))
        spec, is_unpartitioned, hours_at = self._known[number]
        path = _without_days(str(spec.partitionToPath(file.partition())), hours_at)
        return (number, () if is_unpartitioned else (path,)), path


class _Field(NamedTuple):
    source: str
    transform: str


def _without_days(path: str, hours_at: Sequence[int]) -> str:
    """Iceberg's name of a partition, with `hr=2024-01-15-14` below its own day as `hr=14`: as the gateway names it."""
    parts = path.split("/")
    for at in hours_at:
        name, _, value = parts[at].partition("=")
        parts[at] = f"{name}={value.rpartition('-')[2]}"
    return "/".join(parts)


def plan_files(table: LakeTable) -> Planned:
    """Everything that a scan of the current snapshot reads.

    Raises Denied where that lies beyond the table's location: what is rewritten becomes the table's own.
    """
    table.refresh()
    snapshot = table.java.currentSnapshot()
    if snapshot is None:
        return Planned(None)
    planned = Planned(int(snapshot.snapshotId()))
    places = _Places(table)
    deletes, index = _deletes_of(table, snapshot, places)
    for delete in deletes:
        planned.deletes[delete.location] = delete.java
        planned.applies_to[delete.location] = set()
        if delete.content is Content.POSITION_DELETES and delete.data_path is None:
            before = planned.deleted_by_partition.get(delete.path, 0)
            planned.deleted_by_partition[delete.path] = before + delete.rows
    for task in _tasks(table, planned.snapshot_id):
        file = task.file()
        location = str(file.location())
        key, path = places.of(file)
        applied = [deletes[number] for number in index.of(location, int(file.dataSequenceNumber()), key)]
        for delete in applied:
            planned.applies_to[delete.location].add(location)
        planned.tasks[location] = task
        planned.facts.append(
            FileFacts(
                path=location,
                partition=path,
                size_bytes=int(file.fileSizeInBytes()),
                rows=int(file.recordCount()),
                deleted_rows=sum(delete.rows for delete in applied if delete.data_path is not None),
                delete_files=len(applied),
                equality=any(delete.content is Content.EQUALITY_DELETES for delete in applied),
            )
        )
    own = str(table.java.location())
    refuse_beyond(table.name, own, (str(each.path()) for each in snapshot.allManifests(table.java.io())))
    refuse_beyond(table.name, own, (*planned.tasks, *(path.partition("#")[0] for path in planned.deletes)))
    return planned


def _tasks(table: LakeTable, snapshot_id: int | None) -> Iterator[Any]:
    tasks = table.java.newScan().useSnapshot(snapshot_id).planFiles()
    try:
        iterator = tasks.iterator()
        while iterator.hasNext():
            yield iterator.next()
    finally:
        tasks.close()


def _deletes_of(table: LakeTable, snapshot: Any, places: _Places) -> tuple[list[_Delete], DeleteIndex]:
    io, specs = table.java.io(), table.java.specs()
    files = table.lake.jvm.org.apache.iceberg.ManifestFiles
    found: list[_Delete] = []
    index = DeleteIndex()
    for manifest in snapshot.deleteManifests(io):
        reader = files.readDeleteManifest(manifest, io, specs)
        try:
            iterator = reader.iterator()
            while iterator.hasNext():
                java = iterator.next()
                delete = _delete(java, places, table)
                sequence = int(java.dataSequenceNumber())
                is_vector = java.contentOffset() is not None
                index.add(
                    DeleteFile(len(found), delete.content, sequence, delete.partition, delete.data_path, is_vector)
                )
                found.append(delete)
        finally:
            reader.close()
    return found, index


def _delete(java: Any, places: _Places, table: LakeTable) -> _Delete:
    key, path = places.of(java)
    # By name, or by bounds that leave one file.
    referenced = table.lake.jvm.org.apache.iceberg.util.ContentFileUtil.referencedDataFileLocation(java)
    # A Puffin file may hold several vectors, each of them a delete file of its own.
    offset = java.contentOffset()
    return _Delete(
        location=str(java.location()) if offset is None else f"{java.location()}#{offset}",
        java=java,
        content=_CONTENTS[str(java.content().toString())],
        partition=key,
        path=path,
        data_path=None if referenced is None else str(referenced),
        rows=int(java.recordCount()),
    )
