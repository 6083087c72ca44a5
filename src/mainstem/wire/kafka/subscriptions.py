"""What a consumer says of itself when it joins a group of the classic protocol: its `ConsumerProtocolSubscription`."""

import struct

# The type of the groups whose members say it in this form.
CONSUMER = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str]:
    """The topics that it names, in every version: they come first. None where the bytes are something else."""
    found: set[str] = set()
    try:
        _, count = _HEAD.unpack_from(metadata)
        at = _HEAD.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size + length
            if length < 0 or at > len(metadata):
                return frozenset()
            found.add(metadata[at - length : at].decode())
    except (struct.error, UnicodeDecodeError):
        return frozenset()
    return frozenset(found)
