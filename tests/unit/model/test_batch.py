"""A batch's fingerprint is stored in the log: it stays the CRC-32 that it always was."""

import zlib

import pytest

from mainstem.model.batch import fingerprint_of


@pytest.mark.parametrize("size", [0, 1, 5_119, 5_120, 5_121, 200_000])
def test_the_pieces_make_the_whole(size: int) -> None:
    payload = bytes(index * 31 % 251 for index in range(size))
    assert fingerprint_of(payload) == zlib.crc32(payload)
