"""Loads whose answers are at hand: never stale, never for another client's eyes, never more than their room."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar, get

from mainstem.catalog import Catalog, TableIdent
from mainstem.catalog.access.clients import Access, Grant
from mainstem.catalog.access.tokens import Tokens
from mainstem.catalog.stores.pointer_cache import PointerCache
from mainstem.catalog.stores.store import Pointer
from mainstem.doors.catalog.answers import Asked
from mainstem.doors.catalog.door import CatalogDoor, before
from mainstem.doors.catalog.loads import Line, Loads
from mainstem.doors.catalog.operations import OPERATIONS
from mainstem.model import UNNAMED, LogPosition
from mainstem.runtime.clock import ManualClock
from mainstem.wire import iceberg_rest as wire
from tests.contract.catalog_client import SCHEMA, STORES, open_store

TABLE = "/v1/namespaces/db/tables/t"
RENAME = {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "u"}}


@get("/v1/elsewhere")
async def elsewhere() -> str:
    return "the framework's"


@pytest.fixture(params=STORES)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    catalog = Catalog(store=open_store(request.param, tmp_path), warehouse=str(tmp_path / "warehouse"))
    async with _client_of(catalog) as made:
        yield made
    catalog.close()


def _client_of(catalog: Catalog) -> httpx.AsyncClient:
    catalog.create_namespace(["db"], {})
    app: Any = before(Litestar([elsewhere]), CatalogDoor(catalog))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://catalog")


async def make(client: httpx.AsyncClient) -> None:
    (await client.post("/v1/namespaces/db/tables", json={"name": "t", "schema": SCHEMA})).raise_for_status()


async def commit(client: httpx.AsyncClient, value: str) -> None:
    update = {"action": "set-properties", "updates": {"value": value}}
    (await client.post(TABLE, json={"requirements": [], "updates": [update]})).raise_for_status()


async def test_a_load_after_a_commit_shows_it(client: httpx.AsyncClient) -> None:
    await make(client)
    for number in range(5):
        await commit(client, str(number))
        answers = [await client.get(TABLE) for _ in range(3)]
        assert [answer.json()["metadata"]["properties"]["value"] for answer in answers] == [str(number)] * 3
        tags = {answer.headers["etag"] for answer in answers}
        assert len(tags) == 1
        again = await client.get(TABLE, headers={"If-None-Match": tags.pop()})
        assert (again.status_code, again.content) == (304, b"")


async def test_what_is_at_hand_goes_with_its_name(client: httpx.AsyncClient) -> None:
    await make(client)
    first = (await client.get(TABLE)).json()
    (await client.post("/v1/tables/rename", json=RENAME)).raise_for_status()
    assert (await client.get(TABLE)).status_code == 404
    await make(client)
    second = (await client.get(TABLE)).json()
    assert second["metadata"]["table-uuid"] != first["metadata"]["table-uuid"]
    assert (await client.get("/v1/namespaces/db/tables/u")).json()["metadata"] == first["metadata"]
    assert (await client.delete(TABLE)).status_code == 204
    assert (await client.get(TABLE)).status_code == 404


async def test_a_metadata_file_that_went_away_is_told(client: httpx.AsyncClient) -> None:
    await make(client)
    location = (await client.get(TABLE)).json()["metadata-location"]
    assert (await client.get(TABLE)).status_code == 200
    await asyncio.to_thread(Path(location).unlink)
    gone = await client.get(TABLE)
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "NotFoundException")


async def test_other_paths_below_the_prefix_are_the_frameworks(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/elsewhere")).text == "the framework's"
    assert (await client.get("/v1/config")).json()["endpoints"] == list(wire.ENDPOINTS)
    wrong = await client.get("/v1/namespaces/db/tables/t/nothing")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (404, "NotFoundException")


async def test_an_answer_at_hand_is_for_those_who_may_see_it(tmp_path: Path) -> None:
    tokens = Tokens({"me": "secret"}, "a key for the tokens of this very test", 3600, ManualClock())
    catalog = Catalog(store=open_store("sqlite", tmp_path), warehouse=str(tmp_path / "warehouse"), tokens=tokens)
    async with _client_of(catalog) as client:
        client.headers["Authorization"] = f"Bearer {tokens.issue('me', 'secret')}"
        await make(client)
        assert [(await client.get(TABLE)).status_code for _ in range(2)] == [200, 200]
        client.headers["Authorization"] = "Bearer none"
        assert (await client.get(TABLE)).status_code == 401
    catalog.close()


async def test_keys_are_only_in_the_answers_of_those_who_ask_for_them(tmp_path: Path) -> None:
    catalog = Catalog(
        store=open_store("sqlite", tmp_path), warehouse=str(tmp_path / "warehouse"), access=_AccessAsOnS3()
    )
    async with _client_of(catalog) as client:
        await make(client)
        asked = {"X-Iceberg-Access-Delegation": "vended-credentials"}
        for _ in range(2):
            with_keys = await client.get(TABLE, headers=asked)
            assert "storage-credentials" in with_keys.json()
            # They end by themselves: nobody may go on with the answer because the table is unchanged.
            assert "ETag" not in with_keys.headers
            without = await client.get(TABLE)
            assert "storage-credentials" not in without.json() and "ETag" in without.headers
    catalog.close()


class _AccessAsOnS3(Access):
    """Hands out keys for tables on the local disk too, which need none."""

    def grant(self, location: str, asked: str | None) -> Grant:
        keys = {"s3.access-key-id": "id", "s3.session-token-expires-at-ms": "1"}
        return Grant(keys, {location: keys}) if asked == "vended-credentials" else Grant()


def test_answers_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    catalog = Catalog(store=open_store("sqlite", tmp_path), warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace(["db"], {})
    create = Asked(wire.Call(wire.Operation.CREATE_TABLE, ("db",)), {}, {}, b"")
    asked = []
    for number in range(40):
        body = wire.encode({"name": f"t{number}", "schema": SCHEMA})
        OPERATIONS[wire.Operation.CREATE_TABLE](catalog, create._replace(body=body))
        asked.append(Asked(wire.Call(wire.Operation.LOAD_TABLE, ("db",), f"t{number}"), {}, {}, b""))
    answers = [OPERATIONS[wire.Operation.LOAD_TABLE](catalog, one) for one in asked]
    room = 20 * (len(answers[0].body) + 1024)
    loads = Loads(catalog, bytes_max=room)
    lines = [Line(f"/{number}".encode(), b"", b"") for number in range(40)]
    for line, one, answer in zip(lines, asked, answers, strict=True):
        loads.keep(line, one.ident, answer)
        assert loads.kept_bytes <= room
    assert loads.find(lines[0]) is None
    found = loads.find(lines[-1])
    assert found is not None
    assert found.body == answers[-1].body
    huge = answers[-1]._replace(body=b"x" * room)
    loads.keep(Line(b"/huge", b"", b""), asked[-1].ident, huge)
    assert loads.find(Line(b"/huge", b"", b"")) is None
    catalog.close()


def _pointer(number: int) -> Pointer:
    return Pointer(f"/m/{number}", "/m", None, {UNNAMED: LogPosition(number)})


def test_a_reader_that_is_overtaken_by_a_writer_remembers_nothing() -> None:
    ident = TableIdent(("db",), "t")
    current = [_pointer(0)]
    overtake: list[Callable[[], None]] = []

    def read(_: TableIdent) -> Pointer:
        found = current[0]
        # Between the read and its return.
        for happens in overtake:
            happens()
        return found

    pointers = PointerCache(read)

    def write() -> None:
        overtake.clear()
        current[0] = _pointer(1)
        pointers.forget([ident])

    overtake.append(write)
    assert pointers.find(ident) == _pointer(0)
    assert pointers.find(ident) == _pointer(1)


def test_readers_see_each_write_that_was_answered() -> None:
    ident = TableIdent(("db",), "t")
    current = [0]
    pointers = PointerCache(lambda _: _pointer(current[0]))
    answered, stop, behind = [0], threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            least = answered[0]
            found = pointers.find(ident)
            if found is None or found.marks[UNNAMED] < least:
                behind.append((least, found))

    readers = [threading.Thread(target=look) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(1, 5_000):
        current[0] = number
        pointers.forget([ident])
        answered[0] = number
    stop.set()
    for reader in readers:
        reader.join()
    assert behind == []
