"""The sync door, wired: its own limits at the same gate, the feeds on the log, the history tables behind them."""

from collections.abc import Callable
from pathlib import Path

from mainstem.admission import Gate, Intake, Limits
from mainstem.app.sync.declared import DeclaredTypes
from mainstem.app.sync.history import LakeHistory
from mainstem.app.sync.schemas import LakeSchemas
from mainstem.doors.sync.door import SyncDoor
from mainstem.doors.sync.http import Flusher
from mainstem.feeds.checkpoints import Checkpoints
from mainstem.feeds.cursors import Cursors
from mainstem.feeds.feeds import Feeds
from mainstem.feeds.pushes import Pushes
from mainstem.feeds.schemas import Schemas
from mainstem.feeds.seen import SeenDeltas
from mainstem.feeds.service import SyncService
from mainstem.feeds.shadows import Shadows
from mainstem.feeds.tap import Tap
from mainstem.log import Log
from mainstem.model import LogPosition
from mainstem.model.position import Lineage
from mainstem.runtime.clock import Clock
from mainstem.wire.sync.checks import PUSH_BYTES_MAX


class Sync:
    """What the gateway mounts, asks and closes."""

    def __init__(self, door: SyncDoor, feeds: Feeds, declared: DeclaredTypes) -> None:
        self.door = door
        self.feeds = feeds
        self.declared = declared


def make_sync(
    *,
    data: Path,
    log: Log,
    tap: Tap,
    gate: Gate,
    limits: Limits,
    backlog_bytes: Callable[[], int],
    flusher: Flusher,
    clock: Clock,
    connections_max: int,
    history: LakeHistory,
    declared: DeclaredTypes,
    lake_schemas: LakeSchemas,
    lineage: Callable[[], Lineage],
    watermark: Callable[[], LogPosition],
) -> Sync:
    """Build everything behind `/sync`. `await sync.feeds.start()` before it is served."""
    folder = data / "sync"
    cursors = Cursors(lineage)
    feeds = Feeds(log, tap, SeenDeltas(folder / "seen.db", cursors), history, declared=declared)
    schemas = Schemas(folder / "schemas.json")
    # The same gate, but for the size of a batch.
    own = Gate(gate.dedup, limits, backlog_bytes, rates=gate.rates, pressure=gate.pressure)
    checkpoints = Checkpoints(folder / "checkpoints", history, watermark, cursors)
    pushes = Pushes(Intake(own, tap), feeds, schemas, clock)
    shadows = Shadows(folder / "ruled.json", feeds)
    service = SyncService(pushes, feeds, shadows, schemas, checkpoints, clock, lake_schemas.declare, cursors)
    return Sync(SyncDoor(service, flusher, gate.rates, connections_max=connections_max), feeds, declared)


def push_limits(backlog_bytes_max: int) -> Limits:
    """A push may be larger than a batch of the CDC door: the protocol says how large."""
    return Limits(payload_bytes_max=PUSH_BYTES_MAX + 1024, backlog_bytes_max=backlog_bytes_max)
