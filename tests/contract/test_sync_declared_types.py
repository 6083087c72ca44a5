"""The sync door and the lake behind it, whole: what replicas have is what the tables have, whatever was written."""

import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from mainstem.client.sync.replica import delta_row
from mainstem.model.hlc import pack
from mainstem.model.merge import EMPTY, Row, join
from mainstem.runtime.clock import SystemClock
from mainstem.tables.evolution import TABLE_COLUMNS_MAX
from mainstem.wire import sync
from tests.harness.cdcwire import Wire

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
FINE = {
    "plain": '{"title":"a","size":7}',
    "twice": '{"title":"old","title":"new"}',
    "twice below": '{"title":"b","doc":{"x":1,"x":2}}',
    "null": '{"title":null,"size":null}',
    "text": '{"title":"c","size":"12"}',
    "number": '{"title":"d","rank":1.50}',
}
DEAD = {
    "nothing": "null",
    "control": '{"title":"x","a\\u0085b":1}',
    "misfit": '{"title":"x","size":"seven"}',
    "fraction": '{"title":"x","size":7.5}',
    "name": '{"title":"x","":1}',
}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def merged(deltas: Iterable[sync.RowDelta]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for delta in deltas:
        rows[delta.row_id] = join(rows.get(delta.row_id, EMPTY), delta_row(delta))
    return rows


def state(url: str, table: str) -> dict[str, dict[str, Any]]:
    with connect_duckdb(url) as connection:
        cursor = connection.execute(f"SELECT * FROM lake.{table}")
        names = [column[0] for column in cursor.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {row["_key"]: {name: row[name] for name in names if not name.startswith("_")} for row in rows}


async def write(server: ServerProcess, table: str, rows: dict[str, str], sequence: int = 1) -> None:
    """Through the CDC door, the JSON of each row as it is given."""
    events = ",".join(
        f'{{"sequence":{n},"timestamp":1700000000000,"operation":"INSERT","table":"{table}","rowId":"{key}","after":{text}}}'
        for n, (key, text) in enumerate(rows.items(), start=1)
    )
    head = f'"type":"cdc_batch","sourceDoId":"{table}","sequenceNumber":{sequence},"timestamp":1700000000000'
    async with Wire(server.ws_url) as wire:
        await wire.greet(table)
        await wire.say_bytes(f'{{{head},"events":[{events}]}}'.encode())
        answer = await wire.hear()
        assert answer["type"] == "ack", answer


async def test_a_replica_ends_as_the_table(live_server: ServerProcess) -> None:
    """From memory, from segments and from a checkpoint: the same rows, and they are the table's."""
    async with httpx.AsyncClient(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        declared = {"columns": {"size": "long"}}
        answer = await client.put("/v1/namespaces/dirt/tables/rows/schemas", json=declared, headers=JSON)
        assert answer.status_code == 200, answer.text
        await client.get("/sync/dirt/pull")
        # One of each in turn.
        turns = [row for pair in zip(FINE.items(), [*DEAD.items(), ("last", "null")], strict=True) for row in pair]
        await write(live_server, "dirt.rows", dict(turns))
        from_memory = sync.decode_response((await client.get("/sync/dirt/pull")).content)
        flushed = await client.post("/admin/checkpoint/dirt")
        assert flushed.status_code == 200, flushed.text
        from_segment = sync.decode_response((await client.get("/sync/dirt/pull")).content)
        body = (await client.get("/sync/dirt/checkpoint", headers={"accept-encoding": "identity"})).content
    pieces = [delta for piece in sync.split_pieces(body) for delta in sync.decode_response(piece).deltas]
    expected = {key: json.loads(text) for key, text in FINE.items()}
    for deltas in (from_memory.deltas, from_segment.deltas, pieces):
        assert {key: row.values() for key, row in merged(deltas).items()} == expected
    table = state(live_server.url, "dirt.rows")
    assert table.keys() == expected.keys()
    assert {key: row["title"] for key, row in table.items()} == {key: row["title"] for key, row in expected.items()}


# Rows by key, and whether the table takes them: a column too many, or one that Delta does not tell from another.
REFUSED: dict[str, dict[str, tuple[str, bool]]] = {
    "wide": {
        "full": (json.dumps({f"c{n}": n for n in range(TABLE_COLUMNS_MAX)}), True),
        "over": ('{"c1":1,"over":1}', False),
        "fits": ('{"c1":2}', True),
    },
    "cased": {
        "first": ('{"Title":"a"}', True),
        "other": ('{"title":"b"}', False),
        "again": ('{"Title":"c","_KEY":1}', False),
        "fits": ('{"Title":"d"}', True),
    },
}


@pytest.mark.parametrize("namespace", REFUSED)
async def test_a_row_whose_column_the_table_refuses_is_in_no_replica(
    live_server: ServerProcess, namespace: str
) -> None:
    """From memory before the pipeline has seen it, from the log, and afterwards; a push of one is refused by name."""
    async with httpx.AsyncClient(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:

        async def pulled() -> set[str]:
            content = (await client.get(f"/sync/{namespace}/pull")).content
            return {delta.row_id for delta in sync.decode_response(content).deltas}

        assert await pulled() == set()
        await write(live_server, f"{namespace}.rows", {key: text for key, (text, _) in REFUSED[namespace].items()})
        wanted = {key for key, (_, is_taken) in REFUSED[namespace].items() if is_taken}
        assert await pulled() == wanted
        assert (await client.post(f"/admin/flush/{namespace}")).status_code == 200
        assert await pulled() == wanted
        statement = {"sql": f"SELECT _key FROM {namespace}.rows"}
        found = (await client.post("/v1/query", json=statement, headers=JSON)).json()["rows"]
        assert {key for (key,) in found} == wanted
        columns = (sync.ColumnDelta("TITLE", b"1"),)
        hlc = pack(SystemClock().now_ms(), 0)
        name = sync.delta_id(table="rows", row_id="pushed", columns=columns, hlc=hlc, client_id="ada")
        delta = sync.RowDelta(
            op=1, table="rows", row_id="pushed", columns=columns, hlc=hlc, client_id="ada", delta_id=name
        )
        push = sync.encode_push(sync.SyncPush(client_id="ada", deltas=[delta]))
        answer = await client.post(f"/sync/{namespace}/push", content=push)
        assert (answer.status_code, answer.json()["reason"]) == (422, "schema_mismatch"), answer.text


async def test_a_declared_schema_decides_the_types_in_the_lake(live_server: ServerProcess) -> None:
    kinds = {"n": "number", "ok": "boolean", "title": "string", "doc": "json"}
    schema = {"table": "items", "columns": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    columns = (sync.ColumnDelta("n", b"1"), sync.ColumnDelta("title", b'"7"'), sync.ColumnDelta("doc", b'{"a":1}'))
    hlc = pack(SystemClock().now_ms(), 0)
    name = sync.delta_id(table="items", row_id="r", columns=columns, hlc=hlc, client_id="ada")
    delta = sync.RowDelta(op=1, table="items", row_id="r", columns=columns, hlc=hlc, client_id="ada", delta_id=name)
    async with httpx.AsyncClient(base_url=live_server.url, headers=PROTOBUF, timeout=120) as client:
        assert (await client.post("/admin/schema/typed", json=schema, headers=JSON)).status_code == 204
        push = sync.encode_push(sync.SyncPush(client_id="ada", deltas=[delta]))
        assert (await client.post("/sync/typed/push", content=push)).status_code == 200
        assert (await client.post("/admin/flush/typed")).status_code == 200
        loaded = (await client.get("/v1/namespaces/typed/tables/items", headers=JSON)).json()["metadata"]
    fields = {field["name"]: field["type"] for each in loaded["schemas"] for field in each["fields"]}
    types = {"n": "double", "ok": "boolean", "title": "string", "doc": "string"}
    assert {name: fields[name] for name in kinds} == types
    assert state(live_server.url, "typed.items") == {"r": {"n": 1.0, "ok": None, "title": "7", "doc": '{"a":1}'}}


async def test_a_declared_schema_decides_the_types_of_a_table_in_delta(live_server: ServerProcess) -> None:
    """Before its first row, and of columns that come later; what cannot be is refused by name."""

    def schema(**kinds: str) -> dict[str, object]:
        return {"table": "typed", "columns": [{"name": name, "type": kind} for name, kind in kinds.items()]}

    async with httpx.AsyncClient(base_url=live_server.url, headers=JSON, timeout=120) as client:

        async def declared(**kinds: str) -> tuple[int, str]:
            answer = await client.post("/admin/schema/cased", json=schema(**kinds))
            return answer.status_code, answer.json()["reason"] if answer.content else ""

        async def pulled() -> set[str]:
            content = (await client.get("/sync/cased/pull", headers=PROTOBUF)).content
            return {delta.row_id for delta in sync.decode_response(content).deltas if delta.table == "typed"}

        async def rows() -> list[list[Any]]:
            assert (await client.post("/admin/flush/cased")).status_code == 200
            statement = {
                "sql": "SELECT * EXCLUDE (_key, _hlc, _source, _position, _clocks) FROM cased.typed ORDER BY _key"
            }
            answer = (await client.post("/v1/query", json=statement)).json()
            types = {column["name"]: column["type"] for column in answer["columns"]}
            assert {name: types[name] for name in ("n", "ok", "title")} == {
                "n": "DOUBLE",
                "ok": "BOOLEAN",
                "title": "VARCHAR",
            }
            found: list[list[Any]] = answer["rows"]
            return found

        assert await declared(n="number", ok="boolean", title="string") == (204, "")
        assert await declared(n="number", ok="boolean", title="string") == (204, "")
        await write(live_server, "cased.typed", {"a": '{"n":1,"title":"7"}', "b": '{"n":"seven"}'})
        assert await pulled() == {"a"}
        assert await rows() == [[1.0, None, "7"]]
        assert await declared(n="string") == (422, "schema_mismatch")
        assert await declared(n="number", N="number") == (422, "schema_mismatch")
        assert await declared(n="number", ok="boolean", title="string", later="number") == (204, "")
        await write(live_server, "cased.typed", {"c": '{"later":2}', "d": '{"later":"two"}'}, sequence=2)
        assert await pulled() == {"a", "c"}
        assert await rows() == [[1.0, None, "7", None], [None, None, None, 2.0]]
