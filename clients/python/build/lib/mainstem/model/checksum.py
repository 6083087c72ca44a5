"""The CRC-32 of zlib and gzip, at the speed of the memory, and without giving way in the middle of a batch."""

from isal import isal_zlib

# From more than this on the library lets go of the interpreter. On a busy machine getting it back takes longer than the
# sum.
_PIECE_BYTES = 5 * 1024


def crc32(data: bytes | memoryview, crc: int = 0) -> int:
    """The checksum of `data`, or of what `crc` is the checksum of and then `data`."""
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        crc = isal_zlib.crc32(view[start : start + _PIECE_BYTES], crc)
    return crc
