"""What a table would not take is refused at the sync door, by name: its writer alone would have it otherwise."""

from pathlib import Path

import httpx
import pytest

from mainstem.app.config import Config, PipelineConfig
from mainstem.model.hlc import pack
from mainstem.runtime.clock import SystemClock
from mainstem.wire import sync
from tests.harness.inprocess import gateway_on_socket

PROTOBUF = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf"}
CONFIG = Config(pipeline=PipelineConfig(enabled=False), tables={"g.notes": {"columns": {"day": "date"}}})


def push_of(column: str, value: bytes) -> bytes:
    hlc = pack(SystemClock().now_ms(), 0)
    columns = (sync.ColumnDelta(column, value),)
    name = sync.delta_id(table="notes", row_id="r", columns=columns, hlc=hlc, client_id="ada")
    delta = sync.RowDelta(op=1, table="notes", row_id="r", columns=columns, hlc=hlc, client_id="ada", delta_id=name)
    return sync.encode_push(sync.SyncPush(client_id="ada", deltas=[delta]))


@pytest.mark.parametrize(
    ("column", "value", "status", "reason"),
    [
        ("n", b"7", 200, ""),
        ("n", b"null", 200, ""),
        ("n", b'"7"', 200, ""),
        ("n", b"7.5", 422, "schema_mismatch"),
        ("n", b'"seven"', 422, "schema_mismatch"),
        ("day", b'"2024-02-29"', 200, ""),
        ("day", b'"2023-02-29"', 422, "schema_mismatch"),
        ("other", b'"seven"', 200, ""),
        ("a\u0085b", b"1", 400, "invalid_name"),
    ],
)
async def test_what_does_not_fit_is_refused(
    tmp_path: Path, column: str, value: bytes, status: int, reason: str
) -> None:
    """By a type of the configuration, and by one that was declared over HTTP while the server ran."""
    async with gateway_on_socket(tmp_path, gateway_config=CONFIG) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=60) as client:
            before = await client.post("/sync/g/push", content=push_of("m", b'"text"'))
            assert before.status_code == 200, before.text
            declared = await client.put(
                "/v1/namespaces/g/tables/notes/schemas",
                json={"columns": {"n": "long"}},
                headers={"content-type": "application/json"},
            )
            assert declared.status_code == 200, declared.text
            answer = await client.post("/sync/g/push", content=push_of(column, value))
            assert answer.status_code == status, answer.text
            if reason:
                assert answer.json()["reason"] == reason
            pulled = sync.decode_response((await client.get("/sync/g/pull")).content)
            assert len(pulled.deltas) == (2 if status == 200 else 1)


async def test_a_schema_is_declared_in_the_lake_or_refused(tmp_path: Path) -> None:
    """By kind: what the lake has that fits stays, what it lacks is added, and what differs is refused by name."""

    def schema(**kinds: str) -> dict[str, object]:
        return {"table": "items", "columns": [{"name": name, "type": kind} for name, kind in kinds.items()]}

    json = {"content-type": "application/json"}
    async with gateway_on_socket(tmp_path, gateway_config=CONFIG) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, headers=json, timeout=60) as client:
            place = "/v1/namespaces/g/tables/items"
            there = {"columns": {"n": "long", "price": "decimal(10,2)", "t": "string"}}
            assert (await client.put(f"{place}/schemas", json=there)).status_code == 200
            for body, status, reason in [
                (schema(n="number", price="number", t="json", ok="boolean"), 204, ""),
                (schema(n="number", price="number", t="json", ok="boolean"), 204, ""),
                (schema(n="string"), 422, "schema_mismatch"),
                (schema(ok="number"), 422, "schema_mismatch"),
                (schema(**{"a\u0085b": "string"}), 400, "invalid_name"),
            ]:
                answer = await client.post("/admin/schema/g", json=body)
                assert answer.status_code == status, answer.text
                if reason:
                    assert answer.json()["reason"] == reason
            metadata = (await client.get(place)).json()["metadata"]
            newest = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
            types = {field["name"]: field["type"] for field in newest["fields"] if not field["name"].startswith("_")}
            expected = {"n": "long", "price": "decimal(10,2)", "t": "string", "ok": "boolean"}
            assert {name: kind.replace(" ", "") for name, kind in types.items()} == expected
            # A table that was only declared keeps nobody from going back to the beginning.
            assert (await client.get("/sync/g/pull")).status_code == 200


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_type_that_a_row_on_its_way_does_not_have_is_not_declared(tmp_path: Path, sealed: bool) -> None:
    """A client may have the row already, and it would be a dead letter of the table. By both ways to declare a type."""
    async with gateway_on_socket(tmp_path, gateway_config=CONFIG) as (gateway, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        json = {"content-type": "application/json"}
        async with httpx.AsyncClient(base_url=base, headers=PROTOBUF, timeout=60) as client:

            async def put(**columns: str) -> int:
                place = "/v1/namespaces/g/tables/notes/schemas"
                return (await client.put(place, json={"columns": columns}, headers=json)).status_code

            async def declare(**kinds: str) -> int:
                columns = [{"name": name, "type": kind} for name, kind in kinds.items()]
                body = {"table": "notes", "columns": columns}
                return (await client.post("/admin/schema/g", json=body, headers=json)).status_code

            for column, value in [("n", b'"seven"'), ("m", b"7"), ("day", b'"2024-02-29"')]:
                assert (await client.post("/sync/g/push", content=push_of(column, value))).status_code == 200
            if sealed:
                await gateway._log.flush()
            shown = sync.decode_response((await client.get("/sync/g/pull")).content)
            assert len(shown.deltas) == 3
            assert [await put(n="long"), await declare(n="number", m="number")] == [400, 422]
            # Another table's rows, and another column, are no reason; and nothing was declared before.
            assert [await put(m="long", other="long"), await put(m="long")] == [200, 200]
            assert await declare(n="string", m="number", more="boolean") == 204
            # What does not fit is refused from here on, and declaring it again is no change.
            assert (await client.post("/sync/g/push", content=push_of("m", b'"seven"'))).status_code == 422
            assert [await put(m="long"), await declare(n="string", m="number", more="boolean")] == [200, 204]
            assert len(sync.decode_response((await client.get("/sync/g/pull")).content).deltas) == 3
