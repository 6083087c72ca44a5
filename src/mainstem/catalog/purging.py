"""Purging a dropped table: the files that its own metadata lists go, inside its location, and nothing else.

Never a whole folder: what lies in it and is in no metadata is not known to be the table's. Neither is what lies in the
folder of another table, nor what a symbolic link leads to.
"""

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainstem.catalog.errors import IllegalArgument
from mainstem.catalog.files import HINT, Files, is_local, local_path
from mainstem.catalog.metadata.documents import Documents
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.store import Store
from mainstem.formats.iceberg.manifests import live_entries, manifests_of
from mainstem.model import Invalid, MainstemError
from mainstem.tables.places import folder_place_of, is_inside

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

GC_PROPERTY = "gc.enabled"
# A metadata file lists a hundred before it, and those list theirs.
METADATA_FILES_MAX = 100_000

_logger = logging.getLogger(__name__)


def check_purge(ident: TableIdent, document: Document) -> None:
    """Refuse to purge a table that shares its files with others, as it says by a property of its own."""
    if str((document.get("properties") or {}).get(GC_PROPERTY, "true")).lower() == "false":
        # Iceberg's own wording.
        raise IllegalArgument(f"Cannot purge table {ident}: GC is disabled (deleting files may corrupt other tables)")


class Purger:
    """Removes the files of tables that the catalog has forgotten."""

    def __init__(self, files: Files, documents: Documents, store: Store) -> None:
        self._files = files
        self._documents = documents
        self._store = store

    def purge(self, ident: TableIdent, document: Document, metadata_location: str) -> None:
        """Remove what the table's metadata lists. What cannot be removed stays: it costs space and nothing else."""
        try:
            place = folder_place_of(document["location"])
        except Invalid as error:
            _logger.warning("a dropped table keeps its files: %s", error, extra={"table": str(ident)})
            return
        own = _Own(place, [location for _, location in self._store.overlapping(place, ident)])
        removed = kept = 0
        for path in self._listed(own, document, metadata_location):
            if path in own and self._remove(path):
                removed += 1
            else:
                kept += 1
        self._files.remove_empty_folders(place)
        _logger.info("a table was purged: %d files removed, %d kept", removed, kept, extra={"table": str(ident)})

    def _remove(self, path: str) -> bool:
        try:
            self._files.remove(path)
        except OSError as error:
            _logger.warning("a file of a dropped table stays: %s", error, extra={"file": path})
            return False
        return True

    def _listed(self, own: "_Own", document: Document, metadata_location: str) -> Iterator[str]:
        """Every file of the table, each after the ones that are found by it."""
        metadata = self._metadata_files(own, document, metadata_location)
        manifests: dict[str, ManifestFile | None] = {}
        lists = [str(snapshot["manifest-list"]) for snapshot in document["snapshots"] if "manifest-list" in snapshot]
        for path in lists:
            manifests |= {str(manifest.manifest_path): manifest for manifest in self._manifests(own, path)}
        for snapshot in document["snapshots"]:
            manifests |= dict.fromkeys(map(str, snapshot.get("manifests") or ()))
        for path, manifest in manifests.items():
            if manifest is not None and path in own:
                yield from self._data_files(manifest)
        yield from manifests
        yield from lists
        for section in ("statistics", "partition-statistics"):
            yield from (str(entry.get("statistics-path")) for entry in document[section])
        yield from metadata
        yield f"{document['location'].rstrip('/')}/{HINT}"

    def _manifests(self, own: "_Own", path: str) -> "list[ManifestFile]":
        if path not in own:
            return []
        try:
            return manifests_of(path, self._files.file_io(path))
        # The edge of one file: pyiceberg raises anything over what is no Avro.
        except Exception as error:
            _logger.warning("a manifest list cannot be read, what it lists stays: %r", error, extra={"file": path})
            return []

    def _data_files(self, manifest: Any) -> Iterator[str]:
        path = str(manifest.manifest_path)
        try:
            entries = live_entries(manifest, self._files.file_io(path))
        # The edge of one file, as above.
        except Exception as error:
            _logger.warning("a manifest cannot be read, what it lists stays: %r", error, extra={"file": path})
            return
        for entry in entries:
            yield str(entry.data_file.file_path)

    def _metadata_files(self, own: "_Own", document: Document, newest: str) -> list[str]:
        """The metadata files of the table, the newest first: by the log in it, by the log in the oldest of that, …"""
        found = {newest: None}
        log = [str(entry.get("metadata-file")) for entry in document["metadata-log"]]
        while log and len(found) < METADATA_FILES_MAX:
            is_new = log[0] not in found
            found |= dict.fromkeys(reversed(log))
            if not is_new or log[0] not in own:
                break
            try:
                older = self._documents.read(log[0]).document
            except (OSError, MainstemError):
                # Removed by a commit that asked for that.
                break
            if older.get("table-uuid") != document.get("table-uuid"):
                break
            log = [str(entry.get("metadata-file")) for entry in older["metadata-log"]]
        return list(found)


class _Own:
    """Which paths are a table's own."""

    def __init__(self, place: str, others: list[str]) -> None:
        self._place = place
        self._others = others
        self._root = os.path.realpath(place) if is_local(place) else None

    def __contains__(self, path: str) -> bool:
        if not is_inside(path, self._place) or self._is_anothers(path):
            return False
        if self._root is None:
            return True
        return f"{os.path.realpath(local_path(path).parent)}/".startswith(f"{self._root}/")

    def _is_anothers(self, path: str) -> bool:
        return any(is_inside(path, other) or is_inside(self._place + "/", other.rstrip("/")) for other in self._others)
