"""Variable-length integers, as Protobuf, Kafka and Avro write them: seven bits a byte, the lowest first."""

_SHORT = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """A number that is not negative."""
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """A signed number of 64 bits, so that small ones are short whatever their sign is."""
    return varint((number << 1) ^ (number >> 63))
