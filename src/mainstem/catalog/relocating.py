"""Tables whose folder was moved or copied: everything that names a file is written anew, with the new names.

An Iceberg table names its files by whole paths: in the metadata document, in manifest lists, in manifests, and in
position deletes, which name the data files whose rows they delete. Data files are left as they are. Every file that is
rewritten gets a new name, and the catalog is pointed to the new ones in one step at the end: a move that is interrupted
begins again. What is left behind are strays that maintenance removes.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from mainstem.catalog import avro
from mainstem.catalog.files import LocalFiles, is_local, local_path
from mainstem.catalog.metadata.documents import next_location
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.stores.store import Kind, Pointer, Store, Swap
from mainstem.model import Corrupt, Invalid

# The ids of the columns `file_path` and `pos` of every position delete file.
_FILE_PATH_ID = 2147483546
_POSITION_DELETES = 1
_PUFFIN_MAGIC = b"PFA1"
_PUFFIN_FOOTER_END = struct.Struct("<iI4s")


class Prefixes:
    """The old place, by all its names, and the new one, as locations may begin with them."""

    def __init__(self, old: Sequence[Path], new: Path) -> None:
        # The longest first: one of them may be the beginning of another.
        names = sorted({str(each) for each in old}, key=len, reverse=True)
        self._pairs = [(f"{scheme}{each}/", f"{scheme}{new}/") for each in names for scheme in ("", "file://", "file:")]

    def is_old(self, location: str) -> bool:
        """Whether a location is at the old place."""
        return any(location.startswith(old) for old, _ in self._pairs)

    def moved(self, location: str) -> str:
        """The location at the new place; one that is elsewhere stays."""
        for old, new in self._pairs:
            if location.startswith(old):
                return new + location.removeprefix(old)
        return location


def relocate(store: Store, prefixes: Prefixes, unique: str) -> list[str]:
    """Point the catalog to tables and views at the new place. Returns the names of those that were moved.

    `unique` goes into the names of new files. Blocks; no other process may write to the store or the tables meanwhile.
    """
    swaps: list[Swap] = []
    for kind in Kind:
        for ident, pointer in store.entries(None, kind):
            if prefixes.is_old(pointer.location) or prefixes.is_old(pointer.metadata_location):
                swaps.append(Swap(ident, pointer.metadata_location, _moved(pointer, prefixes, unique)))
    if swaps and not store.swap(swaps):
        raise Invalid("somebody else writes to the catalog. expected=a server that is stopped")
    files = LocalFiles()
    for swap in swaps:
        if swap.pointer.kind is Kind.TABLE and is_local(swap.pointer.location):
            # For readers of the folder alone: the old hint names metadata that lies at the old place.
            files.write_hint(swap.pointer.location, swap.pointer.metadata_location)
    return [str(swap.ident) for swap in swaps]


def _moved(pointer: Pointer, prefixes: Prefixes, unique: str) -> Pointer:
    location = prefixes.moved(pointer.location)
    if pointer.kind is Kind.GENERIC:
        # Nothing is at that place: it is only compared.
        metadata_location = prefixes.moved(pointer.metadata_location)
    else:
        metadata_location = _Table(prefixes, unique).move(prefixes.moved(pointer.metadata_location))
    return Pointer(metadata_location, location, pointer.snapshot_id, pointer.marks, pointer.kind, pointer.details)


class _Table:
    """One table's or view's files. Everything is read and written at the new place."""

    def __init__(self, prefixes: Prefixes, unique: str) -> None:
        self._prefixes = prefixes
        self._unique = unique
        self._files = LocalFiles()
        # By their place: many snapshots share their manifests, and many manifests their delete files.
        self._written: dict[str, tuple[str, int]] = {}

    def move(self, metadata_location: str) -> str:
        document: Document = msgspec.json.decode(self._files.read(metadata_location))
        moved = self._moved(document)
        for before, after in zip(document.get("snapshots") or (), moved.get("snapshots") or (), strict=True):
            if manifest_list := before.get("manifest-list"):
                after["manifest-list"], _ = self._once(manifest_list, self._manifest_list)
            if manifests := before.get("manifests"):
                after["manifests"] = [self._once(each, self._manifest)[0] for each in manifests]
        target = next_location({"properties": {}, **moved}, metadata_location, self._unique)
        self._files.write_new(target.replace(".gz.metadata.json", ".metadata.json"), msgspec.json.encode(moved))
        return target.replace(".gz.metadata.json", ".metadata.json")

    def _moved(self, value: Any) -> Any:
        match value:
            case str():
                return self._prefixes.moved(value)
            case dict():
                return {key: self._moved(each) for key, each in value.items()}
            case list():
                return [self._moved(each) for each in value]
            case _:
                return value

    def _once(self, location: str, rewrite: Callable[[bytes, str], bytes]) -> tuple[str, int]:
        """A file at the new place, rewritten if it was not yet: its location and its size. One elsewhere stays."""
        if not self._prefixes.is_old(location):
            path = local_path(location) if is_local(location) else None
            return location, path.stat().st_size if path is not None and path.exists() else 0
        here = self._prefixes.moved(location)
        if here not in self._written:
            data = rewrite(_content(here), here)
            target = _renamed(here, self._unique)
            self._files.write_new(target, data)
            self._written[here] = (target, len(data))
        return self._written[here]

    def _manifest_list(self, data: bytes, place: str) -> bytes:
        def change(manifest: avro.Record) -> avro.Record:
            is_old = self._prefixes.is_old(manifest["manifest_path"])
            path, size = self._once(manifest["manifest_path"], self._manifest)
            return manifest | ({"manifest_path": path, "manifest_length": size} if is_old else {})

        return avro.rewrite(data, change, place)

    def _manifest(self, data: bytes, place: str) -> bytes:
        def change(entry: avro.Record) -> avro.Record:
            return entry | {"data_file": self._file(entry["data_file"], place)}

        return avro.rewrite(data, change, place)

    def _file(self, file: avro.Record, place: str) -> avro.Record:
        if referenced := file.get("referenced_data_file"):
            file = file | {"referenced_data_file": self._prefixes.moved(referenced)}
        if file.get("content", 0) != _POSITION_DELETES:
            return file | {"file_path": self._prefixes.moved(file["file_path"])}
        for name in ("lower_bounds", "upper_bounds"):
            file = file | {name: self._bounds(file.get(name))} if name in file else file
        if not self._prefixes.is_old(file["file_path"]):
            return file
        rewrite = {"PARQUET": self._position_deletes, "PUFFIN": self._puffin}.get(str(file["file_format"]).upper())
        if rewrite is None:
            raise Invalid(f"delete files of this format cannot be moved. file={place} got={file['file_format']}")
        path, size = self._once(file["file_path"], rewrite)
        return file | {"file_path": path, "file_size_in_bytes": size}

    def _bounds(self, bounds: Sequence[avro.Record] | None) -> list[avro.Record] | None:
        """The bounds of the names in a delete file. One that is cut off is left out: it only spares a look."""
        if bounds is None:
            return None
        found: list[avro.Record] = []
        for bound in bounds:
            if bound["key"] != _FILE_PATH_ID:
                found.append(bound)
                continue
            name = bound["value"].decode("utf-8", "replace")
            if self._prefixes.is_old(name):
                found.append(bound | {"value": self._prefixes.moved(name).encode()})
        return found

    def _position_deletes(self, data: bytes, place: str) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(pa.BufferReader(data))
        except pa.ArrowException as error:
            raise Corrupt(f"delete file cannot be read. got={error}", place=place) from error
        index = table.schema.get_field_index("file_path")
        field = table.schema.field(index)
        names = [self._prefixes.moved(name) for name in table.column(index).to_pylist()]
        moved = table.set_column(index, field, pa.array(names, field.type))
        sink = pa.BufferOutputStream()
        pq.write_table(moved, sink, compression="zstd", store_schema=False)
        return bytes(sink.getvalue().to_pybytes())

    def _puffin(self, data: bytes, place: str) -> bytes:
        size, flags, magic = _PUFFIN_FOOTER_END.unpack(data[-_PUFFIN_FOOTER_END.size :])
        start = len(data) - _PUFFIN_FOOTER_END.size - size
        if magic != _PUFFIN_MAGIC or data[start - 4 : start] != _PUFFIN_MAGIC or flags & 1:
            raise Corrupt("Puffin file has no plain footer", place=place)
        footer = json.dumps(self._moved(json.loads(data[start : start + size])), separators=(",", ":")).encode()
        return data[:start] + footer + _PUFFIN_FOOTER_END.pack(len(footer), flags, magic)


def _renamed(location: str, unique: str) -> str:
    """A new name beside the old one. It has nothing of the old one in it: names would grow with every move."""
    path = PurePosixPath(location)
    was = hashlib.blake2b(path.name.encode(), digest_size=16).hexdigest()
    return location.removesuffix(path.name) + f"moved-{was}-{unique}{path.suffix}"


def _content(location: str) -> bytes:
    try:
        return local_path(location).read_bytes()
    except OSError as error:
        raise Corrupt(f"a table's file cannot be read. got={error.strerror}", place=location) from error
