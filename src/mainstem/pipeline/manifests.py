"""The manifests of snapshots that are made on the driver, by pyiceberg's writers.

Every commit brings a manifest or two with an entry each, and whoever plans a scan opens all of them. So they are
written together: ten with about as many entries become one, and ten of those become one in turn. An entry is written
three times, and what one commit pays for others is bounded. Larger ones are for maintenance to put together.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from mainstem.pipeline.quickcatalog import QuickTable

AVRO_COMPRESSION = "gzip"
# So many of a size are written together.
MERGED_AT = 10
# Those that have grown so far, MERGED_AT to this power, are left alone: in Python a thousand entries take a second.
_GENERATIONS_MAX = 2
# Entries of small manifests that are kept in mind, of all tables together: to read a manifest takes milliseconds.
_KEPT_ENTRIES_MAX = 2_000


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest of delete files; pyiceberg itself only ever writes those of data files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Manifests:
    """Writes and reads them."""

    def __init__(self, io: FileIO, merged_at: int = MERGED_AT) -> None:
        self._io = io
        self._merged_at = merged_at
        self._lock = threading.Lock()
        # By path, the oldest first.
        self._kept: OrderedDict[str, list[ManifestEntry]] = OrderedDict()
        self._kept_entries = 0

    def write(
        self, table: QuickTable, content: ManifestContent, snapshot_id: int, entries: list[ManifestEntry]
    ) -> ManifestFile:
        """Write one for a snapshot to be."""
        writer_class = ManifestWriterV2 if content == ManifestContent.DATA else _DeleteManifestWriter
        output = self._io.new_output(metadata_location(table, f"{uuid.uuid4()}-m"))
        spec = PartitionSpec(spec_id=table.metadata["default-spec-id"])
        with writer_class(spec, schema_of(table), output, snapshot_id, AVRO_COMPRESSION) as writer:  # type: ignore[arg-type]
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        self._keep(manifest.manifest_path, entries)
        return manifest

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """The entries of a manifest that is part of a snapshot."""
        with self._lock:
            kept = self._kept.get(manifest.manifest_path)
        if kept is None:
            return manifest.fetch_manifest_entry(self._io)
        for entry in kept:
            # What was new is of the snapshot that brought it in.
            if entry.sequence_number is None:
                entry.sequence_number = entry.file_sequence_number = manifest.sequence_number
        return kept

    def merged(self, table: QuickTable, manifests: Sequence[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
        """The manifests that a new snapshot takes over from the one before it."""
        taken_over: list[ManifestFile] = []
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            of_kind = [manifest for manifest in manifests if manifest.content == content]
            together = self._together(of_kind)
            paths = {manifest.manifest_path for manifest in together}
            taken_over += [manifest for manifest in of_kind if manifest.manifest_path not in paths]
            entries = [_existing(entry) for manifest in together for entry in self.entries(manifest)]
            if entries:
                taken_over.append(self.write(table, content, snapshot_id, entries))
        return taken_over

    def _together(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """The smallest of about one size, if they are enough."""
        generations: dict[int, list[ManifestFile]] = {}
        for manifest in manifests:
            generations.setdefault(self._generation(manifest), []).append(manifest)
        for generation, alike in sorted(generations.items()):
            if generation < _GENERATIONS_MAX and len(alike) >= self._merged_at:
                return alike[: self._merged_at]
        return []

    def _generation(self, manifest: ManifestFile) -> int:
        entries = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        generation = 0
        while entries >= self._merged_at:
            entries //= self._merged_at
            generation += 1
        return generation

    def _keep(self, path: str, entries: list[ManifestEntry]) -> None:
        if len(entries) > self._merged_at:
            return
        with self._lock:
            self._kept[path] = entries
            self._kept_entries += len(entries)
            while self._kept_entries > _KEPT_ENTRIES_MAX:
                _, gone = self._kept.popitem(last=False)
                self._kept_entries -= len(gone)


def metadata_location(table: QuickTable, name: str) -> str:
    """Where a new file of the table's metadata goes."""
    folder = table.properties.get("write.metadata.path") or f"{table.metadata['location']}/metadata"
    return f"{folder}/{name}.avro"


def schema_of(table: QuickTable) -> Schema:
    """The current schema, in pyiceberg's words."""
    return _schema(msgspec.json.encode(table.schema))


@lru_cache(256)
def _schema(text: bytes) -> Schema:
    """Making one takes a millisecond, and tables keep theirs for long."""
    return Schema.model_validate_json(text)


def _existing(entry: ManifestEntry) -> ManifestEntry:
    entry.status = ManifestEntryStatus.EXISTING
    return entry
