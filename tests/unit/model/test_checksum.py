"""Checksums are stored in the log: they stay the CRC-32 that they always were."""

import zlib

import pytest

from mainstem.model.checksum import crc32


@pytest.mark.parametrize("size", [0, 1, 5_119, 5_120, 5_121, 200_000])
def test_the_pieces_make_the_whole(size: int) -> None:
    payload = bytes(index * 31 % 251 for index in range(size))
    assert crc32(payload) == crc32(memoryview(payload)) == zlib.crc32(payload)
    assert crc32(payload, crc32(b"head")) == zlib.crc32(b"head" + payload)
