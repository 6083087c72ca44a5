"""What sync clients push lands in the namespace named after their gateway, merged per column, and stays pullable."""

import random
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import Analyst
from mainstem.client.duck import connect_duckdb
from mainstem.model import Change, Hlc, Operation, Row, SourceId, join, merge, row_of
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
GATEWAY = "synclake"


def random_deltas(seed: int, rows: int, count: int) -> list[sync.RowDelta]:
    """Writes of three clients to a few rows, with clocks in no order."""
    chance = random.Random(seed)
    start_ms = SystemClock().now_ms() - 3_600_000
    deltas: dict[str, sync.RowDelta] = {}
    for number in range(count):
        client = chance.choice(["ada", "bob", "cyd"])
        hlc = pack(start_ms + chance.randint(0, 60_000), number)
        row = f"r{chance.randrange(rows)}"
        op = chance.choice([sync.Op.INSERT, sync.Op.UPDATE, sync.Op.UPDATE, sync.Op.UPDATE, sync.Op.DELETE])
        values = {"title": f'"t{number}"', "done": chance.choice(["true", "false", "null"]), "rank": str(number)}
        names = [] if op is sync.Op.DELETE else chance.sample(sorted(values), chance.randint(1, 3))
        columns = tuple(sync.ColumnDelta(name, values[name].encode()) for name in names)
        name = sync.delta_id(table="todos", row_id=row, columns=columns, hlc=hlc, client_id=client)
        deltas[name] = sync.RowDelta(
            op=op, table="todos", row_id=row, columns=columns, hlc=hlc, client_id=client, delta_id=name
        )
    return list(deltas.values())


def change_of(delta: sync.RowDelta) -> Change:
    """A delta as the merge rule takes it."""
    return Change(
        table=delta.table,
        key=delta.row_id,
        operation=Operation(sync.Op(delta.op).name.lower()),
        columns={column.column: sync.parse_value(column.value) for column in delta.columns},
        hlc=Hlc(delta.hlc),
        source=SourceId(delta.client_id),
        batch_sequence=1,
    )


def merged(deltas: list[sync.RowDelta]) -> dict[str, dict[str, Any]]:
    """What the merge rule makes of them."""
    rows: dict[str, list[Change]] = {}
    for each in deltas:
        rows.setdefault(each.row_id, []).append(change_of(each))
    result = {}
    for key, changes in rows.items():
        row = merge(changes)
        if row.visible:
            result[key] = {name: row.values().get(name) for name in ("title", "done", "rank")}
    return result


def whole(deltas: Iterable[sync.RowDelta]) -> dict[str, Row]:
    """Rows with every stamp, deleted ones too."""
    rows: dict[str, Row] = {}
    for each in deltas:
        rows[each.row_id] = join(rows.get(each.row_id, Row()), row_of(change_of(each)))
    return rows


def checkpoint(client: httpx.Client, **headers: str) -> tuple[int, dict[str, Row]]:
    """What a first sync gets: the cursor to go on from, and the rows."""
    answer = client.get(f"/sync/{GATEWAY}/checkpoint", headers=headers)
    assert answer.status_code == 200, answer.text
    pieces = [sync.decode_response(piece) for piece in sync.split_pieces(answer.content)]
    assert [piece.has_more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert len({piece.server_hlc for piece in pieces}) == 1
    return pieces[-1].server_hlc, whole(delta for piece in pieces for delta in piece.deltas)


def push(client: httpx.Client, deltas: list[sync.RowDelta]) -> None:
    for who in ("ada", "bob", "cyd"):
        own = [each for each in deltas if each.client_id == who]
        body = sync.encode_push(sync.SyncPush(client_id=who, deltas=own))
        assert client.post(f"/sync/{GATEWAY}/push", content=body).status_code == 200


def table(url: str) -> dict[str, dict[str, Any]]:
    with connect_duckdb(url) as connection:
        found = connection.execute(f"SELECT _key, title, done, rank FROM lake.{GATEWAY}.todos").fetchall()
    return {key: {"title": title, "done": done, "rank": rank} for key, title, done, rank in found}


@pytest.mark.spark
def test_the_table_is_what_the_merge_rule_says(live_server: ServerProcess) -> None:
    deltas = random_deltas(7, rows=40, count=600)
    with httpx.Client(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        for start in range(0, len(deltas), 200):
            push(client, deltas[start : start + 200])
            assert client.post(f"/admin/flush/{GATEWAY}").status_code == 200
        assert table(live_server.url) == merged(deltas)
        # The same again, in other cuts: nothing changes, and a pull has each delta once.
        push(client, deltas[100:500])
        assert client.post(f"/admin/flush/{GATEWAY}").status_code == 200
        assert table(live_server.url) == merged(deltas)
        answer = client.get(f"/sync/{GATEWAY}/pull", params={"limit": 10_000})
        found = sync.decode_response(answer.content).deltas
        assert sorted(each.delta_id for each in found) == sorted(each.delta_id for each in deltas)
        assert {each.delta_id: each for each in found} == {each.delta_id: each for each in deltas}


@pytest.mark.spark
def test_checkpoints_are_the_merged_rows_with_their_stamps(live_server: ServerProcess) -> None:
    deltas = random_deltas(8, rows=500, count=3_000)
    with httpx.Client(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        known = list(sync.decode_response(client.get(f"/sync/{GATEWAY}/pull?limit=10000").content).deltas)
        for part in (deltas[:2_000], deltas[2_000:]):
            push(client, part)
            known += part
            made = client.post(f"/admin/checkpoint/{GATEWAY}")
            assert made.status_code == 200, made.text
            cursor, rows = checkpoint(client)
            assert rows == whole(known)
            # A cursor is the position, and above it which log's.
            assert made.json() == {"position": str(cursor & ((1 << 46) - 1)), "rows": len(rows)}
            answer = client.get(f"/sync/{GATEWAY}/pull", params={"since": cursor})
            assert list(sync.decode_response(answer.content).deltas) == []
        assert checkpoint(client, **{"accept-encoding": "gzip"}) == checkpoint(client, **{"accept-encoding": "zstd"})
        tag = client.get(f"/sync/{GATEWAY}/checkpoint").headers["etag"]
        assert client.get(f"/sync/{GATEWAY}/checkpoint", headers={"if-none-match": tag}).status_code == 304


@pytest.mark.spark
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_checkpoint_shows_each_viewer_its_own_rows_alone(live_server: ServerProcess, encoding: str) -> None:
    """Every text names its owner, so that another's row is seen in the bytes, whatever they are packed in."""
    gateway, people = f"owned_{encoding}", ("ada", "bob")
    headers = {**PROTOBUF, "accept-encoding": encoding}
    with httpx.Client(base_url=live_server.url, headers=headers, timeout=120) as client:

        def write(row: str, op: sync.Op = sync.Op.UPDATE, **columns: str) -> None:
            hlc = pack(SystemClock().now_ms(), 0)
            listed = tuple(sync.ColumnDelta(name, f'"{text}"'.encode()) for name, text in columns.items())
            name = sync.delta_id(table="notes", row_id=row, columns=listed, hlc=hlc, client_id="writer")
            delta = sync.RowDelta(
                op=op, table="notes", row_id=row, columns=listed, hlc=hlc, client_id="writer", delta_id=name
            )
            body = sync.encode_push(sync.SyncPush(client_id="writer", deltas=[delta]))
            assert client.post(f"/sync/{gateway}/push", content=body).status_code == 200

        def pieces(name: str, **more: str) -> bytes:
            answer = client.get(f"/sync/{gateway}/checkpoint", params={"clientId": name}, headers=more)
            assert answer.status_code == 200, answer.text
            return answer.content

        for number in range(40):
            owner = people[number % 2]
            write(f"row-of-{owner}-{number}", owner=owner, text=f"only-{owner}-{number}")
        write("row-of-ada-0", op=sync.Op.DELETE)
        mine = {"name": "mine", "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
        assert client.post(f"/admin/rules/{gateway}", json={"buckets": [mine]}).status_code == 200
        assert client.post(f"/admin/checkpoint/{gateway}").status_code == 200
        # Given away after the checkpoint was made: what is in the files is not his to see any more.
        write("row-of-bob-1", owner="ada")
        for name, other, count in (("ada", "bob", 19), ("bob", "ada", 19)):
            for body in (pieces(name), pieces(name, accept="application/json")):
                assert f"only-{name}-".encode() in body
                assert f"only-{other}-".encode() not in body
                assert f"row-of-{other}-".encode() not in body
            found = [delta for piece in sync.split_pieces(pieces(name)) for delta in sync.decode_response(piece).deltas]
            assert len({delta.row_id for delta in found}) == count
        # The rules themselves are no data.
        assert b"sync_rules" not in pieces("ada") + pieces("bob") + pieces("nobody")
        assert b"row-of" not in pieces("nobody")
        tags = {client.get(f"/sync/{gateway}/checkpoint", params={"clientId": name}).headers["etag"] for name in people}
        assert len(tags) == 2


@pytest.mark.spark
def test_the_history_answers_how_it_was_what_changed_and_who_did_it(live_server: ServerProcess) -> None:
    with httpx.Client(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        known = list(sync.decode_response(client.get(f"/sync/{GATEWAY}/pull?limit=10000").content).deltas)
        assert client.post(f"/admin/flush/{GATEWAY}").status_code == 200
    clocks = sorted(each.hlc for each in known)
    table_name = f"{GATEWAY}.todos"
    with Analyst(live_server.url) as analyst:
        for clock in (clocks[0], clocks[len(clocks) // 2], clocks[-1]):
            then = whole(each for each in known if each.hlc <= clock)
            rows = {past.key: past.row for past in analyst.as_of(table_name, clock)}
            assert rows == {key: row.values() for key, row in then.items() if row.visible}
        middle, late = clocks[len(clocks) // 3], clocks[2 * len(clocks) // 3]
        between = sorted((each.hlc, each.client_id, each.delta_id) for each in known if middle < each.hlc <= late)
        found = analyst.changes(table_name, after=middle, through=late)
        assert [(each.hlc, each.source, each.id) for each in found] == between
        row_id = known[0].row_id
        writes = [
            (each.hlc, each.client_id, sync.parse_value(column.value))
            for each in known
            for column in each.columns
            if each.row_id == row_id and column.column == "title"
        ]
        blamed = analyst.blame(table_name, key=row_id, column="title")
        assert [(each.hlc, each.source, each.value) for each in blamed if each.op != "delete"] == sorted(
            writes, reverse=True
        )
    command = [sys.executable, "-m", "mainstem.app.cli.main", "analyst", "--url", live_server.url]
    printed = subprocess.run(
        [*command, "blame", table_name, row_id, "title"], check=True, capture_output=True, text=True
    ).stdout
    assert len(printed.splitlines()) == len(blamed)
