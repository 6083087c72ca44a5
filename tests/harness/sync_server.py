"""The real server below its sockets: log, admission and feeds on a disk, on the world's clock. It can be killed.

A crash is an image: the folder as it stands at some operation of the log's disk, copied, and opened by a new server.
What the old one does afterwards happens in a folder that nobody looks at any more.
"""

import asyncio
import random
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from mainstem.admission import Dedup, Gate, Intake
from mainstem.client.sync import ClockDrift, CursorExpired, Refused
from mainstem.client.sync.replica import RowKey, delta_row
from mainstem.client.sync.transports.memory_gateway import deltas_of
from mainstem.feeds.entries import StoredChange
from mainstem.feeds.feeds import Feeds, FeedSettings
from mainstem.feeds.pushes import Pushes
from mainstem.feeds.schemas import Schemas
from mainstem.feeds.seen import Identified, SeenDeltas
from mainstem.log import Log
from mainstem.log.disk import Buffer, OsDisk
from mainstem.log.tap import Tap
from mainstem.model.errors import Invalid, MainstemError
from mainstem.model.merge import EMPTY, Row, join
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import ManualClock
from mainstem.wire import sync as wire
from mainstem.wire.sync import RowDelta, SyncPull, SyncPush, SyncResponse, decode_response, join_response
from tests.harness.sync_world import ServerCrashed
from tests.unit.log.log_fixtures import InlineSealer, quiet

GATEWAY = "world"
# So little is kept in memory that most pulls read the log's files or its segments.
FEED_SETTINGS = FeedSettings(hot_bytes_max=3_000, store_interval_s=1e9)
PAGE = 1_000
PIECE_DELTAS = 3
OPERATIONS_MAX = 12


class MortalDisk(OsDisk):
    """A disk that can be photographed at a chosen operation. Its syncs take no time, since only processes die here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[int, Path] = {}
        self._left: int | None = None
        self._torn = 0.0
        self._lock = threading.Lock()
        self._image: Path | None = None

    def die_in(self, operations: int, torn: float) -> None:
        """Make an image before the n-th operation from now; of a write, that share is in it all the same."""
        self._left, self._torn = operations, torn

    def photograph(self) -> Path:
        """The image that was made, or one of the folder as it stands between two operations."""
        with self._lock:
            return self._image or self._copy()

    @property
    def image(self) -> Path | None:
        """Where the disk stood when the server died; None while it lives."""
        with self._lock:
            return self._image

    def create(self, path: Path) -> int:
        with self._lock:
            self._count()
            fd = super().create(path)
            self._paths[fd] = path
            return fd

    def write(self, fd: int, buffers: Sequence[Buffer]) -> None:
        with self._lock:
            if self._count():
                assert self._image is not None
                data = b"".join(buffers)
                with (self._image / self._paths[fd].relative_to(self._folder)).open("ab") as file:
                    file.write(data[: int(len(data) * self._torn)])
            super().write(fd, buffers)

    def sync(self, fd: int) -> None:
        with self._lock:
            self._count()

    def truncate(self, path: Path, size: int) -> None:
        with self._lock:
            self._count()
            super().truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._count()
            super().rename(source, target)

    def remove(self, path: Path) -> None:
        with self._lock:
            self._count()
            super().remove(path)

    def sync_dir(self, path: Path) -> None:
        with self._lock:
            self._count()

    def _count(self) -> bool:
        """One more operation; whether it is the one that is not to happen in the image."""
        if self._left is None:
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._copy()
        return True

    def _copy(self) -> Path:
        self._left = None
        self._image = self._folder.with_name(f"{self._folder.name}+")
        shutil.copytree(self._folder, self._image)
        return self._image


class NoHistory:
    """There are no tables behind this server, and its log drops nothing."""

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        raise AssertionError(f"a pull from {after} went to the tables of {namespace}")

    async def identified(self, through: LogPosition) -> AsyncIterator[list[Identified]]:
        assert through == 0, f"the index was looked for in the tables up to {through}"
        yield []

    async def has_others(self, namespace: str) -> bool:
        return False

    async def lost_since(self, namespace: str, position: LogPosition) -> bool:
        return False

    async def others(self, namespace: str) -> AsyncIterator[list[StoredChange]]:
        yield []


class RealServer:
    """`await RealServer.start(…)` makes one. Between operations it may seal, store its index or die, by chance."""

    def __init__(self, folder: Path, clock: ManualClock, chance: random.Random) -> None:
        self._folder = folder
        self._clock = clock
        self._chance = chance
        self._calm = False
        self.crashes = 0

    @classmethod
    async def start(cls, folder: Path, clock: ManualClock, chance: random.Random) -> Self:
        server = cls(folder, clock, chance)
        await server._open()
        return server

    @property
    def newest(self) -> int:
        return self._feeds.newest

    def calm(self) -> None:
        """No more faults."""
        self._calm = True

    async def push(self, push: SyncPush) -> SyncResponse:
        return await self._mortal(self._push, push)

    async def pull(self, pull: SyncPull) -> SyncResponse:
        return await self._mortal(self._pull, pull)

    async def checkpoint(self, client: str = "") -> Sequence[SyncResponse] | None:
        """Of some moment in the past, as one that is made from a table is."""
        cursor = self._chance.randint(0, self.newest)
        history = await self.history()
        if cursor == 0:
            return None
        rows = merged(history[:cursor])
        deltas = [delta for key, row in rows.items() for delta in deltas_of(key, row)]
        parts = [deltas[start : start + PIECE_DELTAS] for start in range(0, len(deltas), PIECE_DELTAS)]
        pieces = [SyncResponse(deltas=part, server_hlc=cursor, has_more=True) for part in parts]
        return [*pieces, SyncResponse(server_hlc=cursor)]

    async def crash(self) -> None:
        await self._reopen(self._disk.photograph())

    async def history(self) -> list[RowDelta]:
        found: list[RowDelta] = []
        cursor = 0
        while True:
            page = await self._pull(SyncPull(since_hlc=cursor, max_deltas=PAGE))
            found += page.deltas
            if not page.has_more:
                return found
            cursor = page.server_hlc

    async def close(self) -> None:
        await self._pushes.settled()
        await self._feeds.close()
        await self._log.close()

    # What it is made of.

    async def _open(self) -> None:
        self._disk = MortalDisk(self._folder)
        dedup = self._dedup = Dedup(self._clock)
        settings = quiet(self._folder / "log", companion_interval_s=1e9, companion_lag_bytes=1)
        self._log = await Log.open(settings, companion=dedup, clock=self._clock, disk=self._disk, sealer=InlineSealer())
        tap = Tap(self._log)
        sync_folder = self._folder / "sync"
        self._feeds = self._make_feeds(tap, SeenDeltas(sync_folder / "seen.db"))
        schemas = Schemas(sync_folder / "schemas.json")
        self._intake = Intake(Gate(dedup), tap)
        self._pushes = Pushes(self._intake, self._feeds, schemas, self._clock)
        await self._feeds.start()
        await self._rest()

    def _make_feeds(self, tap: Tap, seen: SeenDeltas) -> Feeds:
        return Feeds(self._log, tap, seen, NoHistory(), FEED_SETTINGS)

    async def _push(self, push: SyncPush) -> SyncResponse:
        return SyncResponse(server_hlc=await self._pushes.push(GATEWAY, push))

    async def _pull(self, pull: SyncPull) -> SyncResponse:
        page = await self._feeds.pull(GATEWAY, pull.since_hlc, pull.max_deltas or PAGE)
        encoded = [entry.encoded for entry in page.entries]
        return decode_response(join_response(encoded, page.cursor, page.has_more, pull.since_hlc))

    async def _mortal(self, serve: Callable[[Any], Awaitable[SyncResponse]], message: Any) -> SyncResponse:
        if not self._calm:
            await self._live()
        try:
            # Through its bytes, so that nothing is shared.
            return decode_response(wire.encode_response(await serve(_copied(message))))
        except Invalid as error:
            raise _as_client_hears(error) from error
        finally:
            image = self._disk.image
            if image is not None:
                await self._reopen(image)
                # Whatever the old server would have answered, nobody hears it.
                raise ServerCrashed

    async def _live(self) -> None:
        if self._chance.random() < 0.05:
            self._disk.die_in(self._chance.randint(1, OPERATIONS_MAX), self._chance.random())
        if self._chance.random() < 0.1:
            await self._log.flush()
            await self._rest()
        if self._chance.random() < 0.1:
            await self._feeds.seen.store()

    async def _rest(self) -> None:
        """Wait for what the log does by itself, so that a seed replays."""
        log = self._log
        while log._shelf.unsealed or log._keeper.due_in_s() is not None or log._keeper._storing.locked():
            await asyncio.sleep(0.0005)

    async def _reopen(self, image: Path) -> None:
        self.crashes += 1
        before = (self._pushes, self._feeds, self._log, self._folder)
        self._folder = image
        await self._open()
        pushes, feeds, log, folder = before
        await pushes.settled()
        await feeds.close()
        await log.close()
        shutil.rmtree(folder)


def merged(history: Sequence[RowDelta]) -> dict[RowKey, Row]:
    """What the tables make of it."""
    rows: dict[RowKey, Row] = {}
    for delta in history:
        key = (delta.table, delta.row_id)
        rows[key] = join(rows.get(key, EMPTY), delta_row(delta))
    return rows


def _copied(message: SyncPush | SyncPull) -> SyncPush | SyncPull:
    return wire.decode_request(wire.encode_request(message))


def _as_client_hears(error: Invalid) -> MainstemError:
    """What the door and a transport make of it between them."""
    if isinstance(error, wire.ClockDrift):
        return ClockDrift(str(error), server_hlc=error.server_hlc)
    if error.reason == "cursor_expired":
        return CursorExpired(str(error))
    return Refused(str(error), reason=error.reason, delta_id=getattr(error, "delta_id", None))
