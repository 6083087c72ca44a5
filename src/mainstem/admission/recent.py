"""The fingerprints of a source's newest batches: what tells a retry from another batch under the same sequence."""

import sys
from array import array

_SEQUENCE, _FINGERPRINT = "q", "I"


class RecentBatches:
    """Sequence and fingerprint of the newest batches, in order of arrival, in 12 bytes each.

    Adding is what happens for every batch; finding happens only for a sequence that is known to be seen, so a scan
    over the array is cheap enough and no index is kept.
    """

    __slots__ = ("_fingerprints", "_sequences")

    def __init__(self) -> None:
        self._sequences = array(_SEQUENCE)
        self._fingerprints = array(_FINGERPRINT)

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, sequence: int, fingerprint: int, kept_max: int) -> None:
        """Remember a batch; the oldest beyond `kept_max` are forgotten."""
        self._sequences.append(sequence)
        self._fingerprints.append(fingerprint)
        # Cut in steps: moving the whole array for each batch would cost more than the batch.
        excess = len(self._sequences) - kept_max
        if excess > kept_max // 4:
            del self._sequences[:excess], self._fingerprints[:excess]

    def find(self, sequence: int) -> int | None:
        """The fingerprint of the batch with this sequence, if it is still remembered."""
        try:
            return self._fingerprints[self._sequences.index(sequence)]
        except ValueError:
            return None

    def dump(self) -> tuple[bytes, bytes]:
        """Sequences and fingerprints, little-endian."""
        return _little(self._sequences), _little(self._fingerprints)

    @classmethod
    def load(cls, sequences: bytes, fingerprints: bytes) -> "RecentBatches":
        """The inverse of `dump`. Raises ValueError where the two do not fit."""
        recent = cls()
        recent._sequences.frombytes(sequences)
        recent._fingerprints.frombytes(fingerprints)
        if len(recent._sequences) != len(recent._fingerprints):
            raise ValueError(f"fingerprints. expected={len(recent._sequences)} got={len(recent._fingerprints)}")
        if sys.byteorder == "big":
            recent._sequences.byteswap()
            recent._fingerprints.byteswap()
        return recent


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
