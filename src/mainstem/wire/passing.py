"""What a gateway that stands by says before the bytes of a connection that it passes on. A codec only: no I/O.

    MSP1 | 16 bytes: the secret that the leader told in its log | 2 bytes: length | MessagePack of `Passed`

After that every byte is the client's, or for it. The leader answers nothing of its own: who is not let in is closed.
"""

import hmac
import struct

import msgspec

from mainstem.model.errors import Denied, Invalid

_MAGIC = b"MSP1"
_HEAD = struct.Struct(">4s16sH")
HEAD_BYTES = _HEAD.size
BODY_BYTES_MAX = 1024
# Under this name the transport of a connection that was passed on knows what its client was told to connect to.
TOLD = "mainstem.told"

Address = tuple[str, int]


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Whose connection it is."""

    # Which of the leader's doors it is for.
    door: str
    # Where the client comes from.
    client: Address
    # Where it came to.
    came_to: Address
    # What clients of that gateway are told to connect to, which may be another name for it.
    told: Address


def encode(secret: bytes, passed: Passed) -> bytes:
    """The bytes before the client's."""
    body = msgspec.msgpack.encode(passed)
    if len(body) > BODY_BYTES_MAX:
        raise Invalid(f"connection to pass on. expected=at most {BODY_BYTES_MAX} bytes got={len(body)}")
    return _HEAD.pack(_MAGIC, secret, len(body)) + body


def check_head(head: bytes, secret: bytes) -> int:
    """How many bytes the rest has. Raises Denied where the secret is not the leader's."""
    magic, told, size = _HEAD.unpack(head)
    if magic != _MAGIC or size > BODY_BYTES_MAX:
        raise Invalid("not a connection that a gateway passes on")
    if not hmac.compare_digest(told, secret):
        raise Denied("the gateway that passes on takes another one for the leader")
    return int(size)


def decode_body(body: bytes) -> Passed:
    """Whose connection it is. Raises Invalid."""
    try:
        return msgspec.msgpack.decode(body, type=Passed)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a connection that a gateway passes on. got={error}") from error
