"""What Debezium Server posts, on a whole server without Spark: rows and truncates, as `latest` reads them."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.doors.ingest.truncating import Truncate, Truncating
from mainstem.log.disk import OsDisk
from mainstem.model import Overloaded, SourceId, TableName
from mainstem.model.batch import Encoding
from mainstem.wire.debezium_posts import PostHead, pack
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

Event = dict[str, Any]
RECORDED = Path(__file__).parents[1] / "vectors" / "debezium" / "postgres.jsonl"
PAIRS = [['{"a":9,"b":"q"}', 9, "q", 9, None], ['{"a":10,"b":"q"}', 10, "q", 10, "1.50"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    process = ServerProcess(tmp_path_factory.mktemp("debezium"), config)
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


def event(table: str, op: str, lsn: int | None, **row: object) -> Event:
    source = {"name": "shopdb", "schema": "public", "table": table, "txId": 1}
    if lsn is not None:
        source["lsn"] = lsn
    side = {"before": None, "after": None}
    if op != "t":
        side["before" if op == "d" else "after"] = row  # type: ignore[assignment]
    return {"op": op, **side, "source": source, "ts_ms": 1}


def post(server: ServerProcess, *events: Event) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/debezium?namespace=shop&key=id", json=list(events), timeout=60)


def counted(server: ServerProcess, *events: Event) -> tuple[int, int]:
    answer = post(server, *events)
    assert answer.status_code == 200, answer.text
    return answer.json()["events"], answer.json()["duplicates"]


def ids(server: ServerProcess, table: str) -> list[int]:
    body = {"sql": f"SELECT id FROM shop.{table} ORDER BY id", "freshness": "latest"}
    answer = httpx.post(f"{server.url}/v1/query", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return [row[0] for row in answer.json()["rows"]]


def test_a_truncate_takes_what_came_before_it_and_its_retries_nothing(server: ServerProcess) -> None:
    before = [event("gone", "c", 10 + number, id=number) for number in range(5)]
    truncate = event("gone", "t", 20)
    after = [event("gone", "c", 21, id=2), event("gone", "c", 22, id=9)]
    assert counted(server, *before, truncate, *after) == (8, 0)
    assert ids(server, "gone") == [2, 9]
    # The connector died before it wrote down how far it was, and sends all of it again.
    assert counted(server, *before, truncate, *after) == (8, 8)
    assert ids(server, "gone") == [2, 9]
    server.kill()
    asyncio.run(server.start())
    assert counted(server, truncate) == (1, 1)
    assert ids(server, "gone") == [2, 9]
    # Another one, of the same table.
    assert counted(server, event("gone", "t", 30), event("gone", "c", 31, id=4)) == (2, 0)
    assert ids(server, "gone") == [4]


def test_a_truncate_of_a_table_that_is_not_there_is_taken(server: ServerProcess) -> None:
    assert counted(server, event("never", "t", 5), event("never", "c", 6, id=1)) == (2, 0)
    assert ids(server, "never") == [1]


def test_a_truncate_that_does_not_say_its_place_is_refused(server: ServerProcess) -> None:
    counted(server, event("kept", "c", 1, id=1))
    unplaced = event("kept", "t", None)
    # Of a source of its own: requests of this one wait until what was refused comes again.
    unplaced["source"]["name"] = "unplaced"
    answer = post(server, unplaced)
    assert answer.status_code == 400 and "place in the source's log" in answer.json()["error"]["message"]
    assert ids(server, "kept") == [1]


def test_a_parameter_that_is_typed_wrong_is_refused(server: ServerProcess) -> None:
    url = f"{server.url}/v1/debezium?namespaces=shop&key=id"
    answer = httpx.post(url, json=[event("typed", "c", 1, id=1)], timeout=60)
    assert answer.status_code == 400 and "['namespaces']" in answer.json()["error"]["message"]


def test_what_debezium_server_posted_of_a_real_database(server: ServerProcess) -> None:
    """Recorded from 2.5.4 and PostgreSQL: changed keys, unchanged large values, truncates of one and of two tables, a
    column that came later. As its client sends it: one by one, the first of each connection with an offer of HTTP/2."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAEAAEAAAAIAAAAA", "Upgrade": "h2c"}
    events = RECORDED.read_bytes().splitlines()
    url = f"{server.url}/v1/debezium?namespace=real&key=pair:a,b&key=id"
    for duplicates in (0, 1):
        for event_ in events:
            answer = httpx.post(url, content=event_, headers={"content-type": "application/json", **offer}, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json() == {"events": 1, "duplicates": duplicates, "ignored": 0}
    for sql, rows in (
        ("SELECT _key, a, b, v, w::VARCHAR FROM real.pair ORDER BY a", PAIRS),
        ("SELECT count(*) FROM real.toast", [[0]]),
    ):
        answer = httpx.post(f"{server.url}/v1/query", json={"sql": sql, "freshness": "latest"}, timeout=60)
        assert answer.json()["rows"] == rows, answer.text


async def test_a_truncate_that_is_sent_twice_at_once_is_one(server: ServerProcess) -> None:
    rows = [event("twice", "c", 10 + number, id=number) for number in range(50)]
    await asyncio.to_thread(counted, server, *rows)
    sent = [asyncio.to_thread(counted, server, event("twice", "t", 99)) for _ in range(4)]
    assert sorted(await asyncio.gather(*sent)) == [(1, 0), (1, 1), (1, 1), (1, 1)]
    await asyncio.to_thread(counted, server, event("twice", "c", 100, id=7))
    assert await asyncio.to_thread(ids, server, "twice") == [7]


async def test_a_truncate_that_breaks_off_is_finished_when_it_is_sent_again(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            rows = [{"id": f"k{number}"} for number in range(10)]
            (await http.post("/v1/ingest/shop/half?key=id", json=rows)).raise_for_status()

            async def broken(_: TableName) -> AsyncIterator[pa.Array]:
                yield pa.array([f"k{number}" for number in range(4)])
                raise Overloaded("the rest cannot be told", retry_after_s=1.0)

            async def rest(_: TableName) -> AsyncIterator[pa.Array]:
                yield pa.array([f"k{number}" for number in range(4, 10)])

            taking, table = gateway.ingest.taking, TableName("shop", "half")
            source, payload = SourceId("debezium/shopdb"), pack(PostHead(is_truncate=True), b"{}")
            batch = taking.batch(
                source, key="42", count=1, encoding=Encoding.ENVELOPE, payload=payload, tables=frozenset([table])
            )
            truncate = Truncate(table, batch, {"truncate": True})
            with pytest.raises(Overloaded):
                await Truncating(taking, broken).take(truncate, "debezium")
            query = {"sql": "SELECT count(*) FROM shop.half", "freshness": "latest"}
            assert (await http.post("/v1/query", json=query)).json()["rows"] == [[6]]
            assert not await Truncating(taking, rest).take(truncate, "debezium")
            assert (await http.post("/v1/query", json=query)).json()["rows"] == [[0]]
            (await http.post("/v1/ingest/shop/half?key=id", json=rows)).raise_for_status()
            assert await Truncating(taking, rest).take(truncate, "debezium")
            assert (await http.post("/v1/query", json=query)).json()["rows"] == [[10]]


async def test_one_event_for_two_namespaces_is_a_row_of_each(tmp_path: Path) -> None:
    """A copy of a database for testing, say: the same change at the same place, posted to both by one account."""
    async with gateway_on_socket(tmp_path) as (gateway, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for times in (1, 2):
                for namespace in ("shop", "staging"):
                    params = {"namespace": namespace, "key": "id"}
                    answer = await http.post("/v1/debezium", params=params, json=event("orders", "c", 7, id=1))
                    assert answer.json()["duplicates"] == times - 1, (namespace, answer.text)
        assert gateway.status().log.durable == 2


async def test_two_tenants_whose_posters_have_one_name_do_not_meet(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (gateway, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for namespace in ("shop", "other"):
                who = bearer(token("writer", namespace, sub="debezium"))
                first, refused = event("orders", "c", 7, id=1), event("orders", "c", 8)
                params = {"namespace": namespace, "key": "id"}
                answer = await http.post("/v1/debezium", params=params, json=first, headers=who)
                # Nor does what one of them has to send again hold the other up.
                assert (answer.status_code, answer.json().get("duplicates")) == (200, 0), (namespace, answer.text)
                assert (await http.post("/v1/debezium", params=params, json=refused, headers=who)).status_code == 400
        assert gateway.status().log.durable == 2


class OneBadSync(OsDisk):
    """A real disk whose next sync fails once."""

    is_bad = False

    def sync(self, fd: int) -> None:
        if self.is_bad:
            self.is_bad = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


async def test_no_request_overtakes_one_that_failed(tmp_path: Path) -> None:
    """The disk refuses a request, and the source's next one is on its way: the newer value must win all the same."""
    disk = OneBadSync()
    async with gateway_on_socket(tmp_path, disk) as (_, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws")
        async with httpx.AsyncClient(timeout=60) as http:
            place = f"{url}/v1/debezium?namespace=shop&key=id"
            old, new = (event("held", "u", 10 + n, id=1, v=n) for n in (1, 2))
            disk.is_bad = True
            answers = [await http.post(place, json=each) for each in (old, new, old, new)]
            assert [answer.status_code for answer in answers] == [503, 503, 200, 200]
            query = {"sql": "SELECT v FROM shop.held", "freshness": "latest"}
            assert (await http.post(f"{url}/v1/query", json=query)).json()["rows"] == [[2]]


@pytest.mark.parametrize("lsn", [1, None])
async def test_no_request_overtakes_one_that_was_refused(tmp_path: Path, lsn: int | None) -> None:
    """An event without a key is not taken, and the source's next one is on its way: it waits until the refused one was
    sent again as it should be."""
    async with gateway_on_socket(tmp_path) as (_, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:

            async def posted(*events: Event, key: str = "id") -> int:
                return (
                    await http.post("/v1/debezium", params={"namespace": "shop", "key": key}, json=events)
                ).status_code

            old, new = (event("held", "u", lsn and lsn + n, id=1, v=n) for n in (1, 2))
            other = event("held", "u", lsn and lsn + 9, id=2, v=9)
            other["source"]["name"] = "another"
            # In the middle of a request: nothing of it is in the log.
            assert await posted(event("kept", "u", lsn and lsn + 20, id=3), old, key="kept:id") == 400
            assert [await posted(new), await posted(other)] == [503, 200]
            assert await posted(event("kept", "u", lsn and lsn + 20, id=3), old) == 200
            assert await posted(new) == 200
            query = {"sql": "SELECT id, v FROM shop.held ORDER BY id", "freshness": "latest"}
            assert (await http.post("/v1/query", json=query)).json()["rows"] == [[1, 2], [2, 9]]
            # What says of no source holds nobody back.
            assert [await posted([]), await posted(new)] == [400, 200]  # type: ignore[arg-type]


async def test_a_refused_request_takes_its_turn_behind_one_at_work(tmp_path: Path) -> None:
    """The one before it is not disturbed, and the one behind it is refused, though both were there already."""
    async with gateway_on_socket(tmp_path) as (_, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws") + "/v1/debezium?namespace=shop&key=row:id"
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=1)) as http:
            first = [event("row", "u", 100 + n, id=n) for n in range(50)]
            bodies: list[Any] = [first, [event("keyless", "u", 200, id=1)], [event("row", "u", 300, id=1)]]
            answers = [await http.post(url, json=body) for body in bodies]
            assert [answer.status_code for answer in answers] == [200, 400, 503]


async def test_debezium_server_logs_in_with_a_token_for_a_password(tmp_path: Path) -> None:
    """As its `http` sink does (`authentication.type=jwt`); all of it: `tests/compat/test_debezium_server`."""
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (gateway, ws_url):
        url = ws_url.replace("ws", "http", 1).removesuffix("/ws") + "/v1/debezium"
        given = token("writer", "shop", lifetime_s=3600)
        asked = {"username": "token", "password": given, "token_expiry_in_minutes": 60}
        async with httpx.AsyncClient(timeout=60) as http:
            login = await http.post(f"{url}/auth/authenticate", json=asked)
            assert login.status_code == 200, login.text
            told = login.json()
            assert told.keys() == {"jwt", "jwt_refresh_token", "expires_in", "refresh_token_expires_in"}
            assert told["jwt"] == given and 3_500_000 < told["expires_in"] <= 3_600_000
            again = await http.post(f"{url}/auth/refreshToken", json={"jwt_refresh_token": told["jwt_refresh_token"]})
            assert (again.status_code, again.json()["jwt"]) == (200, given)
            # So the sink writes it.
            headers = {"Authorization": f"Bearer: {told['jwt']}"}
            row = event("pens", "c", 1, id=1)
            taken = await http.post(url, params={"namespace": "shop", "key": "id"}, json=row, headers=headers)
            assert (taken.status_code, taken.json()["events"]) == (200, 1)
            before = sum(gateway.refused.values())
            wrong: tuple[tuple[dict[str, str] | bytes, str], ...] = (
                ({}, "token_missing"),
                ({"password": "nonsense"}, "token_invalid"),
                ({"password": "ü" * 10 + "€"}, "token_missing"),
                ({"password": token(lifetime_s=-600)}, "token_expired"),
                (b"no json", "token_missing"),
                (b'{"password": "' + b"x" * 100_000 + b'"}', "token_missing"),
            )
            for number, (body, reason) in enumerate(wrong):
                content = body if isinstance(body, bytes) else msgspec.json.encode(body)
                refused = await http.post(f"{url}/auth/authenticate", content=content)
                assert (refused.status_code, refused.json()["error"]["reason"]) == (401, reason), body
                assert sum(gateway.refused.values()) == before + number + 1
            # A reader's token opens nothing that a connector needs, and a body opens no other path.
            reader = {"password": token("reader")}
            assert (await http.post(f"{url}/auth/authenticate", json=reader)).status_code == 403
            assert (await http.post(f"{url}", params={"key": "id"}, json={"password": given})).status_code == 401
