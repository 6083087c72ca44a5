"""A world whose gateway has rules that change under way, and what must hold in it.

Whoever looks at the server's answers here knows the whole history and the rules of that moment, by the document of the
rules alone: it shares nothing with the server but the filters and the merge rule.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.client.sync.replica import RowKey, delta_row
from mainstem.feeds.checkpoints import Checkpoints, HistoryTable
from mainstem.feeds.feeds import PULL_MAX
from mainstem.feeds.rules import EVERYTHING, RULES_COLUMN, Rules, View, read_rules
from mainstem.feeds.schemas import Schemas
from mainstem.feeds.service import SyncService, Viewer
from mainstem.feeds.shadows import Shadows
from mainstem.model.merge import EMPTY, Row, join
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import LogPosition
from mainstem.wire.checkpoints import DOCUMENT, VERSION, CheckpointMade
from mainstem.wire.sync import RowDelta, SyncPull, SyncResponse, decode_response, join_response
from tests.harness.sync_server import GATEWAY, PAGE, RealServer, merged
from tests.harness.sync_world import World

# Values are texts that begin with their writer's name, so these cut the rows in different ways for everyone.
BUCKETS: list[dict[str, Any]] = [
    {"name": "todos", "tables": ["todos"]},
    {"name": "after me", "filters": [{"column": "title", "op": "gte", "value": "jwt:sub"}]},
    {"name": "before me", "tables": ["notes"], "filters": [{"column": "done", "op": "lt", "value": "jwt:sub"}]},
    {
        "name": "some",
        "filters": [
            {"column": "title", "op": "gte", "value": "client-1"},
            {"column": "title", "op": "lt", "value": "client-4"},
        ],
    },
    {"name": "my team", "filters": [{"column": "title", "op": "in", "value": "jwt:team"}]},
]
_STAMP = [("hlc", pa.int64()), ("source", pa.string())]
_CELL = pa.struct([("column", pa.string()), ("value", pa.string()), *_STAMP])
_ROWS = pa.schema(
    [("table", pa.string()), ("row_id", pa.string()), ("tombstone", pa.struct(_STAMP)), ("cells", pa.list_(_CELL))]
)


def claims_of(client: str) -> dict[str, Any]:
    """The token of a client: nobody's is like another's."""
    return {"sub": client, "team": [f"{client}/{number}" for number in range(0, 100, 3)]}


class NoTables:
    """Checkpoints are made by the world itself."""

    async def histories(self, namespace: str) -> Mapping[str, HistoryTable]:
        return {}


class RuledServer(RealServer):
    """The real server with its rules. Now and then they change; every answer is looked at before it leaves."""

    # How often the rules changed, and how many deltas with values were let through.
    changes = 0
    shown = 0

    async def _open(self) -> None:
        await super()._open()
        # What was not durable is another's place now.
        self._known = Known()
        folder = self._folder / "sync"
        self._service = SyncService(
            self._pushes,
            self._feeds,
            Shadows(folder / "ruled.json", self._feeds),
            Schemas(folder / "schemas.json"),
            Checkpoints(folder / "checkpoints", NoTables(), lambda: self._feeds.newest),
            self._clock,
        )

    async def _live(self) -> None:
        if self._chance.random() < 0.05:
            buckets = self._chance.sample(BUCKETS, self._chance.randint(0, 3))
            nothing = self._chance.random() < 0.1
            await self._service.set_rules(GATEWAY, None if nothing else {"buckets": buckets})
            self.changes += 1
        await super()._live()

    async def _pull(self, pull: SyncPull) -> SyncResponse:
        reply = await self._service.pull(GATEWAY, _viewer(pull.client_id), pull.since_hlc, pull.max_deltas or PAGE)
        data = join_response(reply.encoded, reply.cursor, reply.has_more, pull.since_hlc)
        response = decode_response(data)
        await self._look(response, pull.client_id, pull.since_hlc)
        return response

    async def checkpoint(self, client: str = "") -> Sequence[SyncResponse] | None:
        """Of some moment in the past, from files as the pipeline makes them, through the server's own code."""
        cursor = LogPosition(self._chance.randint(0, self.newest))
        if cursor == 0:
            return None
        before = (await self._everything()).deltas[:cursor]
        rows = merged([delta for delta in before if delta.table != RULES_TABLE])
        self._write_checkpoint(cursor, rows)
        # Found anew each time: here an older one may follow a newer one.
        self._service.checkpoints._newest.clear()
        found = await self._service.checkpoint(GATEWAY, _viewer(client))
        assert found is not None and found[0].position == cursor
        pieces = [decode_response(piece) for piece in found[1]]
        for piece in pieces:
            await self._look(piece, client, 0)
        return pieces

    def _write_checkpoint(self, position: LogPosition, rows: dict[RowKey, Row]) -> None:
        place = self._folder / "sync" / "checkpoints" / GATEWAY
        for old in place.glob(f"*/{DOCUMENT}"):
            old.unlink()
        folder: Path = place / f"{position:020d}"
        folder.mkdir(parents=True, exist_ok=True)
        records = [_record(key, row) for key, row in rows.items()]
        pq.write_table(pa.Table.from_pylist(records, schema=_ROWS), folder / "part-0.parquet")
        made = CheckpointMade(namespace=GATEWAY, position=position, rows=len(rows), version=VERSION)
        (folder / DOCUMENT).write_bytes(msgspec.json.encode(made))

    async def history(self) -> list[RowDelta]:
        return [delta for delta in (await self._everything()).deltas if delta.table != RULES_TABLE]

    async def view(self, client: str) -> View:
        """What the rules of this moment say."""
        return (await self._everything()).view_at(self.newest, client)

    async def _everything(self) -> "Known":
        """All that is in the log, the rules too."""
        known = self._known
        while True:
            page = await self._feeds.pull(GATEWAY, len(known.deltas), PULL_MAX)
            for entry in page.entries:
                known.add(decode_response(entry.encoded).deltas[0])
            if not page.has_more:
                return known

    async def _look(self, response: SyncResponse, client: str, since: int) -> None:
        """No hidden row is in a frame, and no row's id that the client had no business with."""
        known = await self._everything()
        if not known.rules:
            # There never were rules: the feed is passed on as it is.
            return
        now = self.newest
        view, before = known.view_at(now, client), known.view_at(since, client)
        wrote = {(each.table, each.row_id) for each in known.deltas[since:] if each.client_id == client}
        for delta in response.deltas:
            key = (delta.table, delta.row_id)
            assert delta.table != RULES_TABLE, "the rules are in a frame"
            visible = _sees(view, key, known.row_at(key, now))
            # An earlier page may have brought it as it was at any moment since the cursor.
            moments = range(since, now + 1)
            had = any(_sees(known.view_at(at, client), key, known.row_at(key, at)) for at in moments)
            assert visible or not delta.columns, f"{client} was sent a hidden row: {delta}"
            assert visible or had or key in wrote, f"{client} was told of a hidden row: {delta}"
            self.shown += bool(delta.columns)
            if delta.delta_id and delta.columns:
                # A write that was passed on as it came: the row was in view when it was written, too.
                row = known.row_at(key, known.places[delta.delta_id])
                assert _sees(view, key, row) or _sees(before, key, row), f"{client} was sent what was hidden: {delta}"


class Known:
    """Every delta at its position, and what rows and rules were at each."""

    def __init__(self) -> None:
        self.deltas: list[RowDelta] = []
        self.places: dict[str, int] = {}
        self.rules: list[tuple[int, Rules | None]] = []
        self._rows: dict[RowKey, list[tuple[int, Row]]] = {}

    def add(self, delta: RowDelta) -> None:
        self.deltas.append(delta)
        position = self.places[delta.delta_id] = len(self.deltas)
        if delta.table == RULES_TABLE:
            document = [each.value for each in delta.columns if each.column == RULES_COLUMN]
            self.rules.append((position, read_rules(msgspec.json.decode(document[0])) if document else None))
            return
        rows = self._rows.setdefault((delta.table, delta.row_id), [(0, EMPTY)])
        rows.append((position, join(rows[-1][1], delta_row(delta))))

    def row_at(self, key: RowKey, position: int) -> Row:
        return [row for at, row in self._rows.get(key, [(0, EMPTY)]) if at <= position][-1]

    def view_at(self, position: int, client: str) -> View:
        rules = [rules for at, rules in self.rules if at <= position]
        return EVERYTHING if not rules or rules[-1] is None else rules[-1].view(claims_of(client))


async def judge_views(world: World, server: RuledServer) -> None:
    """Each replica is exactly its view of the table, down to the stamps."""
    rows = merged(await server.history())
    for client in world.clients:
        view = await server.view(client.id)
        expected = {key: row.cells for key, row in rows.items() if _sees(view, key, row)}
        found = {key: row.cells for key, row in client.rows().items() if row.visible}
        assert found == expected, f"{client.id} differs"
    missing = world.acknowledged - {delta.delta_id for delta in await server.history()}
    assert not missing, f"acknowledged and missing: {missing}"


def _viewer(client: str) -> Viewer:
    return Viewer(client, claims_of(client), True)


def _sees(view: View, key: RowKey, row: Row) -> bool:
    return row.visible and view.sees(key[0], row.values())


def _record(key: RowKey, row: Row) -> dict[str, Any]:
    gone = row.tombstone
    cells = [
        {
            "column": name,
            "value": msgspec.json.encode(cell.value).decode(),
            "hlc": cell.stamp.hlc,
            "source": cell.stamp.source,
        }
        for name, cell in row.cells.items()
    ]
    tombstone = None if gone is None else {"hlc": gone.hlc, "source": gone.source}
    return {"table": key[0], "row_id": key[1], "tombstone": tombstone, "cells": cells}
