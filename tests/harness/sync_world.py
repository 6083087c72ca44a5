"""A whole world from one seed: clients with drifting clocks, a network that drops, doubles, delays and reorders, and
crashes of clients and server at any operation of their stores.

The real coordinator and local database run, on time that the world moves. Nothing here waits for a real clock, so a
seed replays.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from mainstem.client.sync import LocalDB, SyncCoordinator, Table, Unreachable
from mainstem.client.sync.replica import RowKey
from mainstem.client.sync.status import Phase
from mainstem.client.sync.store import Store, Transaction
from mainstem.client.sync.transports.transport import LiveListener
from mainstem.model.errors import MainstemError
from mainstem.model.merge import Row
from mainstem.runtime.clock import ManualClock
from mainstem.wire.sync import RowDelta, SyncPull, SyncPush, SyncResponse

TABLES = ("todos", "notes")
COLUMNS = ("title", "done", "rank")
# The rows of `notes` are not declared: they are synced all the same.
DECLARED = [Table("todos", {"title": "text", "done": "json"})]
TURNS = 12
ROUNDS_MAX = 20_000
BROADCAST_DELTAS_MAX = 100

T = TypeVar("T")


class Server(Protocol):
    """What the world needs of a server. Its refusals are those of a transport."""

    @property
    def newest(self) -> int:
        """The newest cursor."""

    async def push(self, push: SyncPush) -> SyncResponse: ...

    async def pull(self, pull: SyncPull) -> SyncResponse: ...

    async def checkpoint(self, client: str) -> Sequence[SyncResponse] | None: ...

    async def crash(self) -> None:
        """Drop everything that is not on the disk, and start again from that."""

    def calm(self) -> None:
        """No more faults."""

    async def history(self) -> list[RowDelta]:
        """Every delta that counted, in order."""


class Crash(Exception):
    """The client's process ends here."""


class ServerCrashed(Exception):
    """The server died while it served this, and is up again."""


class MortalStore(Store):
    """A store that dies with its client: at the chosen transaction, before it, instead of its commit, or after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dead = False
        self._left: float = float("inf")
        self._where = "before"

    def die_in(self, operations: int, where: str) -> None:
        self._left, self._where = operations, where

    @contextmanager
    def transaction(self, *, strict: bool) -> Iterator[Transaction]:
        # Only the process dies here, never the machine: the disk need not be waited for.
        last = self._count()
        if last and self._where == "before":
            self._die()
        with super().transaction(strict=False) as transaction:
            yield transaction
            if last and self._where == "instead":
                self._die()
        if last:
            self._die()

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        if self._count():
            self._die()
        with super().reading() as transaction:
            yield transaction

    def _count(self) -> bool:
        # While the store opens there is nothing to count yet.
        if not hasattr(self, "_left"):
            return False
        if self.dead:
            raise Crash("a dead store was used")
        self._left -= 1
        return self._left <= 0

    def _die(self) -> None:
        self.dead = True
        raise Crash(f"crashed {self._where} an operation")


class WorldTiming:
    """Time that the world moves, for one client."""

    def __init__(self, world: "World", clock: ManualClock) -> None:
        self.clock = clock
        self.rng = world.chance
        self._world = world

    async def sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)

    async def offload(self, work: Callable[[], T]) -> T:
        return work()


class Client:
    """One replica, over all of its lives."""

    def __init__(self, name: str, world: "World", folder: Path) -> None:
        self.id = name
        self.db: LocalDB
        self.store: MortalStore
        self.sync: SyncCoordinator
        self.clock = ManualClock(world.clock.now_ms())
        skew_ms = world.chance.choice([0, 0, -3_600_000, -2_000, 2_000, 30_000, 3_600_000])
        # Whether its clock was ever so far ahead that the server may have refused it.
        self.ran_ahead = False
        self.drift(skew_ms)
        self._world = world
        self._path = folder / f"{world.seed}-{name}.db"

    def drift(self, skew_ms: int) -> None:
        self.clock.set_wall(self.clock.now_ms() + skew_ms)
        self.skew_ms = getattr(self, "skew_ms", 0) + skew_ms
        self.ran_ahead = self.ran_ahead or self.skew_ms > 5_000

    def start(self) -> None:
        self.store = MortalStore(self._path)
        self.store.connection.execute("PRAGMA synchronous = OFF")
        self.db = LocalDB.open(self.store, tables=DECLARED, client_id=self.id, clock=self.clock)
        self.sync = SyncCoordinator(
            self.db,
            Wire(self._world, self),
            push_max=5,
            pull_max=4,
            timing=WorldTiming(self._world, self.clock),
        )
        self.sync.start_auto_sync()

    async def stop(self) -> None:
        """The process is gone, with all that it had under way."""
        self.store.dead = True
        self._world.forget(self)
        await self.sync.stop()
        self.db.close()

    async def restart(self) -> None:
        await self.stop()
        self.start()

    def rows(self) -> dict[RowKey, Row]:
        """Everything that this replica knows, deleted rows too."""
        with Store.reading(self.store) as reading:
            return {(table, row_id): record.row for table in TABLES for row_id, record in reading.rows(table)}


class Parcel(msgspec.Struct, eq=False):
    """A request or a reply on its way."""

    client: Client
    deliver: Callable[[], Awaitable[None]]
    lose: Callable[[], None]


class Wire:
    """A client's transport: whatever it says becomes a parcel."""

    def __init__(self, world: "World", client: Client) -> None:
        self._world = world
        self._client = client

    async def push(self, push: SyncPush) -> SyncResponse:
        response = await self._world.exchange(self._client, lambda: self._world.server.push(push))
        self._world.acknowledged.update(delta.delta_id for delta in push.deltas)
        return response

    async def pull(self, pull: SyncPull) -> SyncResponse:
        async def serve() -> SyncResponse:
            response = await self._world.server.pull(pull)
            self._world.pulled(self._client, response)
            return response

        return await self._world.exchange(self._client, serve)

    async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
        pieces = await self._world.exchange(self._client, lambda: self._world.server.checkpoint(client_id))
        return None if pieces is None else self._world.brittle(pieces)

    def subscribe(self, listener: LiveListener) -> Callable[[], None] | None:
        self._world.listeners[self._client] = Live(listener)
        return lambda: None

    async def close(self) -> None:
        """There is nothing to let go of."""


class Live(msgspec.Struct):
    """A client that is told of changes, and how far it was told."""

    listener: LiveListener
    told: int | None = None


class World:
    """Make it, `run` it, compare."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = ManualClock(1_764_000_000_000)
        self.server: Server
        self.clients: list[Client] = []
        self.listeners: dict[Client, Live] = {}
        # What each successful write wrote; the server must have each of these.
        self.written: set[str] = set()
        # The deltas that some client was told to be durable.
        self.acknowledged: set[str] = set()
        self._folder = folder
        self._parcels: list[Parcel] = []
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._now_s = 0.0
        self._calm = False
        self._tokens = itertools.count()

    async def run(self, server: Server, steps: int) -> None:
        """Let things happen, then let everything come to rest."""
        self.server = server
        names = [f"client-{index}" for index in range(self.chance.randint(3, 10))]
        self.clients = [Client(name, self, self._folder) for name in names]
        for client in self.clients:
            client.start()
        for _ in range(steps):
            await self._step()
            await self._turn()
            for client in self.clients:
                if client.store.dead:
                    await client.restart()
        await self._settle()

    async def stop(self) -> None:
        for client in self.clients:
            await client.stop()

    # Time.

    async def sleep(self, seconds: float) -> None:
        sleeper = (self._now_s + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.remove(sleeper)

    def _pass(self, seconds: float) -> None:
        self._now_s += seconds
        self.clock.advance(seconds)
        for client in self.clients:
            client.clock.advance(seconds)
        for due_s, future in sorted(self._sleepers, key=lambda sleeper: sleeper[0]):
            if due_s <= self._now_s and not future.done():
                future.set_result(None)

    async def _turn(self) -> None:
        """Let every coroutine run until it waits for the world."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    # The network.

    async def exchange(self, client: Client, serve: Callable[[], Awaitable[T]]) -> T:
        """A request and its reply, each of them a parcel that the network may lose, keep or repeat."""
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def lose() -> None:
            if not reply.done():
                reply.set_exception(Unreachable("lost"))

        async def deliver() -> None:
            try:
                answer: T | MainstemError = await serve()
            except MainstemError as error:
                answer = error
            except ServerCrashed:
                self._drop_connections()
                return

            async def arrive() -> None:
                if reply.done():
                    return
                if isinstance(answer, MainstemError):
                    reply.set_exception(answer)
                else:
                    reply.set_result(answer)

            self._parcels.append(Parcel(client, arrive, lose))
            self._broadcast()

        self._parcels.append(Parcel(client, deliver, lose))
        return await reply

    def pulled(self, client: Client, response: SyncResponse) -> None:
        live = self.listeners.get(client)
        if live is not None and not response.has_more:
            live.told = response.server_hlc

    async def brittle(self, pieces: Sequence[SyncResponse]) -> AsyncIterator[SyncResponse]:
        for piece in pieces:
            if not self._calm and self.chance.random() < 0.2:
                raise Unreachable("the checkpoint broke off")
            yield piece

    def forget(self, client: Client) -> None:
        self.listeners.pop(client, None)
        for parcel in [parcel for parcel in self._parcels if parcel.client is client]:
            self._parcels.remove(parcel)
            parcel.lose()

    def _broadcast(self) -> None:
        for client, live in self.listeners.items():
            if live.told is not None and live.told < self.server.newest:
                self._parcels.append(Parcel(client, self._telling(client, live, live.told), lambda: None))
                live.told = self.server.newest

    def _telling(self, client: Client, live: Live, since: int) -> Callable[[], Awaitable[None]]:
        # Read when it is sent and not when it is delivered: a broadcast is as old as its place in the chain.
        up_to = self.server.newest

        async def tell() -> None:
            try:
                asked = SyncPull(client_id=client.id, since_hlc=since, max_deltas=BROADCAST_DELTAS_MAX)
                page = await self.server.pull(asked)
            except ServerCrashed:
                self._drop_connections()
            except MainstemError:
                # The server knows nothing of that cursor any more, and the client finds out when it pulls.
                return
            else:
                if page.server_hlc >= up_to or not page.has_more:
                    live.listener.broadcast(msgspec.structs.replace(page, has_more=False))

        return tell

    async def _network(self) -> None:
        if not self._parcels:
            return
        parcel = self.chance.choice(self._parcels)
        die = self.chance.random()
        if die < 0.1:
            # Given up on, but still under way: it may arrive much later.
            parcel.lose()
        elif die < 0.2:
            await parcel.deliver()
        else:
            self._parcels.remove(parcel)
            if die < 0.3:
                parcel.lose()
            else:
                await parcel.deliver()

    # What happens.

    async def _step(self) -> None:
        die = self.chance.random()
        client = self.chance.choice(self.clients)
        if die < 0.35:
            self._write(client)
        elif die < 0.75:
            await self._network()
        elif die < 0.9:
            self._pass(self.chance.choice([0.001, 0.1, 1.0, 5.0, 30.0]))
        elif die < 0.95:
            client.store.die_in(self.chance.randint(1, 12), self.chance.choice(["before", "instead", "after"]))
        elif die < 0.97:
            client.drift(self.chance.choice([-600_000, -1_000, 1_000, 4_000, 600_000]))
        else:
            await self._crash_server()

    def _write(self, client: Client) -> None:
        token = f"{client.id}/{next(self._tokens)}"
        table = self.chance.choice(TABLES)
        row_id = f"row-{self.chance.randrange(4)}"
        names = self.chance.sample(COLUMNS[: 2 if table == "todos" else 3], self.chance.choice([1, 1, 2]))
        values: dict[str, Any] = dict.fromkeys(names, token)
        die = self.chance.random()
        with suppress(Crash):
            if die < 0.2:
                client.sync.tracker.delete(table, row_id)
            elif die < 0.5:
                if client.sync.tracker.update(table, row_id, values):
                    self.written.add(token)
            else:
                client.sync.tracker.insert(table, row_id, values)
                self.written.add(token)

    async def _crash_server(self) -> None:
        await self.server.crash()
        self._drop_connections()

    def _drop_connections(self) -> None:
        for parcel in self._parcels:
            parcel.lose()
        self._parcels.clear()
        for live in self.listeners.values():
            live.told = None
            live.listener.lost()

    async def _settle(self) -> None:
        """No more faults: everything must come to rest, everywhere the same."""
        self._calm = True
        self.server.calm()
        await self._crash_server()
        for client in self.clients:
            await client.restart()
        for _ in range(ROUNDS_MAX):
            await self._turn()
            if self._parcels:
                await self._parcels.pop(0).deliver()
            elif all(self._rests(client) for client in self.clients):
                return
            else:
                self._pass(1.0)
        raise AssertionError("the world does not come to rest")

    def _rests(self, client: Client) -> bool:
        state = client.db.state()
        return not state.pending and state.cursor == self.server.newest and client.sync.status.phase is Phase.IDLE
