"""Files by their locations, in a local folder or on S3: where executors write, and where segments are.

A new file is not seen before it is closed. On S3 it lasts then, on a local disk once `make_durable` was told of it,
which takes about as long for many files as for one.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from mainstem.model.errors import Invalid
from mainstem.runtime import durable

_S3 = frozenset(("s3", "s3a", "s3n"))
# Spark treats a file with this first letter as no data. It makes a folder on S3 one that exists.
_PLACEHOLDER = "_keep"
# What catalogs call the options of a client for S3, and what Arrow calls them.
_OPTIONS = {
    "s3.endpoint": "endpoint_override",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "client.region": "region",
    "s3.region": "region",
}


def local_path(location: str) -> Path | None:
    """The path of a location on this machine; None where it is elsewhere."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return Path(location) if location.startswith("/") else None


@contextmanager
def new_file(location: str, store: Mapping[str, str]) -> Iterator[pa.NativeFile]:
    """A new file to write to. Where this is left by an error there is no file."""
    path = local_path(location)
    if path is None:
        files, key = _object_store(location, tuple(sorted(store.items())))
        try:
            with files.open_output_stream(key) as sink:
                yield sink
        except BaseException:
            # Closing the stream completes the upload, whatever went wrong before.
            with suppress(OSError):
                files.delete_file(key)
            raise
        return
    # The name of a new folder (a partition's, say) must last as well, and that stands in the folder above it.
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pa.OSFile(str(path), "wb") as sink:
            yield sink
        for folder in made:
            durable.sync(folder.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def make_durable(locations: Iterable[str]) -> None:
    """Have new files last, those on this machine's disks: a store has kept the others as soon as it took them."""
    paths = [local_path(location) for location in locations]
    durable.sync_files(path for path in paths if path is not None)


def put_file(path: Path, location: str, store: Mapping[str, str]) -> None:
    """Copy a local file to the store: whole, or not at all."""
    files, key = _object_store(location, tuple(sorted(store.items())))
    # Mapped, and written by one call: a stream that is closed after half of the bytes would leave half a file.
    with pa.memory_map(str(path)) as source:
        data = source.read_buffer()
        with files.open_output_stream(key) as sink:
            sink.write(data)


def make_folder(location: str, store: Mapping[str, str]) -> None:
    """Make sure that a folder is there. On S3 one is where a file is."""
    path = local_path(location)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        return
    files, key = _object_store(f"{location}/{_PLACEHOLDER}", tuple(sorted(store.items())))
    if files.get_file_info(key).type == pafs.FileType.NotFound:
        with files.open_output_stream(key) as sink:
            sink.write(b"")


def list_files(location: str, store: Mapping[str, str]) -> dict[str, int]:
    """The sizes of a folder's files by their names. Empty where there is no such folder."""
    path = local_path(location)
    if path is not None:
        return _local_files(path)
    files, key = _object_store(location, tuple(sorted(store.items())))
    found = files.get_file_info(pafs.FileSelector(key, allow_not_found=True))
    return {info.base_name: int(info.size) for info in found if info.type == pafs.FileType.File}


def open_file(location: str, store: Mapping[str, str]) -> pa.NativeFile:
    """A file to read from any place of it. Raises FileNotFoundError."""
    path = local_path(location)
    if path is not None:
        return pa.OSFile(str(path))
    files, key = _object_store(location, tuple(sorted(store.items())))
    return files.open_input_file(key)


def for_spark(location: str) -> str:
    """A location as Spark's own sources take it: Hadoop's client for S3 has a scheme of its own."""
    path = local_path(location)
    if path is not None:
        # With its scheme: on a cluster a path without one may mean another file system.
        return f"file://{path}"
    scheme, _, rest = location.partition("://")
    return f"s3a://{rest}" if scheme in _S3 else location


def read_file(location: str, store: Mapping[str, str], offset: int = 0, length: int | None = None) -> bytes:
    """A file's bytes, or some of them."""
    path = local_path(location)
    if path is not None:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)
    files, key = _object_store(location, tuple(sorted(store.items())))
    with files.open_input_file(key) as stored:
        stored.seek(offset)
        return bytes(stored.read(length))


def remove_file(location: str, store: Mapping[str, str]) -> None:
    """Remove a file that no commit names. One that is gone already is fine."""
    path = local_path(location)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    files, key = _object_store(location, tuple(sorted(store.items())))
    if files.get_file_info(key).type != pafs.FileType.NotFound:
        files.delete_file(key)


def _local_files(folder: Path) -> dict[str, int]:
    sizes = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            # One that was removed meanwhile is not there.
            with suppress(FileNotFoundError):
                if entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _object_store(location: str, store: tuple[tuple[str, str], ...]) -> tuple[pafs.FileSystem, str]:
    parts = urlsplit(location)
    if parts.scheme not in _S3:
        raise Invalid(f"files cannot be written there. expected=a local folder or s3:// got={location}")
    return _s3(store), f"{parts.netloc}/{unquote(parts.path.lstrip('/'))}"


@lru_cache(4)
def _s3(store: tuple[tuple[str, str], ...]) -> pafs.S3FileSystem:
    options = {_OPTIONS[name]: value for name, value in store if name in _OPTIONS}
    endpoint = options.get("endpoint_override", "")
    if "://" in endpoint:
        options["scheme"], _, options["endpoint_override"] = endpoint.partition("://")
    options.setdefault("region", os.environ.get("AWS_REGION", "us-east-1"))
    # A small file is then one request, which takes all of it or nothing; otherwise a begin, a part and an end.
    return pafs.S3FileSystem(**options, allow_delayed_open=True)
