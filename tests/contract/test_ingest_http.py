"""Plain HTTP ingest on a whole server: every format into one table, as DuckDB reads it; refusals; once per key."""

import asyncio
import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pytest

from mainstem.app.config import Config, IngestConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb
from mainstem.wire.rows_arrow import stream_of
from tests.contract.auth_tokens import AUTH, token

ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
TIMEOUT_S = 60
WHOLE_TYPES = pa.table(
    {
        "id": pa.array([10, 11], pa.int32()),
        "price": pa.array([decimal.Decimal("12.50"), None], pa.decimal128(10, 2)),
        "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 600), None], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2026, 1, 2), None]),
        "raw": pa.array([b"\x00\x01", None]),
        "note": pa.array(['a "quoted"\nline', "ü"]).dictionary_encode(),
        "tags": pa.array([["x", "y"], None]),
        "ratio": pa.array([0.5, 2.0]),
    }
)


def post(server: str, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return httpx.post(f"{server}/v1/ingest/{path}", headers=headers or {}, timeout=TIMEOUT_S, **body)


def taken(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert all(word in answer.json()["error"]["message"] for word in words), answer.text


def test_every_format_is_rows_of_the_same_table(live_server: ServerProcess) -> None:
    url, path = live_server.url, "web/everything?key=id"
    assert taken(post(url, path, json={"id": 1, "note": "one", "ratio": 1.5}))["rows"] == 1
    lines = b'{"id": 2, "note": "two"}\n\n{"id": 3, "note": "gone"}\n'
    assert taken(post(url, path, {"content-type": LINES}, content=lines))["rows"] == 2
    csv = b'id,note,ratio\n4,"a ""b""",4\n5,,0.25\n'
    assert taken(post(url, path, {"content-type": "text/csv"}, content=csv))["rows"] == 2
    assert taken(post(url, path, {"content-type": ARROW}, content=stream_of(WHOLE_TYPES)))["rows"] == 2
    views = pl.DataFrame({"id": [12], "note": ["by Polars"]}).write_ipc_stream(None, compression="uncompressed")
    assert taken(post(url, path, {"content-type": ARROW}, content=views.getvalue()))["rows"] == 1
    # Columns that a row does not have keep their values.
    assert taken(post(url, path, json=[{"id": 1, "ratio": 2.5}]))["rows"] == 1
    assert taken(post(url, "web/everything?key=id&mode=delete", json=[{"id": 3}]))["rows"] == 1
    asyncio.run(live_server.flush())
    lake = connect_duckdb(url)
    columns = 'id, note, ratio, price, "at", "day", raw, tags'
    found = lake.sql(f"SELECT {columns} FROM lake.web.everything ORDER BY id").fetchall()
    nothing = (None,) * 5
    assert found == [
        (1, "one", 2.5, *nothing),
        (2, "two", None, *nothing),
        (4, 'a "b"', 4.0, *nothing),
        (5, None, 0.25, *nothing),
        (
            10,
            'a "quoted"\nline',
            0.5,
            decimal.Decimal("12.50"),
            found[4][4],
            dt.date(2026, 1, 2),
            b"\x00\x01",
            '["x","y"]',
        ),
        (11, "ü", 2.0, *nothing),
        (12, "by Polars", None, *nothing),
    ]
    assert found[4][4].astimezone(dt.UTC) == dt.datetime(2026, 1, 2, 3, 4, 5, 600, dt.UTC)
    types = {name: kind for name, kind, *_ in lake.sql("DESCRIBE lake.web.everything").fetchall()}
    wanted = {"price": "DECIMAL(10,2)", "at": "TIMESTAMP WITH TIME ZONE", "day": "DATE", "raw": "BLOB"}
    assert {name: types[name] for name in wanted} == wanted


def test_composite_keys_and_appends(live_server: ServerProcess) -> None:
    url = live_server.url
    rows = [{"order": "o1", "line": 1, "n": 1}, {"order": "o1", "line": 2, "n": 2}]
    taken(post(url, "web/lines?key=order,line", json=rows))
    table = pa.table({"order": ["o1", "o2"], "line": pa.array([2, 1], pa.int64()), "n": [20, 30]})
    taken(post(url, "web/lines?key=line&key=order", {"content-type": ARROW}, content=stream_of(table)))
    for _ in range(2):
        taken(post(url, "web/clicks?mode=append", {"Idempotency-Key": "c1"}, json=[{"page": "a"}, {"page": "a"}]))
    taken(post(url, "web/clicks?mode=append", {"content-type": ARROW}, content=stream_of(pa.table({"page": ["b"]}))))
    asyncio.run(live_server.flush())
    lake = connect_duckdb(url)
    found = lake.sql('SELECT _key, n FROM lake.web.lines ORDER BY "order", line').fetchall()
    assert found == [('{"line":1,"order":"o1"}', 1), ('{"line":2,"order":"o1"}', 20), ('{"line":1,"order":"o2"}', 30)]
    clicks = lake.sql("SELECT page, count(*) FROM lake.web.clicks GROUP BY 1 ORDER BY 1").fetchall()
    assert clicks == [("a", 2), ("b", 1)]


def test_what_has_a_value_that_json_cannot_hold_is_a_dead_letter(live_server: ServerProcess) -> None:
    table = pa.table({"id": [1, 2], "x": [float("nan"), 1.0]})
    taken(post(live_server.url, "web/floats?key=id", {"content-type": ARROW}, content=stream_of(table)))
    asyncio.run(live_server.flush())
    lake = connect_duckdb(live_server.url)
    assert lake.sql("SELECT id, x FROM lake.web.floats").fetchall() == [(2, 1.0)]
    ((reason,),) = lake.sql("SELECT _reason FROM lake.web.floats_dead_letters").fetchall()
    assert "'x' is not a number" in reason


# Without Spark: what the door itself says.

BOUNDED = Config(
    server=ServerConfig(port=0),
    pipeline=PipelineConfig(enabled=False),
    ingest=IngestConfig(body_bytes_max=1 << 20, rows_max=1_000),
    auth=AUTH,
    tables={"shop.declared": {"key": ["a", "b"]}},
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("ingest"), BOUNDED, token=token())
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


def bearer(server: ServerProcess, **more: str) -> dict[str, str]:
    return {**server.headers, **more}


def test_refusals_name_the_row(server: ServerProcess) -> None:
    url = server.url

    def send(path: str, kind: str, content: bytes) -> httpx.Response:
        return post(url, path, bearer(server, **{"content-type": kind}), content=content)

    json, csv = "application/json", "text/csv"
    refused(send("shop/t?key=id", json, b'[{"id":1},{"id":null}]'), 400, "row 2", "'id'", "null")
    refused(send("shop/t?key=id", json, b'[{"id":1},7]'), 400, "row 2", "not a JSON object")
    refused(send("shop/t?key=id", json, b'[{"id":1}'), 400, "not JSON")
    refused(send("shop/t?key=id", json, b"[]"), 400, "no rows")
    refused(send("shop/t?key=id", LINES, b'{"id":1}\n\n{"id":'), 400, "line 3")
    refused(send("shop/t?key=id", LINES, b'{"id":1}\n{"x":1}'), 400, "line 2", "nothing")
    refused(send("shop/t?key=id", csv, b"id,x\n1,2\n3\n"), 400, "line 3", "fields")
    refused(send("shop/t?key=id", csv, b"id,x\n1,2\n,3\n"), 400, "line 3", "'id'")
    refused(send("shop/t?key=id", csv, b""), 400, "no rows")
    refused(send("shop/t?key=id", ARROW, b"no arrow"), 400, "no Arrow stream")
    refused(send("shop/t?key=nope", ARROW, stream_of(pa.table({"id": [1]}))), 400, "nope")
    refused(send("shop/t?key=id", ARROW, stream_of(pa.table({"id": [1, None]}))), 400, "row 2")
    nested = pa.table({"id": [1], "x": pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))})
    refused(send("shop/t?key=id", ARROW, stream_of(nested)), 400, "'x'", "dictionary")
    refused(send("shop/t", json, b'{"id":1}'), 400, "no key", "?key=")
    refused(send("shop/declared", json, b'{"a":1}'), 400, "'b'")
    refused(send("shop/t?mode=append&key=id", json, b'{"id":1}'), 400, "both")
    refused(send("shop/t_history?key=id", json, b'{"id":1}'), 400, "reserved")
    refused(send("shop/t?key=id&mod=append", json, b'{"id":1}'), 400, "unknown parameter", "mod")
    refused(send("shop/t?key=id", "application/xml", b"<x/>"), 415, "Content-Type")
    refused(send("shop/t?key=id", json, b" " * (1 << 20) + b"{}"), 413, "bytes")
    refused(send("shop/t?mode=append", LINES, b"{}\n" * 1_001), 413, "events")
    status = asyncio.run(server.status())
    assert status["log"]["durable"] == 0


def test_a_compressed_stream_is_refused_before_it_is_opened(server: ServerProcess) -> None:
    table = pa.table({"id": pa.array(range(1000))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    body = bytes(sink.getvalue())
    refused(post(server.url, "shop/t?key=id", bearer(server, **{"content-type": ARROW}), content=body), 400, "compress")


def test_a_broken_stream_never_reaches_the_log(server: ServerProcess) -> None:
    """Every byte of a stream broken once: refused, or rows that can be read; never a crash."""
    from mainstem.model import Invalid
    from mainstem.wire.rows_arrow import batches_of, check_arrow
    from mainstem.wire.rows_arrow_values import json_texts

    whole = stream_of(pa.table({"id": [1, 2, 3], "s": ["a", "bb", None]}))
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        try:
            checked = check_arrow(bytes(broken), ("id",), 1 << 20)
        except Invalid:
            continue
        assert sum(len(json_texts(batch)) for batch in batches_of(checked.body)) == checked.count


def test_a_key_counts_once_across_a_restart(tmp_path: Path) -> None:
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))

    async def run() -> None:
        async with ServerProcess(tmp_path / "data", config) as server:
            first = taken(post(server.url, "a/t?mode=append", {"Idempotency-Key": "k"}, json=[{"x": 1}]))
            assert not first["duplicate"]
            server.kill()
            await server.start()
            again = taken(post(server.url, "a/t?mode=append", {"Idempotency-Key": "k"}, json=[{"x": 1}]))
            assert again["duplicate"] and again["rows"] == 1
            refused(post(server.url, "a/t?mode=append", {"Idempotency-Key": "k"}, json=[{"x": 2}]), 409, "key was used")
            # Another table's keys are its own.
            other = taken(post(server.url, "a/other?mode=append", {"Idempotency-Key": "k"}, json=[{"x": 1}]))
            assert not other["duplicate"]
            await server.stop()
            await server.start()
            assert taken(post(server.url, "a/t?mode=append", {"Idempotency-Key": "k"}, json=[{"x": 1}]))["duplicate"]
            assert (await server.status())["log"]["durable"] == 2

    asyncio.run(run())


def test_a_token_writes_its_own_namespace_only(server: ServerProcess) -> None:
    mine = {"Authorization": f"Bearer {token(role='writer', namespace='shop')}"}
    reader = {"Authorization": f"Bearer {token(role='reader', namespace='shop')}"}
    row = {"id": 1}
    refused(post(server.url, "other/t?key=id", mine, json=row), 403, "other.t")
    refused(post(server.url, "shop/t?key=id", reader, json=row), 403)
    assert post(server.url, "shop/t?key=id", json=row).status_code == 401
