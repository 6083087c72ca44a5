"""The query door on a real server, over tables that pyiceberg wrote through our own catalog beside it."""

import asyncio
import csv
import io
import json
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
import uvicorn
from litestar import Litestar
from pyiceberg.catalog.rest import RestCatalog

from mainstem.app.query import CatalogLake, open_queries
from mainstem.catalog import Catalog, SqliteStore
from mainstem.doors.catalog.door import CatalogDoor, catalog_router
from mainstem.query.engine import EngineSettings
from mainstem.query.sandbox.session import SandboxSettings

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 7 = 3"
ROWS = 2_000


class Server:
    """Catalog and query doors in one application, on a free port."""

    def __init__(self, data: Path) -> None:
        self.catalog = Catalog(store=SqliteStore(data / "catalog.db"), warehouse=str(data / "warehouse"))
        self._data = data
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        settings = EngineSettings(
            folder=f"{self._data}/warehouse/",
            running_max=1,
            waiting_max=1,
            sandbox=SandboxSettings(memory_bytes_max=512 * 1024 * 1024),
        )
        queries = open_queries(CatalogLake(self.catalog), settings)
        self.engine = queries.engine
        app = Litestar([catalog_router(CatalogDoor(self.catalog)), queries.router])
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        await self.server.serve(sockets=[self._socket])
        await self.engine.close()

    def __enter__(self) -> "Server":
        self._thread.start()
        httpx.get(f"{self.url}/v1/config", timeout=30).raise_for_status()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        self.catalog.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("query-http")) as server:
        lake = RestCatalog("lake", uri=server.url, warehouse="lake")
        lake.create_namespace("default")
        rows = pa.table(
            {
                "id": pa.array(range(ROWS), pa.int64()),
                "big": pa.array([2**60 + number for number in range(ROWS)], pa.int64()),
                "price": pa.array(list(map(Decimal, range(ROWS))), pa.decimal128(12, 2)),
                "note": [None if number % 2 else f'a,"{number}"\nb' for number in range(ROWS)],
            }
        )
        lake.create_table("default.orders", rows.schema).append(rows)
        yield server


def post(server: Server, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=30)


def test_json(server: Server) -> None:
    sql = "SELECT id, big, price, note FROM default.orders WHERE id < 2 ORDER BY id"
    answer = post(server, "/v1/query", {"sql": sql})
    assert answer.status_code == 200
    body = answer.json()
    assert body["columns"] == [
        {"name": "id", "type": "BIGINT"},
        {"name": "big", "type": "BIGINT"},
        {"name": "price", "type": "DECIMAL(12,2)"},
        {"name": "note", "type": "VARCHAR"},
    ]
    assert body["rows"] == [[0, str(2**60), "0.00", 'a,"0"\nb'], [1, str(2**60 + 1), "1.00", None]]
    assert body["truncated"] is False
    assert body["stats"]["rows"] == 2
    assert body["stats"]["snapshots"][0]["table"] == "default.orders"
    assert answer.headers["x-mainstem-truncated"] == "false"


def test_a_table_with_a_condition_is_a_query_too(server: Server) -> None:
    table = {"namespace": ["default"], "name": "orders"}
    form = {"table": table, "columns": ["id", "note"], "where": "id = 4 OR id = 6"}
    body = post(server, "/v1/query", form).json()
    assert [column["name"] for column in body["columns"]] == ["id", "note"]
    assert sorted(row[0] for row in body["rows"]) == [4, 6]
    assert len(post(server, "/v1/query", {**form, "limit": 1}).json()["rows"]) == 1
    # The same form is planned and routed.
    assert post(server, "/v1/query/plan", form).json()["scans"][0]["table"] == "default.orders"
    assert post(server, "/v1/query/route", form).json()["tables"][0]["table"] == "default.orders"
    for wrong in ({}, {**form, "sql": "SELECT 1"}, {**form, "where": "1=1) UNION SELECT 1, getenv('HOME') --"}):
        assert post(server, "/v1/query", wrong).status_code in (400, 403), wrong


def test_the_row_limit_is_told(server: Server) -> None:
    body = post(server, "/v1/query", {"sql": "FROM orders", "limit": 3}).json()
    assert (len(body["rows"]), body["truncated"]) == (3, True)


@pytest.mark.parametrize("by", ["format", "accept"])
def test_arrow(server: Server, by: str) -> None:
    body = {"sql": "SELECT id, note FROM orders ORDER BY id"}
    headers = {}
    if by == "format":
        body["format"] = "arrow"
    else:
        headers["Accept"] = "application/vnd.apache.arrow.stream"
    answer = post(server, "/v1/query", body, **headers)
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["id"].to_pylist() == list(range(ROWS))


def test_a_large_arrow_stream_is_whole_and_says_at_its_end_that_it_was_cut(server: Server) -> None:
    sql = "SELECT range AS id, repeat('x', 100) AS text, 'a'::ENUM('a', 'b') AS e FROM range(500000)"
    answer = post(server, "/v1/query", {"sql": sql, "format": "arrow", "limit": 300_000})
    assert answer.headers["x-mainstem-truncated"] == "unknown"
    reader = pa.ipc.open_stream(answer.content)
    rows, last = 0, None
    for batch, metadata in reader.iter_batches_with_custom_metadata():
        rows += batch.num_rows
        last = metadata
    assert rows == 300_000
    assert last is not None
    assert last[b"mainstem.truncated"] == b"true"
    assert json.loads(last[b"mainstem.stats"])["rows"] == 300_000


def test_csv(server: Server) -> None:
    sql = "SELECT id, note, [id, 2] AS list FROM orders ORDER BY id LIMIT 2"
    answer = post(server, "/v1/query", {"sql": sql}, Accept="text/csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(answer.text, newline=""))) == [
        ["id", "note", "list"],
        ["0", 'a,"0"\nb', "[0,2]"],
        ["1", "", "[1,2]"],
    ]
    empty = post(server, "/v1/query", {"sql": "SELECT id FROM orders WHERE false", "format": "csv"})
    assert empty.text.strip() == '"id"'


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ({"sql": "SELEC"}, 400, "sql_syntax"),
        ({"sql": "SELECT nope FROM orders"}, 400, "sql_error"),
        ({"sql": "DROP TABLE orders"}, 403, "denied"),
        ({"sql": "SELECT * FROM read_text('/etc/passwd')"}, 403, "denied"),
        ({"sql": "SELECT * FROM nope"}, 404, "notfound"),
        ({"sql": ENDLESS, "timeoutMs": 50}, 504, "query_timeout"),
        ({"sql": "SELECT 1", "limit": -1}, 400, "invalid_format"),
        ({"sql": "SELECT 1", "limit": "many"}, 400, "invalid_format"),
        ({"sql": "SELECT 1", "unknown": 1}, 400, "invalid_format"),
        ({"sql": "SELECT 1", "format": "xml"}, 400, "invalid_format"),
        ({"sql": "SELECT 1", "freshness": "yesterday"}, 400, "invalid_format"),
        ({}, 400, "invalid_format"),
        ([], 400, "invalid_format"),
    ],
)
def test_errors_are_named(server: Server, body: Any, code: int, reason: str) -> None:
    answer = post(server, "/v1/query", body)
    assert answer.status_code == code
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["reason"] == reason


def test_an_error_after_the_first_batches_is_still_an_error_while_the_result_is_small(server: Server) -> None:
    sql = "SELECT CASE WHEN range = 9000 THEN error('late') ELSE range END FROM range(10000)"
    for form in ("json", "arrow", "csv"):
        answer = post(server, "/v1/query", {"sql": sql, "format": form})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "sql_error")


def test_plan_and_route_in_both_forms(server: Server) -> None:
    for body in (
        {"sql": "SELECT id FROM orders WHERE id = 5"},
        {"table": {"namespace": ["default"], "name": "orders"}, "columns": ["id"], "where": "id = 5"},
    ):
        plan = post(server, "/v1/query/plan", body).json()
        assert plan["scans"][0]["files"] == {"total": 1, "selected": 1}
        assert plan["bytesToRead"] > 0
        route = post(server, "/v1/query/route", body).json()
        assert (route["engine"], route["reason"]) == ("duckdb", "small")
        assert route["estimatedBytes"] == plan["bytesToRead"]
    assert post(server, "/v1/query/plan", {}).status_code == 400
    assert post(server, "/v1/query/route", {"sql": "DROP TABLE x"}).status_code == 403


async def test_a_client_that_leaves_cancels_its_query(server: Server) -> None:
    for form in ("json", "arrow"):
        body = json.dumps({"sql": ENDLESS, "format": form, "timeoutMs": 300_000}).encode()
        await leave_after_asking(server, body)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_cancels_it(server: Server) -> None:
    sql = "SELECT repeat('x', 1000) FROM range(100000000)"
    body = json.dumps({"sql": sql, "format": "csv", "limit": 1_000_000, "timeoutMs": 300_000}).encode()
    await leave_after_asking(server, body, read=100_000)


async def leave_after_asking(server: Server, body: bytes, read: int = 0) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    head = ("POST /v1/query HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    await writer.drain()
    await until(lambda: server.engine.inside == 1)
    if read:
        await reader.readexactly(read)
    writer.close()
    await until(lambda: server.engine.inside == 0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_too_many_queries_are_told_when_to_come_back(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, asyncio.TaskGroup() as group:
        body = {"sql": ENDLESS, "timeoutMs": 300_000}
        busy = [group.create_task(client.post("/v1/query", json=body)) for _ in range(2)]
        await until(lambda: server.engine.inside == 2)
        refused = await client.post("/v1/query", json={"sql": "SELECT 1"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        for task in busy:
            task.cancel()
    await until(lambda: server.engine.inside == 0)
    assert post(server, "/v1/query", {"sql": "SELECT 1"}).status_code == 200


def test_the_catalog_beside_it_still_answers(server: Server) -> None:
    assert httpx.get(f"{server.url}/v1/namespaces/default/tables", timeout=30).status_code == 200


def test_the_openapi_schema_knows_the_types(server: Server) -> None:
    schema = httpx.get(f"{server.url}/schema/openapi.json", timeout=30).json()
    assert {"/v1/query", "/v1/query/plan", "/v1/query/route"} <= schema["paths"].keys()
    answer = schema["paths"]["/v1/query"]["post"]["responses"]
    assert {"200", "400", "403", "404", "503", "504"} <= answer.keys()


def test_duckdb_through_the_catalog_and_the_query_door_agree(server: Server) -> None:
    from duckdb_extensions import import_extension

    connection = duckdb.connect()
    for extension in ("avro", "httpfs", "iceberg"):
        import_extension(extension, con=connection)
    connection.execute("LOAD iceberg")
    connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{server.url}', AUTHORIZATION_TYPE 'none')")
    sql = "SELECT count(*), sum(id), max(big), sum(price), count(note) FROM lake.default.orders"
    (expected,) = connection.execute(sql).fetchall()
    (row,) = post(server, "/v1/query", {"sql": sql}).json()["rows"]
    assert [str(value) for value in row] == [str(value) for value in expected]
