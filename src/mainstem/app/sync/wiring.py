"""The sync door, wired: its own limits at the same gate, the feeds on the log, the history tables behind them."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from mainstem.admission import Gate, Intake, Limits
from mainstem.app.config import Config
from mainstem.app.sync.declared import DeclaredTypes
from mainstem.app.sync.declaring import Declaring
from mainstem.app.sync.history import LakeHistory
from mainstem.app.sync.schemas import LakeSchemas, delta_columns_of
from mainstem.catalog import Catalog
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
from mainstem.log import Log
from mainstem.log.tap import Tap
from mainstem.model import LogPosition, TableName
from mainstem.model.position import Lineage
from mainstem.query.ports import LoadedTable
from mainstem.runtime.clock import Clock
from mainstem.tables.settings import TableSettings
from mainstem.wire.sync.checks import PUSH_BYTES_MAX


class Sync:
    """What the gateway mounts, asks and closes."""

    def __init__(self, door: SyncDoor, feeds: Feeds, declared: DeclaredTypes, declaring: Declaring) -> None:
        self.door = door
        self.feeds = feeds
        self.declared = declared
        self.declaring = declaring


def make_sync(
    *,
    data: Path,
    log: Log,
    tap: Tap,
    gate: Gate,
    backlog_bytes: Callable[[], int],
    flusher: Flusher,
    clock: Clock,
    history: LakeHistory,
    catalog: Catalog,
    config: Config,
    settings_of: Callable[[TableName], TableSettings],
    held: Callable[[], Mapping[TableName, LogPosition]],
    delta: Callable[[TableName], LoadedTable | None],
    lineage: Callable[[], Lineage],
    watermark: Callable[[], LogPosition],
) -> Sync:
    """Build everything behind `/sync`. `await sync.feeds.start()` before it is served."""
    folder = data / "sync"
    declared = DeclaredTypes(catalog, config, settings_of, held, delta)
    cursors = Cursors(lineage)
    feeds = Feeds(log, tap, SeenDeltas(folder / "seen.db", cursors), history, declared=declared)
    declaring = Declaring(feeds, declared, held)
    delta_columns = cache(partial(delta_columns_of, catalog, config, data, clock))
    lake_schemas = LakeSchemas(catalog, config, declaring, delta_columns)
    schemas = Schemas(folder / "schemas.json")
    # The same gate, but for the size of a batch.
    own = Gate(
        gate.dedup, push_limits(config.log.buffer_bytes_max), backlog_bytes, rates=gate.rates, pressure=gate.pressure
    )
    checkpoints = Checkpoints(folder / "checkpoints", history, watermark, cursors)
    pushes = Pushes(Intake(own, tap), feeds, schemas, clock)
    shadows = Shadows(folder / "ruled.json", feeds, any_may_be_ruled=log.is_derived)
    service = SyncService(pushes, feeds, shadows, schemas, checkpoints, clock, lake_schemas.declare, cursors)
    return Sync(
        SyncDoor(service, flusher, gate.rates, connections_max=config.server.connections_max),
        feeds,
        declared,
        declaring,
    )


def push_limits(backlog_bytes_max: int) -> Limits:
    """A push may be larger than a batch of the CDC door: the protocol says how large."""
    return Limits(payload_bytes_max=PUSH_BYTES_MAX + 1024, backlog_bytes_max=backlog_bytes_max)
