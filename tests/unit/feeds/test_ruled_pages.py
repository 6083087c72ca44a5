"""A client that pulls page by page while others write and rules change ends with exactly what it may see.

A page is judged by what the server knows when it sends it, which may be far ahead of where the page ends. So what a
client has is not what was in view at its cursor: rows may have come and gone, and come back, between two of its pages.
"""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from mainstem.feeds.entries import Entry, entry_of
from mainstem.feeds.rules import RULES_COLUMN, RULES_ROW
from mainstem.feeds.shadow import Shadow, row_of_delta
from mainstem.feeds.views import page_for
from mainstem.model.merge import EMPTY, Row, join
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import LogPosition
from mainstem.wire.sync import ColumnDelta, Op, RowDelta, decode_response, join_response

CLAIMS = {"sub": "ada"}
MINE = {"name": "mine", "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
PUBLIC = {"name": "public", "filters": [{"column": "public", "op": "eq", "value": True}]}


class Server:
    """The changes of a gateway and its shadow, and what a client is sent of them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.shadow = Shadow(frozenset({"owner", "public"}))
        # What was in view at some moment, by position.
        self.rows: dict[str, Row] = {}
        self._seen: list[frozenset[str]] = [frozenset()]

    def write(self, row_id: str, hlc: int = 0, **columns: Any) -> None:
        listed = tuple(ColumnDelta(name, msgspec.json.encode(value)) for name, value in columns.items())
        op = Op.UPDATE if columns else Op.DELETE
        delta = RowDelta(
            op=op, table="notes", row_id=row_id, columns=listed, hlc=hlc or len(self.entries) + 1, client_id="w"
        )
        self.rows[row_id] = join(self.rows.get(row_id, EMPTY), row_of_delta(delta))
        self._add(delta)

    def rule(self, *buckets: Mapping[str, Any]) -> None:
        document = ColumnDelta(RULES_COLUMN, msgspec.json.encode({"buckets": buckets}))
        self._add(RowDelta(op=Op.UPDATE, table=RULES_TABLE, row_id=RULES_ROW, columns=(document,), client_id="admin"))

    def _add(self, delta: RowDelta) -> None:
        entry = entry_of(len(self.entries) + 1, delta)
        self.entries.append(entry)
        self.shadow.advance([entry], entry.position)
        self._seen.append(frozenset(self.visible()))

    def visible(self) -> dict[str, dict[str, Any]]:
        view = self.shadow.view_at(self.shadow.position, CLAIMS)
        rows = {
            key: {name: msgspec.json.decode(value) for name, value in row.values().items()}
            for key, row in self.rows.items()
            if row.visible
        }
        return {key: values for key, values in rows.items() if view.sees("notes", values)}

    def ever_seen(self, since: int) -> frozenset[str]:
        return frozenset[str]().union(*self._seen[since:])


class Client:
    """A replica, and the cursor it stands at."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rows: dict[str, Row] = {}
        self.cursor = 0

    def pull(self, limit: int) -> list[RowDelta]:
        server, since = self.server, self.cursor
        entries = server.entries[since : since + limit]
        cursor = LogPosition(since + len(entries))
        encoded = page_for(server.shadow, entries, LogPosition(since), cursor, client="ada", claims=CLAIMS, evicts=True)
        deltas = decode_response(join_response(encoded, cursor, False, since)).deltas
        known = server.ever_seen(since)
        for delta in deltas:
            assert delta.row_id in known, "told of a row that was never in view"
            assert not delta.columns or delta.row_id in server.visible(), "sent a hidden row"
            if delta.op == Op.EVICT:
                self.rows.pop(delta.row_id, None)
            else:
                self.rows[delta.row_id] = join(self.rows.get(delta.row_id, EMPTY), row_of_delta(delta))
        self.cursor = cursor
        return list(deltas)

    def follow(self, limit: int = 3) -> None:
        while self.cursor < len(self.server.entries):
            self.pull(limit)

    def visible(self) -> dict[str, dict[str, Any]]:
        return {
            key: {name: msgspec.json.decode(value) for name, value in row.values().items()}
            for key, row in self.rows.items()
            if row.visible
        }


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_row_that_comes_and_goes_between_two_pages_is_evicted(server: Server) -> None:
    """The page that ends at 2 has the row as it was at 3. At 2 it was hidden, and at 4 it is again."""
    server.rule(MINE)
    server.write("n1", owner="bob", text="x")
    server.write("n1", owner="ada")
    client = Client(server)
    client.pull(2)
    assert client.visible() == {"n1": {"owner": "ada", "text": "x"}}
    server.write("n1", owner="bob")
    client.follow()
    assert client.visible() == {}


def test_rules_that_come_and_go_between_two_pages_take_their_rows_with_them(server: Server) -> None:
    server.rule(PUBLIC)
    server.write("n1", owner="ada", public=False)
    client = Client(server)
    client.follow()
    server.write("n2", owner="bob", public=True)
    server.rule(MINE)
    client.pull(1)
    server.rule(PUBLIC)
    client.follow()
    assert client.visible() == server.visible() == {"n2": {"owner": "bob", "public": True}}


def test_rules_that_hide_rows_for_a_while_do_not_keep_them_from_a_client(server: Server) -> None:
    """In view before and after. A client that was made to forget it in between is sent it whole."""
    server.rule(MINE)
    server.write("n1", owner="ada", text="x")
    client = Client(server)
    client.follow()
    server.write("n2", owner="bob")
    server.rule(PUBLIC)
    client.pull(1)
    server.rule(MINE)
    server.write("n1", text="y")
    client.follow()
    assert client.visible() == server.visible() == {"n1": {"owner": "ada", "text": "y"}}


def test_a_change_of_rules_is_sent_once(server: Server) -> None:
    """And not with every page of a client that is far behind it."""
    for number in range(20):
        server.write(f"n{number}", owner="bob", public=number % 2 == 0)
    client = Client(server)
    client.follow()
    for _ in range(10):
        server.write("n0", text="again")
    server.rule(PUBLIC)
    told = []
    while client.cursor < len(server.entries):
        told += client.pull(1)
    evicted = [delta.row_id for delta in told if delta.op == Op.EVICT]
    assert sorted(evicted) == sorted(f"n{number}" for number in range(1, 20, 2))
    assert client.visible() == server.visible()


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_between_its_pages_a_client_ends_with_its_view(seed: int) -> None:
    chance = random.Random(seed)
    server = Server()
    client = Client(server)
    for step in range(60):
        die = chance.random()
        row_id = f"n{chance.randrange(3)}"
        # Late writes too: with clocks from before what is there already.
        hlc = chance.randint(1, step + 1) * 100 + step
        if die < 0.12:
            server.rule(*chance.sample([MINE, PUBLIC], chance.randint(0, 2)))
        elif die < 0.4:
            server.write(row_id, hlc, owner=chance.choice(["ada", "bob"]))
        elif die < 0.55:
            server.write(row_id, hlc, public=chance.random() < 0.5)
        elif die < 0.65:
            server.write(row_id, hlc, text=f"step {step}")
        elif die < 0.72:
            server.write(row_id, hlc)
        else:
            client.pull(chance.randint(1, 3))
    client.follow()
    assert client.visible() == server.visible()
