"""Avro's container files, read and written with the schema that they bring: what rewrites manifests must not lose
fields that it does not know. No more of Avro than Iceberg's manifests have: a union is null or one other type.
"""

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from mainstem.model import Corrupt
from mainstem.wire.varint import zigzag

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")

Record = dict[str, Any]
_Read = Callable[[BinaryIO], Any]
_Write = Callable[[BinaryIO, Any], None]


def rewrite(data: bytes, change: Callable[[Record], Record], place: str) -> bytes:
    """The same file with each record changed. `place` names it, should it not be one that can be read."""
    source = io.BytesIO(data)
    try:
        header, records = _read_all(source)
    except (EOFError, KeyError, ValueError, IndexError, zlib.error, struct.error) as error:
        raise Corrupt(f"Avro file cannot be read. got={error!r}", place=place) from error
    return _write_all(header, [change(record) for record in records])


def read(data: bytes, place: str) -> list[Record]:
    """The records of a file."""
    found: list[Record] = []

    def keep(record: Record) -> Record:
        found.append(record)
        return record

    rewrite(data, keep, place)
    return found


def _read_all(source: BinaryIO) -> tuple[dict[str, bytes], list[Record]]:
    if source.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("no Avro container")
    header: dict[str, bytes] = _read_map(source, _read_bytes)
    sync = _exactly(source, _SYNC_BYTES)
    read_record = _reader(json.loads(header["avro.schema"]), {})
    unpack = _unpacker(header.get("avro.codec", b"null").decode())
    records: list[Record] = []
    while block_start := source.read(1):
        source.seek(-len(block_start), os.SEEK_CUR)
        count = _read_long(source)
        block = io.BytesIO(unpack(_read_bytes(source)))
        records += [read_record(block) for _ in range(count)]
        if _exactly(source, _SYNC_BYTES) != sync:
            raise ValueError("block does not end with the file's mark")
    return header, records


def _write_all(header: dict[str, bytes], records: list[Record]) -> bytes:
    target = io.BytesIO()
    target.write(_MAGIC)
    kept = {**header, "avro.codec": b"deflate"}
    _write_long(target, len(kept))
    for key, value in kept.items():
        _write_bytes(target, key.encode())
        _write_bytes(target, value)
    _write_long(target, 0)
    sync = os.urandom(_SYNC_BYTES)
    target.write(sync)
    write_record = _writer(json.loads(header["avro.schema"]), {})
    block = io.BytesIO()
    for record in records:
        write_record(block, record)
    if records:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        _write_long(target, len(records))
        _write_bytes(target, packer.compress(block.getvalue()) + packer.flush())
        target.write(sync)
    return target.getvalue()


def _unpacker(codec: str) -> Callable[[bytes], bytes]:
    match codec:
        case "null":
            return bytes
        case "deflate":
            return lambda data: zlib.decompress(data, wbits=-zlib.MAX_WBITS)
        case _:
            raise ValueError(f"codec {codec}")


# Reading, by schema


def _plain(schema: Any) -> tuple[str, Any]:
    """A schema's kind, and the schema without what is only wrapped around it."""
    while isinstance(schema, dict) and not isinstance(schema["type"], str):
        schema = schema["type"]
    if isinstance(schema, list):
        return "union", schema
    return (schema, schema) if isinstance(schema, str) else (schema["type"], schema)


def _reader(schema: Any, names: dict[str, _Read]) -> _Read:
    kind, schema = _plain(schema)
    match kind:
        case "union":
            branches = [_reader(each, names) for each in schema]
            return lambda source: branches[_read_long(source)](source)
        case "record":
            fields: list[tuple[str, _Read]] = []
            names[schema["name"]] = read_record = lambda source: {name: read(source) for name, read in fields}
            fields += [(field["name"], _reader(field["type"], names)) for field in schema["fields"]]
            return read_record
        case "array":
            items = _reader(schema["items"], names)
            return lambda source: _read_array(source, items)
        case "map":
            values = _reader(schema["values"], names)
            return lambda source: _read_map(source, values)
        case "fixed":
            size = int(schema["size"])
            names[schema["name"]] = lambda source: _exactly(source, size)
            return names[schema["name"]]
        case _:
            return _READERS.get(kind) or names[kind]


def _read_array(source: BinaryIO, items: _Read) -> list[Any]:
    found: list[Any] = []
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        found += [items(source) for _ in range(abs(count))]
    return found


def _read_map(source: BinaryIO, values: _Read) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        for _ in range(abs(count)):
            key = _read_bytes(source).decode()
            found[key] = values(source)
    return found


def _read_long(source: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = _exactly(source, 1)[0]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _read_bytes(source: BinaryIO) -> bytes:
    return _exactly(source, _read_long(source))


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size) if size >= 0 else b""
    if len(data) != size:
        raise EOFError("file ends early")
    return data


_READERS: dict[str, _Read] = {
    "null": lambda _: None,
    "boolean": lambda source: _exactly(source, 1) != b"\0",
    "int": _read_long,
    "long": _read_long,
    "float": lambda source: _FLOAT.unpack(_exactly(source, 4))[0],
    "double": lambda source: _DOUBLE.unpack(_exactly(source, 8))[0],
    "bytes": _read_bytes,
    "string": lambda source: _read_bytes(source).decode(),
}


# Writing, by schema


def _writer(schema: Any, names: dict[str, _Write]) -> _Write:
    kind, schema = _plain(schema)
    match kind:
        case "union":
            return _union_writer(schema, names)
        case "record":
            fields: list[tuple[str, _Write]] = []

            def write_record(target: BinaryIO, value: Record) -> None:
                for name, write in fields:
                    write(target, value[name])

            names[schema["name"]] = write_record
            fields += [(field["name"], _writer(field["type"], names)) for field in schema["fields"]]
            return write_record
        case "array":
            items = _writer(schema["items"], names)
            return lambda target, value: _write_array(target, value, items)
        case "map":
            values = _writer(schema["values"], names)
            return lambda target, value: _write_map(target, value, values)
        case "fixed":
            names[schema["name"]] = _write_raw
            return names[schema["name"]]
        case _:
            return _WRITERS.get(kind) or names[kind]


def _union_writer(schema: list[Any], names: dict[str, _Write]) -> _Write:
    branches = [_writer(each, names) for each in schema]
    null = next((index for index, each in enumerate(schema) if each == "null"), None)
    others = [index for index in range(len(schema)) if index != null]
    if len(others) != 1:
        raise ValueError(f"union. expected=null and one type got={schema}")

    def write(target: BinaryIO, value: Any) -> None:
        index = null if value is None and null is not None else others[0]
        _write_long(target, index)
        branches[index](target, value)

    return write


def _write_array(target: BinaryIO, value: list[Any], items: _Write) -> None:
    if value:
        _write_long(target, len(value))
        for item in value:
            items(target, item)
    _write_long(target, 0)


def _write_map(target: BinaryIO, value: dict[str, Any], values: _Write) -> None:
    if value:
        _write_long(target, len(value))
        for key, item in value.items():
            _write_bytes(target, key.encode())
            values(target, item)
    _write_long(target, 0)


def _write_long(target: BinaryIO, value: int) -> None:
    target.write(zigzag(value))


def _write_bytes(target: BinaryIO, value: bytes) -> None:
    _write_long(target, len(value))
    target.write(value)


def _write_raw(target: BinaryIO, value: bytes) -> None:
    target.write(value)


_WRITERS: dict[str, _Write] = {
    "null": lambda target, value: None,
    "boolean": lambda target, value: _write_raw(target, b"\1" if value else b"\0"),
    "int": _write_long,
    "long": _write_long,
    "float": lambda target, value: _write_raw(target, _FLOAT.pack(value)),
    "double": lambda target, value: _write_raw(target, _DOUBLE.pack(value)),
    "bytes": _write_bytes,
    "string": lambda target, value: _write_bytes(target, value.encode()),
}
