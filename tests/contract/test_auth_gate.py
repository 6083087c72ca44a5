"""No path answers without a token, and a token for one namespace sees nothing of another."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from litestar.routes import ASGIRoute, HTTPRoute, WebSocketRoute

from mainstem.app.gateway import Gateway
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient, insert
from mainstem.model import Denied
from mainstem.wire import iceberg_rest
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (gateway, ws_url):
        yield gateway, ws_url


def http_url(ws_url: str) -> str:
    return ws_url.replace("ws://", "http://").removesuffix("/ws")


def every_request(gateway: Gateway) -> list[tuple[str, str]]:
    """A method and a path for every route there is, the catalog's and the documentation's included."""
    found: list[tuple[str, str]] = []
    for route in gateway.routes().routes:
        path = route.path_format.replace("{", "").replace("}", "").replace(":path", "").replace(":str", "")
        if isinstance(route, HTTPRoute):
            found += [(method, path) for method in route.methods]
        elif isinstance(route, ASGIRoute):
            found.append(("GET", path))
    for endpoint in ("GET /v1/config", "POST /v1/oauth/tokens", *iceberg_rest.ENDPOINTS):
        method, path = endpoint.replace("/{prefix}", "").split(" ")
        found.append((method, path.replace("{", "").replace("}", "")))
    return found


WITHOUT = {
    "none": {},
    "nonsense": bearer("nonsense"),
    "expired": bearer(token(lifetime_s=-600)),
    "basic": {"Authorization": "Basic YTpi"},
    "cookie": {"Cookie": "mainstem_token=nonsense"},
}


async def test_no_path_answers_without_a_token(secured: tuple[Gateway, str]) -> None:
    gateway, ws_url = secured
    requests = [*every_request(gateway), ("GET", "/nowhere"), ("GET", "/"), ("OPTIONS", "/status"), ("GET", "//status")]
    sockets = [route.path for route in gateway.routes().routes if isinstance(route, WebSocketRoute)]
    assert len(requests) > 40
    assert {"/health", "/status", "/metrics", "/schema"} <= {path for _, path in requests}
    assert "/ws" in sockets
    for kind, headers in WITHOUT.items():
        # Without any token every path is tried; what is wrong with a token does not depend on the path.
        asked = requests if kind == "none" else requests[-4:] + requests[::10]
        async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=headers) as http:
            for method, path in asked:
                answer = await http.request(method, path)
                if kind in ("none", "basic") and path == "/health" and method in ("GET", "HEAD"):
                    # A probe has no token: it is told that the server is up, and nothing else.
                    assert answer.status_code == 200 and answer.content in (b"", b'{"status":"ok"}')
                    continue
                assert answer.status_code == 401, (method, path)
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                assert method == "HEAD" or set(answer.json()) == {"error"}
        for path in [*sockets, "/nowhere", "/v1/namespaces"]:
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(ws_url.removesuffix("/ws") + path, additional_headers=headers)
            assert refused.value.response.status_code == 401
    assert gateway.refused["token_missing"] >= len(requests) - 2
    assert gateway.refused["token_invalid"] and gateway.refused["token_expired"]


async def test_a_page_of_another_origin_may_ask_whether_it_may_ask(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    preflight = {"Origin": "http://app.example", "Access-Control-Request-Method": "POST"}
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=preflight) as http:
        answer = await http.options("/sync/g/push")
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await http.options("/status")).status_code == 401
        refused = await http.post("/sync/g/push")
        assert refused.status_code == 401
        assert refused.headers["Access-Control-Allow-Origin"] == "*"


async def test_a_sync_client_reaches_its_own_gateway_only(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    tokens = {
        "own": token("client", [], gw="g", sub="c"),
        "other": token("client", [], gw="h", sub="c"),
        "admin of sales": token("admin", "sales", sub="c"),
        "admin of its gateway": token("admin", [], gw="g", sub="c"),
        "admin": token("admin", sub="c"),
    }
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        codes = {
            name: (await http.get("/sync/g/pull?since=0&clientId=c", headers=bearer(text))).status_code
            for name, text in tokens.items()
        }
    assert codes == {"own": 200, "other": 403, "admin of sales": 403, "admin of its gateway": 200, "admin": 200}


async def test_an_admin_of_everything_reaches_every_path(secured: tuple[Gateway, str]) -> None:
    gateway, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http:
        for method, path in every_request(gateway):
            # Some wait for work unless they are told not to.
            answer = await http.request(method, path, params={"waitS": "0"})
            assert answer.status_code not in (401, 403), (method, path)
    async with websockets.connect(f"{ws_url}?access_token={token()}"):
        pass


async def test_a_route_that_says_nothing_is_for_the_admin_of_everything(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    report = {"state": "running"}
    for text in (token("admin", "sales"), token("writer"), token("admin", tables=["orders"])):
        async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(text)) as http:
            assert (await http.post("/v1/pipeline/report", json=report)).status_code == 403
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http:
        assert (await http.post("/v1/pipeline/report", json=report)).status_code == 204


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("client", set()),
        ("reader", {"status", "query", "list"}),
        ("writer", {"status", "query", "list", "flush", "make"}),
    ],
)
async def test_roles(secured: tuple[Gateway, str], role: str, allowed: set[str]) -> None:
    _, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token(role))) as http:
        assert (await http.get("/health")).status_code == 200
        answers = {
            "status": await http.get("/status"),
            "query": await http.post("/v1/query", json={"sql": "SELECT 1"}),
            "list": await http.get("/v1/namespaces"),
            "flush": await http.post("/flush?timeoutS=0.1"),
            "make": await http.post("/v1/namespaces", json={"namespace": ["n"]}),
        }
    assert {name for name, answer in answers.items() if answer.status_code != 403} == allowed


async def make_tables(http: httpx.AsyncClient) -> None:
    for namespace, table in (("sales", "orders"), ("sales", "items"), ("secret", "plans")):
        await http.post("/v1/namespaces", json={"namespace": [namespace]})
        body = {"name": table, "schema": SCHEMA}
        assert (await http.post(f"/v1/namespaces/{namespace}/tables", json=body)).status_code == 200


async def test_a_namespace_sees_nothing_of_another_in_the_catalog(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http:
        await make_tables(http)
        plans = (await http.get("/v1/namespaces/secret/tables/plans")).json()
    admin_of_sales = bearer(token("admin", "sales"))
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=admin_of_sales) as http:
        assert (await http.get("/v1/namespaces")).json()["namespaces"] == [["sales"]]
        assert len((await http.get("/v1/namespaces/sales/tables")).json()["identifiers"]) == 2
        assert (await http.get("/v1/namespaces/sales/tables/orders")).status_code == 200
        rename = {
            "source": {"namespace": ["secret"], "name": "plans"},
            "destination": {"namespace": ["sales"], "name": "plans"},
        }
        away = {"source": rename["destination"] | {"name": "orders"}, "destination": rename["source"]}
        commit = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        change = {**commit, "identifier": {"namespace": ["secret"], "name": "plans"}}
        location = plans["metadata"]["location"]
        elsewhere = {"requirements": [], "updates": [{"action": "set-location", "location": location}]}
        attempts: list[tuple[str, str, Any]] = [
            ("GET", "/v1/namespaces?parent=secret", None),
            ("GET", "/v1/namespaces/secret", None),
            ("HEAD", "/v1/namespaces/secret", None),
            ("DELETE", "/v1/namespaces/secret", None),
            ("POST", "/v1/namespaces/secret/properties", {"updates": {"a": "b"}}),
            ("POST", "/v1/namespaces", {"namespace": ["secret", "below"]}),
            ("GET", "/v1/namespaces/secret/tables", None),
            ("POST", "/v1/namespaces/secret/tables", {"name": "t", "schema": SCHEMA}),
            ("GET", "/v1/namespaces/secret/tables/plans", None),
            ("HEAD", "/v1/namespaces/secret/tables/plans", None),
            ("POST", "/v1/namespaces/secret/tables/plans", commit),
            ("POST", "/v1/namespaces/secret/tables/plans/plan", {}),
            ("GET", "/v1/namespaces/secret/tables/plans/credentials", None),
            ("DELETE", "/v1/namespaces/secret/tables/plans?purgeRequested=true", None),
            ("GET", "/v1/namespaces/secret/views", None),
            ("POST", "/v1/tables/rename", rename),
            ("POST", "/v1/tables/rename", away),
            ("POST", "/v1/transactions/commit", {"table-changes": [change]}),
            # The files of another's table, through a table of one's own.
            ("POST", "/v1/namespaces/sales/register", {"name": "r", "metadata-location": plans["metadata-location"]}),
            ("POST", "/v1/namespaces/sales/tables", {"name": "t", "schema": SCHEMA, "location": location}),
            ("POST", "/v1/namespaces/sales/tables/orders", elsewhere),
        ]
        for method, path, body in attempts:
            answer = await http.request(method, path, json=body)
            assert answer.status_code in (403, 404), (method, path, answer.text)
        # What is one's own goes on as ever.
        assert (await http.post("/v1/namespaces/sales/tables/orders", json=commit)).status_code == 200
        made = await http.post("/v1/namespaces", json={"namespace": ["sales", "eu"]})
        assert made.status_code == 200
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http:
        unchanged = (await http.get("/v1/namespaces/secret/tables/plans")).json()
    assert unchanged["metadata-location"] == plans["metadata-location"]


async def test_a_token_for_some_tables_sees_those(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http:
        await make_tables(http)
    orders_only = bearer(token("reader", "sales", tables=["orders"]))
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=orders_only) as http:
        found = (await http.get("/v1/namespaces/sales/tables")).json()["identifiers"]
        assert [entry["name"] for entry in found] == ["orders"]
        assert (await http.get("/v1/namespaces/sales/tables/items")).status_code == 404


async def test_a_namespace_sees_nothing_of_another_in_sql_and_status(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with CdcClient(ws_url, source="all", token=token("writer")) as client:
        receipt = await client.send([insert("sales.orders", "1", {"a": 1}), insert("secret.plans", "1", {"a": 2})])
        await receipt.durable()
    everything = bearer(token("reader"))
    sales = bearer(token("writer", "sales"))
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        # Sealed, so that the tables are known; there is no pipeline here to carry them.
        assert (await http.post("/flush?timeoutS=0.1", headers=bearer(token()))).status_code == 504

        async def names(headers: dict[str, str]) -> set[str]:
            return set((await http.get("/status", headers=headers)).json()["tables"])

        assert await names(everything) == {"sales.orders", "secret.plans"}
        assert await names(sales) == {"sales.orders"}
        assert set((await http.post("/flush?timeoutS=0.1", headers=sales)).json()["tables"]) == {"sales.orders"}
        assert "secret" in (await http.get("/metrics", headers=everything)).text
        assert "secret" not in (await http.get("/metrics", headers=sales)).text

        async def count(table: str, headers: dict[str, str]) -> Any:
            body = {"sql": f"SELECT sum(a) FROM {table}", "freshness": "latest"}
            answer = await http.post("/v1/query", json=body, headers=headers)
            return answer.json()["rows"][0][0] if answer.status_code == 200 else answer.status_code

        assert await count("secret.plans", everything) == 2
        assert await count("secret.plans", sales) == 404
        assert await count("sales.orders", sales) == 1
        for path in ("/v1/query/plan", "/v1/query/route"):
            answer = await http.post(path, json={"sql": "SELECT * FROM secret.plans"}, headers=sales)
            assert answer.status_code == 404
            assert "does not exist" in answer.text


async def test_a_batch_for_another_namespace_is_refused_and_moves_nothing(secured: tuple[Gateway, str]) -> None:
    gateway, ws_url = secured
    async with websockets.connect(ws_url, additional_headers=bearer(token("writer", "sales"))) as socket:

        async def send(sequence: int, *tables: str) -> Any:
            events = [
                {"sequence": 1, "timestamp": 1, "operation": "INSERT", "table": t, "rowId": "1", "after": {}}
                for t in tables
            ]
            batch = {"type": "cdc_batch", "sourceDoId": "db", "events": events, "sequenceNumber": sequence}
            await socket.send(json.dumps({**batch, "timestamp": 1}))
            return json.loads(await socket.recv())

        refused = await send(1, "sales.orders", "secret.plans")
        assert (refused["type"], refused["shouldRetry"]) == ("nack", False)
        assert "secret.plans" in refused["errorMessage"]
        assert (await send(1, "sales.orders"))["type"] == "ack"
    status = gateway.status()
    assert status.log.durable == 1


async def test_tenants_have_sources_of_their_own(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with CdcClient(ws_url, source="db", token=token("writer", "sales")) as client:
        for number in range(5):
            await (await client.send([insert("sales.orders", str(number), {"a": 1})])).durable()
    async with CdcClient(ws_url, source="db", token=token("writer", "other")) as client:
        # A shared source would have been told to go on from 6, and a batch 1 would have been a duplicate.
        receipt = await client.send([insert("other.t", "1", {"a": 1})])
        assert receipt.sequence == 1
        assert not (await receipt.durable()).duplicate


async def test_a_tenant_may_be_called_as_a_door_is_and_one_of_some_tables_uses_up_no_numbers_of_others(
    secured: tuple[Gateway, str],
) -> None:
    _, ws_url = secured
    tenants: dict[str, dict[str, Any]] = {
        "default.t": {},
        "kafka.t": {"namespace": "kafka"},
        "http.t": {"namespace": "http"},
        "default.mine": {"namespace": "*", "tables": ["mine"]},
    }
    for table, claims in tenants.items():
        async with CdcClient(ws_url, source="db", token=token("writer", **claims)) as client:
            receipt = await client.send([insert(table, "1", {"a": 1})])
            assert (receipt.sequence, (await receipt.durable()).duplicate) == (1, False), table


async def test_a_reader_cannot_open_the_producers_door(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    with pytest.raises(websockets.WebSocketException):
        async with websockets.connect(ws_url, additional_headers=bearer(token("reader"))) as socket:
            await socket.recv()
    with pytest.raises(Denied):
        async with CdcClient(ws_url, source="s", token="nonsense"):
            pass


async def test_a_connection_ends_with_its_token(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    # The leeway lets an expired token in for a moment; its connection is closed at once.
    async with websockets.connect(ws_url, additional_headers=bearer(token(lifetime_s=-1))) as socket:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 60)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "token_expired")


async def test_a_cookie_counts_for_the_servers_own_pages_only(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    url = http_url(ws_url)
    cookie = {"Cookie": f"mainstem_token={token()}"}
    async with httpx.AsyncClient(timeout=60, base_url=url, headers=cookie) as http:
        assert (await http.get("/status")).status_code == 200
        assert (await http.post("/flush?timeoutS=0.1", headers={"Origin": url})).status_code == 200
        for foreign in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await http.post("/flush?timeoutS=0.1", headers=foreign)).status_code == 401
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(ws_url, additional_headers=cookie, origin=websockets.Origin("http://evil.example"))


async def test_without_tokens_a_page_from_elsewhere_cannot_ask_in_somebodys_name(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        for origin, code in (
            ("http://evil.example", 401),
            ("null", 401),
            (http_url(ws_url), 200),
            ("http://localhost:3000", 200),
        ):
            assert (await http.post("/flush?timeoutS=0.1", headers={"Origin": origin})).status_code == code, origin
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(ws_url, origin=websockets.Origin("http://evil.example"))
        # An application in a browser syncs with whatever serves it.
        pulled = await http.get("/sync/g/pull?since=0&clientId=c", headers={"Origin": "http://app.example"})
        assert pulled.status_code == 200


async def test_tokens_that_the_catalog_gave_out_open_the_catalog_and_nothing_else(tmp_path: Path) -> None:
    from msgspec.structs import replace

    config = replace(SECURED, catalog=CatalogSettings(clients={"spark": "hush"}))
    async with (
        gateway_on_socket(tmp_path, gateway_config=config) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        form = {"grant_type": "client_credentials", "client_id": "spark", "client_secret": "hush"}
        given = (await http.post("/v1/oauth/tokens", data=form)).json()["access_token"]
        assert (await http.post("/v1/oauth/tokens", data={**form, "client_secret": "x"})).status_code == 401
        assert (await http.get("/v1/namespaces", headers=bearer(given))).status_code == 200
        assert (await http.get("/v1/namespaces")).status_code == 401
        for path in ("/status", "/metrics", "/health", "/schema"):
            assert (await http.get(path, headers=bearer(given))).status_code == 401
        assert (await http.get("/v1/namespaces", headers=bearer(token()))).status_code == 200


async def test_on_loopback_nobody_needs_a_token_and_the_catalogs_clients_still_do(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from mainstem.admission import AuthSettings

    config = replace(SECURED, auth=AuthSettings(), catalog=CatalogSettings(clients={"spark": "hush"}))
    async with (
        gateway_on_socket(tmp_path, gateway_config=config) as (gateway, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        assert (await http.get("/status")).status_code == 200
        assert (await http.get("/v1/namespaces")).status_code == 401
        own = gateway.authenticator.internal_token("pipeline")
        assert (await http.get("/v1/namespaces", headers=bearer(own))).status_code == 200
