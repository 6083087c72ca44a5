"""The Mongo door over a real log, without a pipeline: commands in, replies out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from mainstem.admission import ANYONE, Gate, Intake, Limits, Principal
from mainstem.admission.dedup import Dedup
from mainstem.admission.users import Users
from mainstem.doors.mongo.connection import Connection
from mainstem.doors.mongo.server import MongoDoor, MongoSettings
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.state import State
from mainstem.feeds.documents.tables import TableRow, Told
from mainstem.log import Log
from mainstem.log.tap import Arrival, Tap
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import Change, SourceId
from mainstem.model.checksum import crc32
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.runtime.clock import SystemClock
from mainstem.wire.mongo.frames import Request, decode_document
from tests.unit.log.log_fixtures import InlineSealer, quiet


class Lake:
    """State tables with the rows that a test gives them."""

    def __init__(self) -> None:
        self.tables: dict[TableName, list[TableRow]] = {}
        self.through = NOWHERE
        self.answered: dict[str, int] = {}

    async def names(self) -> list[TableName]:
        return list(self.tables)

    async def covered(self, table: TableName) -> LogPosition:
        return self.through

    async def rows(self, table: TableName) -> AsyncIterator[list[TableRow]]:
        yield self.tables.get(table, [])

    async def columns(self, table: TableName) -> None:
        return None

    async def select(self, sql: str, *, latest: bool, rows_max: int, timeout_s: float) -> None:
        raise AssertionError("a table without columns answers nothing")

    async def is_large(self, table: TableName) -> bool:
        return False

    async def run(self, table: TableName, stages: str, *, rows_max: int, timeout_s: float) -> Told | None:
        return None


class World:
    """One server. `run` sends a command and returns its reply."""

    def __init__(self, log: Log, tap: Tap, documents: Documents, door: MongoDoor, intake: Intake) -> None:
        self.log = log
        self.tap = tap
        self.documents = documents
        self.door = door
        self.intake = intake
        self.heard: list[Arrival] = []
        self._sequence = 0

    async def run(self, body: dict[str, Any], *, principal: Principal | None = ANYONE) -> dict[str, Any]:
        connection = Connection(self.door, 1)
        connection.principal = principal
        # The command's name comes first.
        reply, _ = await self.door.answer(connection, Request(1, {**body, "$db": body.get("$db", "db")}))
        return decode_document(reply) if isinstance(reply, bytes) else reply

    async def documents_of(self, name: str, filter: dict[str, Any] | None = None, **more: Any) -> list[Any]:
        reply = await self.run({"find": name, "filter": filter or {}, **more})
        return list(reply["cursor"]["firstBatch"])

    async def cdc(self, *events: dict[str, Any], source: str = "shop-db") -> None:
        """A batch of the CDC door."""
        names = frozenset([self.intake.gate._parse(each["table"]) for each in events])
        await self._send(Encoding.CDC_JSON, msgspec.json.encode(list(events)), len(events), names, source)

    async def changes(self, *changes: Change, source: str = "browser") -> None:
        """Changes with clocks of their own, as a sync client's have."""
        names = frozenset([TableName(change.namespace, change.table) for change in changes])
        await self._send(Encoding.CHANGES, msgspec.msgpack.encode(list(changes)), len(changes), names, source)

    async def _send(
        self, encoding: Encoding, payload: bytes, count: int, tables: frozenset[TableName], source: str
    ) -> None:
        self._sequence += 1
        ticket = self.intake.take(
            Batch(
                source=SourceId(source),
                sequence=self._sequence,
                count=count,
                encoding=encoding,
                payload=payload,
                fingerprint=crc32(payload),
                tables=tables,
            )
        )
        assert ticket.outcome is not None
        await ticket.outcome


@asynccontextmanager
async def opened(folder: Path, lake: Lake | None = None) -> AsyncIterator[World]:
    """A server on a folder; opening the folder again is a restart."""
    clock = SystemClock()
    dedup = Dedup(clock)
    log = await Log.open(quiet(folder / "log"), companion=dedup, clock=clock, sealer=InlineSealer())
    tap = Tap(log)
    intake = Intake(Gate(dedup, Limits(payload_bytes_max=56_000_000, events_max=200_000)), tap)
    documents = Documents(log, intake, State(folder / "mongo" / "documents.db"), lake or Lake(), clock)
    door = MongoDoor(documents, Users(), clock, MongoSettings())
    world = World(log, tap, documents, door, intake)

    def on_arrival(arrival: Arrival) -> None:
        documents.on_arrival(arrival)
        world.heard.append(arrival)

    tap.on_arrival, tap.on_lost = on_arrival, documents.on_lost
    await documents.start()
    try:
        yield world
    finally:
        await door.close()
        await documents.close()
        await log.close()
