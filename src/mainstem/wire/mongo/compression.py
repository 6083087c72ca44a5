"""The compressors of OP_COMPRESSED. What a message claims to unpack to is all the room it gets."""

import zlib
from enum import IntEnum

import cramjam


class Compressor(IntEnum):
    """The protocol's numbers."""

    NOOP = 0
    SNAPPY = 1
    ZLIB = 2
    ZSTD = 3


# By the names that drivers offer in `hello`.
NAMES = {"snappy": Compressor.SNAPPY, "zlib": Compressor.ZLIB, "zstd": Compressor.ZSTD}


def decompress(compressor: Compressor, data: bytes, size: int) -> bytes:
    """The bytes, of which there must be `size`. Raises ValueError."""
    if compressor is Compressor.NOOP:
        unpacked = data
    elif compressor is Compressor.ZLIB:
        stream = zlib.decompressobj()
        try:
            unpacked = stream.decompress(data, size + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    else:
        unpacked = _unpacked(compressor, data, size)
    if len(unpacked) != size:
        raise ValueError(f"expected={size} bytes got={len(unpacked)}")
    return unpacked


def _unpacked(compressor: Compressor, data: bytes, size: int) -> bytes:
    # A buffer of the claimed size: whatever unpacks to more is refused by the library.
    room = bytearray(max(size, 1))
    try:
        if compressor is Compressor.SNAPPY:
            count = cramjam.snappy.decompress_raw_into(data, room)
        else:
            count = cramjam.zstd.decompress_into(data, room)
    except Exception as error:
        raise ValueError(str(error)[:200]) from error
    return bytes(room[:count])


def compress(compressor: Compressor, data: bytes) -> bytes:
    """The bytes, packed."""
    match compressor:
        case Compressor.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Compressor.ZLIB:
            return zlib.compress(data, 6)
        case Compressor.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3))
        case Compressor.NOOP:
            return data
