"""The ingest door, wired: the same gate, with the sizes of a request instead of a frame's."""

from collections.abc import Callable
from typing import NamedTuple

from litestar import Router

from mainstem.admission import Gate, Intake, Limits
from mainstem.app.config import Config
from mainstem.doors.ingest.debezium import Debezium, debezium_router
from mainstem.doors.ingest.door import Ingest, ingest_router
from mainstem.doors.ingest.taking import Taking
from mainstem.feeds.tap import Tap

# The head of a payload: names of a table and of its key columns.
_HEAD_BYTES_MAX = 64 * 1024
# CSV is written as Arrow, which takes more room for small fields.
_GROWTH = 2
# A frame of the log holds no more.
_FRAME_BYTES_MAX = 63 * 1024 * 1024


class IngestDoor(NamedTuple):
    """What the gateway mounts and asks."""

    taking: Taking
    routers: tuple[Router, ...]


def make_ingest(config: Config, gate: Gate, tap: Tap, backlog_bytes: Callable[[], int]) -> IngestDoor:
    """Build everything behind `/v1/ingest` and `/v1/debezium`."""
    limits = Limits(
        payload_bytes_max=min(config.ingest.body_bytes_max * _GROWTH + _HEAD_BYTES_MAX, _FRAME_BYTES_MAX),
        event_bytes_max=config.limits.event_bytes_max,
        events_max=config.ingest.rows_max,
        backlog_bytes_max=config.log.buffer_bytes_max,
    )
    own = Gate(gate.dedup, limits, backlog_bytes, rates=gate.rates, pressure=gate.pressure)
    taking = Taking(Intake(own, tap), config.ingest.body_bytes_max)
    ingest = Ingest(taking, lambda name: config.table(name).key)
    debezium = Debezium(taking, lambda name: config.table(name).key)
    return IngestDoor(taking, (ingest_router(ingest), debezium_router(debezium)))
