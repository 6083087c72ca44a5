"""Where metadata files live: the one boundary between the catalog and a file system.

Local files are synced before they are told of, and so are their folders: "durable before answered" needs both. Any
other scheme goes through pyiceberg's FileIO, whose import is slow and therefore waits until it is needed.
"""

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mainstem.model import Invalid, NotFound
from mainstem.runtime import durable

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

# Gives pyiceberg's way to the files at a location.
FileIoOf = Callable[[str], "FileIO"]

# Iceberg's own name for it, by which DuckDB's `iceberg_scan` of a folder finds the table.
HINT = "metadata/version-hint.text"
METADATA_SUFFIX = ".metadata.json"
GZIP_MAGIC = b"\x1f\x8b"
_TABLE_FOLDERS = ("data", "metadata")


class Files(Protocol):
    """What the catalog asks of a file system. A location is a whole path or URI, as it stands in metadata."""

    def read(self, location: str) -> bytes:
        """All bytes of a file. Raises `NotFound` where there is none."""

    def check_present(self, location: str) -> None:
        """Raise `NotFound` where it costs next to nothing to see that there is no file."""

    def write_new(self, location: str, data: bytes) -> None:
        """Write a file that does not exist yet; when this returns, it survives a power cut."""

    def write_hint(self, folder: str, metadata_location: str) -> None:
        """Say which metadata file is current to engines that read the folder without the catalog."""

    def remove(self, location: str) -> None:
        """Remove a file; none is fine."""

    def claim_table(self, location: str) -> bool:
        """Make a table's folders. False if another table's files are already there."""

    def remove_empty_folders(self, location: str) -> None:
        """Remove what is left of a table whose files are gone: folders that hold nothing."""

    def file_io(self, location: str) -> "FileIO":
        """pyiceberg's way to a location, for reading manifests."""


class LocalFiles:
    """Plain absolute paths and file: URIs."""

    def read(self, location: str) -> bytes:
        try:
            return unzipped(local_path(location).read_bytes())
        except FileNotFoundError as error:
            raise _absent(location) from error

    def check_present(self, location: str) -> None:
        if not os.access(_plain(location), os.F_OK):
            raise _absent(location)

    def write_new(self, location: str, data: bytes) -> None:
        path = _plain(location)
        try:
            durable.write_new(path, data)
        except FileNotFoundError:
            _make_folder(Path(path).parent)
            durable.write_new(path, data)

    def write_hint(self, folder: str, metadata_location: str) -> None:
        metadata = local_path(metadata_location)
        hint = local_path(folder) / HINT
        if metadata.parent != hint.parent or not metadata.name.endswith(METADATA_SUFFIX):
            return
        # Renamed into its place: no reader gets half of it. Not synced: after a crash it may name an older file.
        scratch = hint.with_name(f".{metadata.name}.hint")
        scratch.write_text(metadata.name.removesuffix(METADATA_SUFFIX))
        scratch.replace(hint)

    def remove(self, location: str) -> None:
        local_path(location).unlink(missing_ok=True)

    def claim_table(self, location: str) -> bool:
        path = local_path(location)
        if path.exists() and _has_files(path):
            return False
        for folder in _TABLE_FOLDERS:
            _make_folder(path / folder)
        return True

    def remove_empty_folders(self, location: str) -> None:
        path = local_path(location)
        for folder in _TABLE_FOLDERS:
            for each, _, _ in os.walk(path / folder, topdown=False):
                # Not empty: then it stays.
                with suppress(OSError):
                    Path(each).rmdir()
        with suppress(OSError):
            path.rmdir()

    def file_io(self, location: str) -> "FileIO":
        from pyiceberg.io import load_file_io

        return load_file_io({}, location)


class ObjectFiles:
    """Any scheme that pyiceberg's FileIO knows, such as s3. An object is durable once its write returns."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties
        # By scheme. Each has connections of its own: to make one for every file takes seven times as long as the file.
        self._known: dict[str, FileIO] = {}

    def file_io(self, location: str) -> "FileIO":
        """pyiceberg's way to a location."""
        from pyiceberg.io import load_file_io

        scheme = urlsplit(location).scheme
        known = self._known.get(scheme)
        if known is None:
            known = self._known[scheme] = load_file_io(self._properties, location)
        return known

    def read(self, location: str) -> bytes:
        try:
            with self.file_io(location).new_input(location).open() as stream:
                return unzipped(stream.read())
        except FileNotFoundError as error:
            raise _absent(location) from error

    def check_present(self, location: str) -> None:
        # That would be a request of its own for each load.
        return

    def write_new(self, location: str, data: bytes) -> None:
        with self.file_io(location).new_output(location).create(overwrite=False) as stream:
            stream.write(data)

    def write_hint(self, folder: str, metadata_location: str) -> None:
        # Who reads a bucket has a catalog, and this would be a request for each commit.
        return

    def remove(self, location: str) -> None:
        try:
            self.file_io(location).delete(location)
        except FileNotFoundError:
            pass

    def claim_table(self, location: str) -> bool:
        # Object stores have no folders to make, and file names carry ids, so nothing can be written over.
        return bool(location)

    def remove_empty_folders(self, location: str) -> None:
        # Object stores have none.
        return


class RoutedFiles:
    """Sends each location to the file system of its scheme."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        self._local = LocalFiles()
        self._objects = ObjectFiles(properties or {})

    def file_io(self, location: str) -> "FileIO":
        """pyiceberg's way to a location."""
        return self._objects.file_io(location)

    def _of(self, location: str) -> Files:
        return self._local if is_local(location) else self._objects

    def read(self, location: str) -> bytes:
        return self._of(location).read(location)

    def check_present(self, location: str) -> None:
        self._of(location).check_present(location)

    def write_new(self, location: str, data: bytes) -> None:
        self._of(location).write_new(location, data)

    def write_hint(self, folder: str, metadata_location: str) -> None:
        self._of(folder).write_hint(folder, metadata_location)

    def remove(self, location: str) -> None:
        self._of(location).remove(location)

    def claim_table(self, location: str) -> bool:
        return self._of(location).claim_table(location)

    def remove_empty_folders(self, location: str) -> None:
        self._of(location).remove_empty_folders(location)


def is_local(location: str) -> bool:
    """Whether a location is a path of this machine."""
    return location.startswith("/") or location.startswith("file:")


def local_path(location: str) -> Path:
    """The path that a local location means."""
    path = Path(url2pathname(urlsplit(location).path) if location.startswith("file:") else location)
    if not path.is_absolute():
        raise Invalid(f"location is not absolute. expected=an absolute path or a URI got={location!r}")
    return path


def _plain(location: str) -> str:
    # Most locations are plain paths, and this is asked for with each load and commit: no object is made of them.
    return location if location.startswith("/") else str(local_path(location))


def unzipped(data: bytes) -> bytes:
    """Metadata files may be gzipped, whatever their name says."""
    return gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data


def _absent(location: str) -> NotFound:
    # Iceberg's own wording, which the tests of its clients ask for.
    return NotFound(f"Failed to open input stream for file: {location}")


def _has_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


def _make_folder(path: Path) -> None:
    """Make a folder and its parents, and make their entries durable."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    durable.sync(path.parent)
