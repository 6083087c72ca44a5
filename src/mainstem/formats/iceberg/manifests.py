"""Iceberg's manifests: which files a snapshot has. The one reader of them, for scans, inventories, plans and purges.

pyiceberg reads manifests in the layout of v2. What v3 added to a data file (deletion vectors are named by it) is only
in its inner schemas, so this module uses those; nothing else may. `tests/unit/formats/test_inner_parts` says clearly
when pyiceberg has changed them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile

_POSITION_DELETES = 1
# In a position delete's bounds: the column that names the data files.
_PATH_FIELD_ID = 2147483546


def manifests_of(location: str, io: "FileIO") -> "list[ManifestFile]":
    """What a manifest list lists."""
    from pyiceberg.manifest import read_manifest_list

    return list(read_manifest_list(io.new_input(location)))


def live_entries(manifest: "ManifestFile", io: "FileIO") -> "list[ManifestEntry]":
    """The entries of a manifest that are not deleted, with the fields of v3 that pyiceberg's own reader leaves out."""
    from pyiceberg import manifest as manifests
    from pyiceberg.avro.file import AvroFile

    with AvroFile[manifests.ManifestEntry](
        io.new_input(manifest.manifest_path),
        manifests.MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: manifests.ManifestEntry, 2: manifests.DataFile},
        read_enums={0: manifests.ManifestEntryStatus, 101: manifests.FileFormat, 134: manifests.DataFileContent},
    ) as reader:
        return [
            manifests._inherit_from_manifest(entry, manifest)
            for entry in reader
            if entry.status != manifests.ManifestEntryStatus.DELETED
        ]


def late_field(file: Any, name: str) -> Any:
    """A field that is only in v3's layout of a data file."""
    from pyiceberg.manifest import DATA_FILE_TYPE

    names = [field.name for field in DATA_FILE_TYPE[3].fields]
    return file._data[names.index(name)]


def partition_of(file: Any) -> tuple[int, tuple[Any, ...]]:
    """The spec that a file was written by, and the values that it has there."""
    return file.spec_id, tuple(file.partition._data)


def data_path(file: Any) -> str | None:
    """The one data file that a delete file is about, if it is about one only."""
    named = late_field(file, "referenced_data_file")
    if named is not None:
        return str(named)
    if int(file.content) != _POSITION_DELETES:
        return None
    lower, upper = ((bounds or {}).get(_PATH_FIELD_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    # Bounds may be cut short; a path that is the same in both and is whole names the file.
    return lower.decode() if lower and lower == upper else None
