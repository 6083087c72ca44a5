"""`mainstem backup` and `mainstem restore`: a data folder as files, with a list of what belongs to it.

A backup is a folder like the one it was made of, and `backup.json` with the size and the SHA-256 of each file. Either
is made beside its place and gets its name when it is whole. A restored log goes on under a new identity, by itself:
its lock file is not part of a backup.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mainstem.app.folder.address import ADDRESS_FILE
from mainstem.app.folder.home import hold, relocate_data
from mainstem.catalog.settings import catalog_path
from mainstem.model import Conflict, Corrupt, Invalid
from mainstem.runtime import durable
from mainstem.runtime.clock import Clock

LIST = "backup.json"
VERSION = 1
_CHUNK_BYTES = 1 << 20
# What a running server needs and a stopped one does not.
_LEFT_OUT = ("log/lock", "log/.scratch", "pipeline/checkpoints", "pipeline/settings.json", ADDRESS_FILE)


class BackedUpFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    path: str
    bytes: int
    sha256: str


class BackupList(msgspec.Struct, frozen=True, kw_only=True):
    """What `backup.json` says."""

    version: int
    data: str
    made_ms: int
    files: list[BackedUpFile]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def back_up(data: Path, target: Path, clock: Clock) -> BackupList:
    """Copy a data folder whose server is stopped. Raises Conflict while one runs."""
    data, target = data.absolute(), target.absolute()
    if not (data / "log").is_dir():
        raise Invalid(f"no data folder. got={data}")
    _check_apart(data, target)
    _check_free(target)
    lock = hold(data)
    try:
        scratch = _scratch(target)
        files = [_copied(data, name, scratch) for name in _names(data)]
        made = BackupList(version=VERSION, data=str(data), made_ms=clock.now_ms(), files=files)
        durable.write_new(str(scratch / LIST), msgspec.json.encode(made))
        _name(scratch, target)
    finally:
        lock.release()
    return made


def restore(source: Path, data: Path) -> tuple[BackupList, list[str]]:
    """Make a data folder of a backup: what was restored, and the tables that now name their files here."""
    source, data = source.absolute(), data.absolute()
    listed = read_list(source)
    _check_apart(source, data)
    _check_free(data)
    scratch = _scratch(data)
    for file in listed.files:
        copied = _copied(source, file.path, scratch)
        if copied != file:
            raise Corrupt(
                f"a file of the backup is not as it was. expected={file.bytes} bytes, {file.sha256[:12]}… "
                f"got={copied.bytes} bytes, {copied.sha256[:12]}…",
                place=str(source / file.path),
            )
    _name(scratch, data)
    # From here on the folder is whole; a server that is started before the next step is done says what is missing.
    moved = relocate_data(data)[1] if catalog_path(data).exists() else []
    return listed, moved


def read_list(source: Path) -> BackupList:
    """The list of a backup. Raises Invalid where there is none."""
    try:
        listed = msgspec.json.decode((source / LIST).read_bytes(), type=BackupList)
    except FileNotFoundError as error:
        raise Invalid(f"no backup. expected=a folder with {LIST} got={source}") from error
    except msgspec.MsgspecError as error:
        raise Corrupt(f"list of the backup cannot be read. got={error}", place=str(source / LIST)) from error
    if listed.version != VERSION:
        raise Corrupt(f"version of the backup. expected={VERSION} got={listed.version}", place=str(source / LIST))
    if any(Path(file.path).is_absolute() or ".." in Path(file.path).parts for file in listed.files):
        raise Corrupt("list of the backup names a file outside of it", place=str(source / LIST))
    return listed


def _names(data: Path) -> Iterator[str]:
    """The files of a data folder that a backup has, by their relative names."""
    for folder, folders, files in os.walk(data):
        here = Path(folder).relative_to(data)
        folders[:] = sorted(name for name in folders if str(here / name) not in _LEFT_OUT)
        for name in sorted(files):
            if str(here / name) not in _LEFT_OUT:
                yield str(here / name)


def _copied(source: Path, name: str, target: Path) -> BackedUpFile:
    """Copy one file, durably."""
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    try:
        with (source / name).open("rb") as read, path.open("xb") as write:
            while chunk := read.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += write.write(chunk)
            write.flush()
            os.fsync(write.fileno())
            shutil.copystat(source / name, path)
    except FileNotFoundError as error:
        raise Corrupt("a file is missing", place=str(source / name)) from error
    return BackedUpFile(name, size, digest.hexdigest())


def _check_apart(one: Path, other: Path) -> None:
    if one == other or one in other.parents or other in one.parents:
        raise Invalid(f"a backup and its data folder must lie apart. got={one} and {other}")


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"the place is taken. expected=an empty folder, or none got={target}")


def _scratch(target: Path) -> Path:
    """A folder beside the place; what an interrupted run left there is removed."""
    scratch = target.with_name(f"{target.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def _name(scratch: Path, target: Path) -> None:
    for folder, _, _ in os.walk(scratch):
        durable.sync(folder)
    if target.exists():
        target.rmdir()
    scratch.rename(target)
    durable.sync(target.parent)
