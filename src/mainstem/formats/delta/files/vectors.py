"""Deletion vectors: which rows of a data file are gone, as Delta stores them.

Owns the bytes (a 64-bit Roaring bitmap in its portable form), Base85 after ZeroMQ's alphabet, and the three places a
vector may be in: inside the log, in a file beside the data, or in a file anywhere. Ours are in files, as Spark's are:
Trino does not read those in the log. No I/O: files are handed in.
"""

import struct
import uuid
import zlib
from array import array
from collections.abc import Iterable

import msgspec
import numpy as np
from pyroaring import BitMap64

from mainstem.model.errors import Corrupt

_MAGIC = 1_681_511_377
_FILE_VERSION = 1
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: digit for digit, letter in enumerate(_ALPHABET)}


class Descriptor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a vector is, as the log says it."""

    storageType: str  # noqa: N815 - the protocol's own name
    pathOrInlineDv: str  # noqa: N815
    sizeInBytes: int  # noqa: N815
    cardinality: int
    offset: int | None = None

    @property
    def unique_id(self) -> str:
        """Tells the vectors of one file apart."""
        start = self.storageType + self.pathOrInlineDv
        return start if self.offset is None else f"{start}@{self.offset}"

    def file(self, table: str) -> str | None:
        """The vector's file below the storage's root, None for one that is in the log."""
        match self.storageType:
            case "u":
                prefix, encoded = self.pathOrInlineDv[:-20], self.pathOrInlineDv[-20:]
                name = f"deletion_vector_{uuid.UUID(bytes=decode85(encoded))}.bin"
                if ".." in prefix.split("/"):
                    raise Corrupt("a deletion vector outside its table is not read", place=self.pathOrInlineDv)
                return f"{table}/{prefix}/{name}" if prefix else f"{table}/{name}"
            case "i":
                return None
        raise Corrupt("a deletion vector outside its table is not read", place=self.pathOrInlineDv)


def bitmap_of(rows: np.ndarray) -> BitMap64:
    """Rows by their places in the file, none twice."""
    # An array is taken as it lies in memory, everything else number by number.
    return BitMap64(array("Q", rows.astype(np.uint64).tobytes()))


def rows_of(bitmap: BitMap64) -> np.ndarray:
    """The places of the rows in the file, in order."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def encode(rows: BitMap64) -> bytes:
    """The vector's own bytes."""
    return struct.pack("<i", _MAGIC) + bytes(rows.serialize())


def decode(data: bytes, place: str) -> BitMap64:
    """Read a vector's own bytes."""
    if len(data) < 4 or struct.unpack_from("<i", data)[0] != _MAGIC:
        raise Corrupt(f"not a deletion vector. expected=magic {_MAGIC}", place=place)
    try:
        return BitMap64.deserialize(data[4:])
    except ValueError as error:
        raise Corrupt(f"not a deletion vector. {error}", place=place) from error


def inline(rows: BitMap64) -> Descriptor:
    """A vector that is its own place, as the log may have it. Ours only travel so, to who rewrites a file."""
    data = encode(rows)
    return Descriptor("i", encode85(data + bytes(-len(data) % 4)), len(data), len(rows))


def read_inline(descriptor: Descriptor, place: str) -> BitMap64:
    """A vector out of the log."""
    return _counted(decode(decode85(descriptor.pathOrInlineDv)[: descriptor.sizeInBytes], place), descriptor, place)


def read_from_file(descriptor: Descriptor, content: bytes, place: str) -> BitMap64:
    """A vector out of its file: length, bytes, checksum."""
    start = descriptor.offset or 0
    data = content[start + 4 : start + 4 + descriptor.sizeInBytes]
    tail = content[start + 4 + descriptor.sizeInBytes : start + 8 + descriptor.sizeInBytes]
    if len(tail) != 4 or struct.unpack_from(">i", content, start)[0] != descriptor.sizeInBytes:
        raise Corrupt(f"deletion vector is cut off. expected={descriptor.sizeInBytes} bytes at {start}", place=place)
    if struct.unpack(">I", tail)[0] != zlib.crc32(data):
        raise Corrupt("deletion vector has a wrong checksum", place=place)
    return _counted(decode(data, place), descriptor, place)


def file_of(vectors: Iterable[BitMap64], name: uuid.UUID) -> tuple[bytes, list[Descriptor]]:
    """One file that holds all the vectors, and where each is in it."""
    content = bytearray([_FILE_VERSION])
    descriptors = []
    for rows in vectors:
        data = encode(rows)
        descriptors.append(Descriptor("u", encode85(name.bytes), len(data), len(rows), len(content)))
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return bytes(content), descriptors


def encode85(data: bytes) -> str:
    """Four bytes as five letters."""
    letters: list[str] = []
    for (word,) in struct.iter_unpack(">I", data):
        rest, block = word, []
        for _ in range(5):
            rest, digit = divmod(rest, 85)
            block.append(_ALPHABET[digit])
        letters.extend(reversed(block))
    return "".join(letters)


def decode85(text: str) -> bytes:
    """Five letters as four bytes. A last block that begins with `#` has as many bytes less, as Rust's writers end."""
    words = []
    try:
        for start in range(0, len(text), 5):
            block = text[start : start + 5]
            is_last = start + 5 == len(text)
            # Four bytes never make a block that begins with the last letter of the alphabet.
            missing = len(block) - len(block.lstrip("#")) if is_last and block.startswith("#") else 0
            word = 0
            for letter in block[missing:]:
                word = word * 85 + _DIGITS[letter]
            if len(block) < 5 or missing > 3:
                raise ValueError(block)
            words.append(word.to_bytes(4 - missing, "big"))
    except (KeyError, ValueError, OverflowError):
        raise Corrupt("not Base85", place=text[:40]) from None
    return b"".join(words)


def _counted(rows: BitMap64, descriptor: Descriptor, place: str) -> BitMap64:
    if len(rows) != descriptor.cardinality:
        raise Corrupt(f"deletion vector. expected={descriptor.cardinality} rows got={len(rows)}", place=place)
    return rows
