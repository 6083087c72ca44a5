"""What came over a CDC connection as a message with, where that is cheap, its events."""

from typing import NamedTuple

from mainstem.admission import Limits, Meter
from mainstem.wire import cdc
from mainstem.wire import cdc_packing as packing
from mainstem.wire.cdc_packing import Packing


class Incoming(NamedTuple):
    """A message as it came: `payload` is the JSON text of a batch's events, where that is known already."""

    message: cdc.ClientMessage
    size_bytes: int
    packing: Packing
    payload: bytes | None = None
    events: cdc.Events | None = None


def read_message(data: bytes, limits: Limits, meter: Meter | None) -> Incoming:
    """Decode a message, and in one go the events of a batch that is small and likely to be taken."""
    if packing.packing_of(data) is Packing.MSGPACK:
        return Incoming(packing.decode_client(data), len(data), Packing.MSGPACK)
    # Up to this size it cannot break a limit on bytes. One that the rates will refuse anyway is not worth the reading.
    is_small = len(data) <= min(limits.payload_bytes_max, limits.event_bytes_max)
    affordable = meter is None or meter.delay_ms is None
    if affordable and is_small and (whole := cdc.decode_whole_batch(data)) is not None:
        return Incoming(whole[0], len(data), Packing.JSON, whole[1], whole[2])
    return Incoming(cdc.decode_client(data), len(data), Packing.JSON)


def read_events(message: cdc.CdcBatch, incoming: Incoming, limits: Limits) -> tuple[bytes, cdc.Events]:
    """The JSON text of a batch's events, and what they are. Their sizes are checked before anything is made of them."""
    if incoming.payload is not None and incoming.events is not None:
        return incoming.payload, incoming.events
    raw = bytes(message.events)
    limits.check_payload(len(raw))
    is_json = incoming.packing is Packing.JSON
    if len(raw) > limits.event_bytes_max:
        limits.check_event(max((cdc if is_json else packing).event_sizes(raw), default=0))
    return (raw, cdc.decode_events(raw)) if is_json else packing.decode_events(raw)


def peek(data: bytes) -> cdc.Peek:
    """What can be told of a message that cannot be decoded: its sequence and its correlation id."""
    return packing.peek(data) if packing.packing_of(data) is Packing.MSGPACK else cdc.peek(data)
