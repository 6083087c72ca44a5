"""A world in which another door writes to the same tables as the clients, and much of what it writes is dirty.

Nulls, names that stand twice, values that do not fit a declared type, operations that are none, between rows that are
fine. What each event must become is known when it is made, so the table is put together here without the feeds: from
the log's own segments and frames.
"""

import asyncio
import itertools
import json
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.client.sync.replica import RowKey
from mainstem.feeds.checkpoints import Checkpoint, pieces_of
from mainstem.feeds.cold import ColdFeed, History
from mainstem.feeds.declared import Begin, Begun, Declared
from mainstem.feeds.entries import Entry
from mainstem.feeds.feeds import Feeds
from mainstem.feeds.fitting import Columns
from mainstem.feeds.seen import SeenDeltas
from mainstem.log import Log
from mainstem.log.seal.expand import Expander
from mainstem.log.tap import Tap
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.hlc import Hlc
from mainstem.model.merge import EMPTY, Cell, Row, Stamp, join
from mainstem.model.names import TableName
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.pipeline.upkeep.checkpoints import split_rows
from mainstem.runtime.clock import ManualClock
from mainstem.tables.evolution import TABLE_COLUMNS_MAX, Names
from mainstem.tables.settings import Format, TableSettings
from mainstem.tables.types import LONG
from mainstem.wire.sync import RowDelta, SyncPull, SyncResponse, decode_response
from tests.harness.sync_server import FEED_SETTINGS, GATEWAY, NoHistory, RealServer, merged
from tests.harness.sync_world import TABLES, World

SOURCE = SourceId("cdc")
DECLARED: dict[str, Columns] = {table: {"size": LONG} for table in TABLES}
# The tables are in Delta, and have all the columns that they can have.
DELTA = TableSettings(format=Format.DELTA)
COLUMNS = ("title", "size", "done", "rank", *(f"c{number}" for number in range(TABLE_COLUMNS_MAX - 4)))
# One feed has room: whoever asks for another one evicts it.
SETTINGS = replace(FEED_SETTINGS, gateways_max=1)
DIRTY_BATCHES = 0.3
FOLLOWED = 3
WAIT_S_MAX = 60.0
# More than the clients write to: what nobody writes again would be missed.
ROWS = 60
# Stands in every value of a dead letter.
_MARK = b"/dead/"
# What an event says beside its key, and @ stands for a value that nobody else writes.
FINE = (
    '"operation":"INSERT","after":{"title":@,"size":7}',
    '"operation":"insert","after":{"title":"other","title":@}',
    '"operation":"Update","after":{"done":{"a":1,"b":[{"x":1,"x":2}],"a":2},"title":@}',
    '"operation":"update","after":{"size":"12","title":@,"done":null}',
    '"operation":"snapshot","after":{"title":null,"rank":1.50,"done":[]}',
    '"operation":"read","after":{"size":null,"rank":123456789012345678901234567890}',
    '"operation":"update","after":{}',
    '"operation":"DELETE"',
    '"operation":"delete","after":null,"before":{"title":@}',
)
DEAD = (
    '"operation":"insert","after":null',
    '"operation":"insert"',
    '"operation":"update","after":[@]',
    '"operation":"update","after":@',
    '"operation":"insert","after":{"title":@,"":1}',
    '"operation":"insert","after":{"title":@,"a\\u0085b":1}',
    '"operation":"insert","after":{"title":@,"size":"seven"}',
    '"operation":"update","after":{"title":@,"size":7.5}',
    '"operation":"update","after":{"title":@,"size":99999999999999999999}',
    '"operation":"insert","after":{"title":@,"rank":1e999}',
    '"operation":"insert","after":{"title":@,"one too many":1}',
    '"operation":"update","after":{"Title":@}',
    '"operation":"\u0131nsert","after":{"title":@}',
    '"operation":"upsert","after":{"title":@}',
)


class Written(NamedTuple):
    """A change as the log has it."""

    position: int
    hlc: int
    table: str
    op: str
    key: str
    columns: str | bytes | None
    source: str
    sequence: int | None


class Declaring:
    """The declared types of the world's tables. Now and then they have to be looked up again."""

    def __init__(self) -> None:
        self._known: Mapping[str, Columns] | None = None

    def known(self, namespace: str, /) -> Mapping[str, Columns] | None:
        return self._known

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        self._known = DECLARED
        return DECLARED

    def forget(self) -> None:
        self._known = None

    def begin_of(self, namespace: str, /) -> Begin:
        return lambda _: Begun(Names(COLUMNS, DELTA), NOWHERE)


class GatedCold(ColdFeed):
    """Reads from the disk when it is told that it may."""

    def __init__(self, log: Log, history: History, declared: Declared) -> None:
        super().__init__(log, history, declared)
        self.may_read = threading.Event()
        self.may_read.set()

    def _read(self, *args: Any) -> list[Entry]:
        assert self.may_read.wait(WAIT_S_MAX)
        return super()._read(*args)


class DirtyServer(RealServer):
    """The real server, with dirty batches of another door between the clients' pushes, and feeds that are evicted."""

    def __init__(self, folder: Path, clock: ManualClock, chance: random.Random) -> None:
        super().__init__(folder, clock, chance)
        self._numbers = itertools.count(1)
        # The events that must become dead letters, by their numbers.
        self._dead: set[int] = set()
        self._declaring = Declaring()
        # A reader that is always there, page after page: clients are away most of the time.
        self._read_up_to = 0
        self._read: list[RowDelta] = []

    @property
    def dead_count(self) -> int:
        """How much of the dirt is in the log."""
        return len(self._written()) - len(self.table_changes())

    def _make_feeds(self, tap: Tap, seen: SeenDeltas) -> Feeds:
        feeds = Feeds(self._log, tap, seen, NoHistory(), SETTINGS, self._declaring)
        self._cold = feeds._cold = GatedCold(self._log, NoHistory(), self._declaring)
        return feeds

    async def _pull(self, pull: SyncPull) -> SyncResponse:
        """Now and then the feed is evicted, and something arrives, while the pull reads."""
        if self._calm or self._chance.random() < 0.7:
            response = await super()._pull(pull)
        else:
            self._cold.may_read.clear()
            response, _ = await asyncio.gather(super()._pull(pull), self._meanwhile())
        for delta in response.deltas:
            assert not any(_MARK in each.value for each in delta.columns), f"a dead letter reached someone: {delta}"
        return response

    async def _meanwhile(self) -> None:
        # Takes the only place for a feed.
        self._feeds.pull_hot("elsewhere", LogPosition(0), 1)
        try:
            await self._write_dirty()
        finally:
            self._cold.may_read.set()

    async def _live(self) -> None:
        if self._chance.random() < 0.05:
            self._declaring.forget()
        if self._chance.random() < DIRTY_BATCHES:
            await self._write_dirty()
        await super()._live()
        for _ in range(FOLLOWED):
            await self._follow()

    async def _follow(self) -> bool:
        limit = self._chance.choice([1, 2, 5, 20])
        page = await self._pull(SyncPull(since_hlc=self._read_up_to, max_deltas=limit))
        if self._disk.image is None:
            # Otherwise the server is dead already, and nobody hears what it says.
            self._read += page.deltas
            self._read_up_to = page.server_hlc
        return page.has_more

    async def followed(self) -> dict[RowKey, Row]:
        """What the reader makes of all that it was sent, to the end."""
        while await self._follow():
            pass
        return merged(self._read)

    async def _write_dirty(self) -> None:
        events = [self._event() for _ in range(self._chance.choice([1, 1, 3, 20]))]
        payload = f"[{','.join(events)}]".encode()
        batch = Batch(
            source=SOURCE,
            sequence=self._dedup.highest(SOURCE) + 1,
            count=len(events),
            encoding=Encoding.CDC_JSON,
            payload=payload,
            fingerprint=crc32(payload),
            tables=frozenset([TableName(GATEWAY, table) for table in TABLES]),
        )
        ticket = self._intake.take(batch)
        assert ticket.outcome is not None
        await ticket.outcome

    def _event(self) -> str:
        number = next(self._numbers)
        is_dead = self._chance.random() < 0.4
        shape = self._chance.choice(DEAD if is_dead else FINE)
        if is_dead:
            self._dead.add(number)
        table, row = self._chance.choice(TABLES), self._chance.randrange(ROWS)
        token = json.dumps(f"{SOURCE}/{'dead' if is_dead else 'fine'}/{number}")
        # The event's own fields come last: an `after` may be the last of them.
        return f'{{"sequence":{number},"table":"{GATEWAY}.{table}","rowId":"row-{row}",{shape.replace("@", token)}}}'

    async def checkpoint(self, client: str = "") -> Sequence[SyncResponse] | None:
        """Of some moment in the past: the rows split as the pipeline does it, and sent as the gateway does."""
        cursor = LogPosition(self._chance.randint(0, self.newest))
        if cursor == 0:
            return None
        folder = self._folder / "checkpoint"
        folder.mkdir(exist_ok=True)
        rows = _split([change for change in self.table_changes() if change.position <= cursor])
        records = [_record(key, row) for key, row in rows.items()]
        pq.write_table(pa.Table.from_pylist(records, _ROWS), folder / "part-0.parquet")
        return [decode_response(piece) for piece in pieces_of(Checkpoint(folder, cursor, len(rows)))]

    def table_changes(self) -> list[Written]:
        """What the tables take of everything that is in the log."""
        # Every event that was sent has a number. One that could not even be read has lost it, and is a dead letter.
        return [
            change
            for change in self._written()
            if change.source != SOURCE or (change.sequence is not None and change.sequence not in self._dead)
        ]

    def table(self) -> dict[RowKey, Row]:
        """The rows that the tables have."""
        rows = [
            (change, {} if change.op == "delete" else json.loads(change.columns or "{}"))
            for change in self.table_changes()
        ]
        return _merged(rows)

    def _written(self) -> list[Written]:
        found: list[Written] = []
        for segment in self._log.segments():
            rows = pq.read_table(pa.OSFile(str(segment.path))).to_pylist()
            found += [Written(*(row[name] for name in Written._fields)) for row in rows if row["namespace"] == GATEWAY]
        for frame in self._log.tail(self._log.sealed):
            for rows in Expander().expand(frame.header, frame.payload, "the world"):
                if rows.table.namespace == GATEWAY:
                    numbers = rows.sequences or [None] * len(rows.keys)
                    parts = (rows.positions, rows.hlcs, rows.ops, rows.keys, rows.columns, numbers)
                    for position, hlc, op, key, columns, number in zip(*parts, strict=True):
                        source = frame.header.source
                        found.append(Written(position, hlc, rows.table.table, op, key, columns, source, number))
        return sorted(found, key=lambda change: change.position)


_STAMP = [("hlc", pa.int64()), ("source", pa.string())]
_CELL = pa.struct([("column", pa.string()), ("value", pa.string()), *_STAMP])
_ROWS = pa.schema(
    [("table", pa.string()), ("row_id", pa.string()), ("tombstone", pa.struct(_STAMP)), ("cells", pa.list_(_CELL))]
)
_HISTORY = pa.schema([("_key", pa.string()), ("_columns", pa.string()), ("_hlc", pa.int64()), ("_source", pa.string())])


def _split(changes: Sequence[Written]) -> dict[RowKey, Row]:
    """The rows of a checkpoint, their values as JSON text."""
    found: list[tuple[Written, dict[str, Any]]] = []
    for change in changes:
        text = change.columns.decode() if isinstance(change.columns, bytes) else change.columns
        row = {"_key": change.key, "_columns": text, "_hlc": change.hlc, "_source": change.source}
        cells: dict[str, Any] = {}
        if change.op != "delete":
            for batch in split_rows([pa.RecordBatch.from_pylist([row], _HISTORY)]):
                cells |= {cell["column"]: cell["value"] for cell in batch.to_pylist()}
        found.append((change, cells))
    return _merged(found)


def _merged(changes: Iterable[tuple[Written, Mapping[str, Any]]]) -> dict[RowKey, Row]:
    rows: dict[RowKey, Row] = {}
    for change, values in changes:
        stamp = Stamp(Hlc(change.hlc), change.source)
        row = Row(tombstone=stamp)
        if change.op != "delete":
            row = Row(cells={name: Cell(stamp, value) for name, value in values.items()})
        key = (change.table, change.key)
        rows[key] = join(rows.get(key, EMPTY), row)
    return rows


def _record(key: RowKey, row: Row) -> dict[str, Any]:
    cells = [
        {"column": name, "value": cell.value, "hlc": cell.stamp.hlc, "source": cell.stamp.source}
        for name, cell in row.cells.items()
    ]
    gone = None if row.tombstone is None else {"hlc": row.tombstone.hlc, "source": row.tombstone.source}
    return {"table": key[0], "row_id": key[1], "tombstone": gone, "cells": cells}


async def judge_tables(world: World, server: DirtyServer) -> None:
    """Each replica is exactly the table, deleted rows too; a row without a column is none."""
    expected = {key: row for key, row in server.table().items() if row != EMPTY}
    replicas = {client.id: client.rows() for client in world.clients} | {"the reader": await server.followed()}
    for name, rows in replicas.items():
        found = {key: row for key, row in rows.items() if row != EMPTY}
        assert found == expected, f"{name} differs: {_difference(found, expected)}"


def _difference(found: Mapping[RowKey, Row], expected: Mapping[RowKey, Row]) -> list[Any]:
    keys = [key for key in sorted(found.keys() | expected.keys()) if found.get(key) != expected.get(key)]
    return [(key, found.get(key), expected.get(key)) for key in keys[:3]]
