"""What is remembered of batches that have a key of their own instead of a place in a sequence: an idempotency key of a
request, the position of a database's change.

The key's hash stands where a sequence would. Sources of this kind share one memory, in order of arrival; the oldest are
forgotten when it is full, but none that is younger than `keys_idle_ms`: a retry of it may be under way.
"""

import sys
from array import array

# The sources whose sequences are hashes of keys. A sequence below zero is no key: that batch is not remembered.
KEYED_SOURCES = ("http/", "debezium/")


def is_keyed(source: str) -> bool:
    """Whether this source's batches are known by a key."""
    return source.startswith(KEYED_SOURCES)


class KeyedBatches:
    """The newest keys, with the fingerprint of what came under each."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # The hash of source and key, to the time in seconds << 32 | fingerprint; the oldest first.
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, sequence: int) -> int | None:
        """The fingerprint of what came under this key; None where it is not known."""
        known = self._known.get(sequence)
        return None if known is None else known & 0xFFFF_FFFF

    def oldest_ms(self) -> int:
        """When the oldest that is known came."""
        return (next(iter(self._known.values())) >> 32) * 1000

    def add(self, sequence: int, fingerprint: int, arrival_ms: int, kept_max: int) -> None:
        """Remember a batch that is durable; the oldest beyond `kept_max` are forgotten."""
        if sequence < 0:
            return
        self._known.pop(sequence, None)
        self._known[sequence] = max(0, arrival_ms // 1000) << 32 | (fingerprint & 0xFFFF_FFFF)
        while len(self._known) > kept_max:
            del self._known[next(iter(self._known))]

    def dump(self) -> tuple[bytes, bytes]:
        """Keys and what is known of each, little-endian."""
        return _little(array("q", self._known)), _little(array("Q", self._known.values()))

    @classmethod
    def load(cls, sequences: bytes, values: bytes) -> "KeyedBatches":
        """The inverse of `dump`. Raises ValueError where the two do not fit."""
        keys, known = array("q"), array("Q")
        keys.frombytes(sequences)
        known.frombytes(values)
        if len(keys) != len(known):
            raise ValueError(f"keyed batches. expected={len(keys)} got={len(known)}")
        if sys.byteorder == "big":
            keys.byteswap()
            known.byteswap()
        loaded = cls()
        loaded._known = dict(zip(keys, known, strict=True))
        return loaded


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
