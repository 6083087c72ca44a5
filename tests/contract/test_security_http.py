"""The rules of the doors that speak HTTP, as tables: who may, on which path, by which token, Host and Origin.

Every table is tried cell by cell on a real socket. A rule that is not in a table here is not a rule.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import websockets

from mainstem.admission import AuthSettings, RateSettings
from mainstem.admission.keys import new_secret, secret_key, sign
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.gateway import Gateway
from mainstem.app.process import ServerProcess
from mainstem.client.sync.transports.websocket import close_error
from mainstem.model import Denied
from mainstem.runtime.children import python_module
from mainstem.runtime.clock import SystemClock
from mainstem.runtime.logs import redacted
from mainstem.wire import sync
from tests.contract.auth_tokens import AUTH, SECURED, bearer, token
from tests.contract.test_auth_gate import every_request, http_url
from tests.harness.inprocess import CONFIG, gateway_on_socket

EVIL = "evil.example"
MEGABYTE = 1024 * 1024
SYNC = [("POST", "/sync/g/push"), ("GET", "/sync/g/pull"), ("GET", "/sync/g/checkpoint"), ("GET", "/v1/sync/g/pull")]
ADMIN = [
    ("POST", "/admin/flush/g"),
    ("GET", "/admin/schema/g"),
    ("POST", "/admin/schema/g"),
    ("GET", "/admin/rules/g"),
    ("POST", "/admin/rules/g"),
    ("GET", "/v1/admin/rules/g"),
    ("GET", "/v1/pipeline/checkpoints"),
]
SOCKETS = ["/ws", "/lakehouse", "/sync/g/ws", "/v1/sync/g/ws"]


@pytest.fixture
async def open_server(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    """Nobody is asked for a token: on loopback."""
    async with gateway_on_socket(tmp_path) as found:
        yield found


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as found:
        yield found


async def status_of(http: httpx.AsyncClient, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
    # Some wait for work unless they are told not to.
    return await http.request(method, path, params={"waitS": "0", "timeoutS": "0.1"}, headers=dict(headers))


async def handshake(url: str, headers: Mapping[str, str], **more: Any) -> int:
    """The status that a handshake gets."""
    try:
        async with websockets.connect(url, additional_headers=dict(headers), **more):
            return 101
    except websockets.InvalidStatus as error:
        return error.response.status_code


# Item 15: Host and Origin


class HostRule(NamedTuple):
    """What becomes of a request with this Host, where nobody is asked for a token; `{port}` is the server's."""

    host: str
    may: bool


HOSTS = [
    HostRule("127.0.0.1:{port}", True),
    HostRule("localhost:{port}", True),
    HostRule("LOCALHOST.:{port}", True),
    HostRule("app.localhost:{port}", True),
    HostRule("[::1]:{port}", True),
    # An address cannot be rebound.
    HostRule("192.168.7.7:{port}", True),
    HostRule("evil.example:{port}", False),
    HostRule("evil.example", False),
    HostRule("localhost.evil.example:{port}", False),
    HostRule("127.0.0.1.evil.example", False),
    HostRule("localhost@evil.example", False),
    HostRule("evil.example#localhost", False),
    HostRule("[::1", False),
    HostRule("", False),
]


async def test_without_tokens_every_path_looks_at_the_host(open_server: tuple[Gateway, str]) -> None:
    gateway, ws_url = open_server
    port = ws_url.split(":")[2].split("/")[0]
    requests = [*every_request(gateway), *SYNC, *ADMIN, ("GET", "/nowhere"), ("OPTIONS", "/sync/g/push")]
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for rule in HOSTS:
            host = {"Host": rule.host.format(port=port)}
            # What is refused is refused everywhere; what is let in is tried where that does nothing.
            asked = [("GET", "/health"), ("GET", "/sync/g/pull")] if rule.may else requests
            # All paths by one name, and by the others some: what is wrong with a name does not depend on the path.
            asked = asked if rule.may or rule.host == EVIL else asked[::9]
            for method, path in asked:
                answer = await status_of(http, method, path, host)
                assert (answer.status_code != 401) == rule.may, (rule, method, path)
                if not rule.may:
                    assert "access-control-allow-origin" not in answer.headers
                    assert method == "HEAD" or answer.json()["error"]["reason"] == "foreign_host"
    assert gateway.refused["foreign_host"] > len(requests)
    for path in SOCKETS:
        for name, status in (("localhost", 101), (EVIL, 401)):
            assert await raw_handshake(int(port), path, f"{name}:{port}") == status, (path, name)


async def raw_handshake(port: int, path: str, *hosts: str, origin: str = "") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *([f"Origin: {origin}"] if origin else [])]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    first = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return int(first.split()[1])


async def test_two_names_are_none(open_server: tuple[Gateway, str]) -> None:
    _, ws_url = open_server
    port = int(ws_url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: {EVIL}\r\n\r\n".encode())
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


class OriginRule(NamedTuple):
    """What becomes of a request that says this of the page it comes from."""

    headers: Mapping[str, str]
    may_elsewhere: bool
    may_sync: bool = True


ORIGINS = [
    OriginRule({}, True),
    OriginRule({"Origin": "http://localhost:3000"}, True),
    OriginRule({"Origin": "http://127.0.0.1:3000"}, True),
    OriginRule({"Origin": "https://[::1]:3000"}, True),
    OriginRule({"Origin": f"http://{EVIL}"}, False),
    OriginRule({"Origin": f"https://{EVIL}:8181"}, False),
    OriginRule({"Origin": "http://localhost.evil.example"}, False),
    OriginRule({"Origin": "null"}, False),
    OriginRule({"Origin": "file://"}, False),
    OriginRule({"Origin": "chrome-extension://abc"}, False),
    OriginRule({"Origin": "http://["}, False),
    OriginRule({"Sec-Fetch-Site": "none"}, True),
    OriginRule({"Sec-Fetch-Site": "same-origin"}, True),
    OriginRule({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
]


async def test_without_tokens_only_sync_is_for_pages_of_other_origins(open_server: tuple[Gateway, str]) -> None:
    gateway, ws_url = open_server
    requests = [*every_request(gateway), *ADMIN, ("GET", "/nowhere"), ("OPTIONS", "/admin/rules/g")]
    quiet = [("GET", "/health"), ("GET", "/v1/config"), ("GET", "/admin/rules/g")]
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for rule in ORIGINS:
            # All paths by one page, and by the others some: what is wrong with a page does not depend on the path.
            tried = requests if rule.headers.get("Origin") == f"http://{EVIL}" else requests[::9]
            for method, path in quiet if rule.may_elsewhere else tried:
                answer = await status_of(http, method, path, rule.headers)
                assert (answer.status_code != 401) == rule.may_elsewhere, (rule, method, path)
                assert "access-control-allow-origin" not in answer.headers, (method, path)
                if not rule.may_elsewhere and method != "HEAD":
                    assert answer.json()["error"]["reason"] == "foreign_origin"
            answer = await status_of(http, "GET", "/sync/g/pull", rule.headers)
            assert (answer.status_code == 200) == rule.may_sync, rule
            assert answer.headers["access-control-allow-origin"] == "*"
    port = int(ws_url.split(":")[2].split("/")[0])
    for path in SOCKETS:
        for rule in ORIGINS:
            origin = rule.headers.get("Origin", "")
            may = rule.may_sync if "/sync/" in path else rule.may_elsewhere
            if origin or not rule.headers:
                status = await raw_handshake(port, path, f"localhost:{port}", origin=origin)
                assert (status == 101) == may, (path, rule)


async def test_a_link_to_the_console_works_and_a_link_to_the_api_does_not(open_server: tuple[Gateway, str]) -> None:
    _, ws_url = open_server
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=link) as http:
        links = {"/health": True, "/": True, "/v1/pipeline/queries?waitS=0": False, "/v1/config": False}
        for path, may in links.items():
            assert ((await http.get(path)).status_code != 401) == may, path


async def test_a_page_whose_name_was_rebound_reaches_nothing(open_server: tuple[Gateway, str]) -> None:
    _, ws_url = open_server
    port = ws_url.split(":")[2].split("/")[0]
    # To the browser it is the page's own origin: Host and Origin agree.
    page = {"Host": f"{EVIL}:{port}", "Origin": f"http://{EVIL}:{port}", "Sec-Fetch-Site": "same-origin"}
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=page) as http:
        for method, path, body in (
            ("POST", "/v1/query", {"sql": "SELECT 1"}),
            ("GET", "/status", None),
            ("PATCH", "/v1/config", {"log": {"flushEvents": 1}}),
            ("GET", "/sync/g/pull", None),
            ("POST", "/admin/flush/g", None),
        ):
            assert (await http.request(method, path, json=body)).status_code == 401, path


@pytest.mark.parametrize(
    ("auth", "hosts", "host", "may"),
    [
        (AUTH, (), EVIL, True),
        (AUTH, ("lake.example",), "lake.example:8181", True),
        (AUTH, ("lake.example",), "localhost", True),
        (AUTH, ("lake.example",), EVIL, False),
        (AuthSettings(), ("Lake.Example",), "lake.example", True),
        (AuthSettings(), ("lake.example",), EVIL, False),
        (AuthSettings(), (), "lake.example", False),
    ],
)
async def test_names_of_the_server_can_be_set(
    tmp_path: Path, auth: AuthSettings, hosts: tuple[str, ...], host: str, may: bool
) -> None:
    config = msgspec.structs.replace(SECURED, auth=auth, server=ServerConfig(port=0, hosts=hosts))
    async with (
        gateway_on_socket(tmp_path, gateway_config=config) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url), headers=bearer(token())) as http,
    ):
        answer = await http.get("/status", headers={"Host": host})
        assert answer.status_code == (200 if may else 401)


# Item 16: what a token opens, and for how long


TOKENS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "client": {"role": "client", "namespace": [], "gw": "g"},
    "reader": {"role": "reader"},
    "writer": {"role": "writer"},
    "admin of sales": {"role": "admin", "namespace": "sales"},
    "admin of some tables": {"role": "admin", "tables": ["orders"]},
    "admin of a gateway": {"role": "admin", "namespace": [], "gw": "g"},
    "admin of everything but bound to a gateway": {"role": "admin", "gw": "g"},
    "admin": {"role": "admin"},
}
ORDERS = {"none": 401, "admin": 200}
HANDSHAKES: dict[str, dict[str, int]] = {
    # Without `gw` an admin reaches the gateways of its namespaces, and there the tables that the token is for.
    "/sync/g/ws": {
        "none": 401,
        "client": 101,
        "admin of some tables": 101,
        "admin of a gateway": 101,
        "admin of everything but bound to a gateway": 101,
        "admin": 101,
    },
    "/sync/other/ws": {"none": 401, "admin": 101, "admin of some tables": 101},
}


def headers_of(claims: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if claims is None else bearer(token(**claims))


async def test_the_orders_of_the_pipeline_are_for_an_admin_of_everything(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for name, claims in TOKENS.items():
            answer = await http.get("/v1/pipeline/checkpoints", headers=headers_of(claims))
            assert answer.status_code == ORDERS.get(name, 403), name


async def test_a_sync_socket_is_refused_before_there_is_one(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    for path, expected in HANDSHAKES.items():
        for name, claims in TOKENS.items():
            url = ws_url.removesuffix("/ws") + path
            assert await handshake(url, headers_of(claims)) == expected.get(name, 403), (path, name)


class Kept(NamedTuple):
    """A door that keeps connections open."""

    path: str
    send: Callable[[Any, int], Awaitable[None]]
    reason: str


async def send_batch(socket: Any, number: int) -> None:
    event = {"sequence": 1, "timestamp": 1, "operation": "INSERT", "table": "g.t", "rowId": "1", "after": {}}
    batch = {"type": "cdc_batch", "sourceDoId": "db", "events": [event], "sequenceNumber": number, "timestamp": 1}
    await socket.send(json.dumps(batch))


async def send_pull(socket: Any, number: int) -> None:
    del number
    await socket.send(sync.encode_request(sync.SyncPull(client_id="c")))


KEPT = [Kept("/ws", send_batch, "token_invalid"), Kept("/sync/g/ws", send_pull, "denied cause=token_invalid")]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.path)
async def test_an_open_socket_ends_with_the_key_of_its_token(tmp_path: Path, kept: Kept) -> None:
    import base64

    secret = new_secret()
    encoded = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    jwks = tmp_path / "keys.json"

    def write(*kids: str) -> None:
        keys = [{"kty": "oct", "kid": kid, "alg": "HS256", "k": encoded} for kid in kids]
        jwks.with_suffix(".new").write_text(json.dumps({"keys": keys}))
        jwks.with_suffix(".new").replace(jwks)

    write("old", "kept")
    claims = {"sub": "c", "role": "admin", "namespace": "*", "exp": SystemClock().now_ms() // 1000 + 600}
    config = msgspec.structs.replace(SECURED, auth=AuthSettings(jwks_file=str(jwks)))
    async with gateway_on_socket(tmp_path / "data", gateway_config=config) as (gateway, ws_url):
        url = ws_url.removesuffix("/ws") + kept.path
        old, good = (bearer(sign(claims, secret_key(kid, secret))) for kid in ("old", "kept"))
        async with (
            websockets.connect(url, additional_headers=old) as ending,
            websockets.connect(url, additional_headers=good) as staying,
        ):
            for socket in (ending, staying):
                await kept.send(socket, 1 if socket is ending else 2)
                await socket.recv()
            write("kept")
            # The guide's promise.
            async with asyncio.timeout(30):
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    while True:
                        await ending.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, kept.reason)
            # To a client of the sync door its token is wrong, and not what it pushed last.
            assert kept.path == "/ws" or isinstance(close_error(1008, kept.reason), Denied)
            durable = gateway.status().log.durable
            with pytest.raises(websockets.ConnectionClosed):
                await kept.send(ending, 9)
            await kept.send(staying, 3)
            await staying.recv()
            assert gateway.status().log.durable - durable <= (1 if kept.path == "/ws" else 0)


async def test_what_a_client_sends_after_its_end_moves_nothing(tmp_path: Path) -> None:
    """A client that does not answer the close, and goes on sending."""
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (gateway, ws_url):
        # The leeway lets an expired token in for a moment; its connection is closed at once.
        async with websockets.connect(ws_url, additional_headers=bearer(token(lifetime_s=-1))) as socket:
            for number in range(1, 200):
                try:
                    await send_batch(socket, number)
                except websockets.ConnectionClosed:
                    break
            await socket.wait_closed()
            sent = gateway.status().log.durable
        assert gateway.status().log.durable == sent
        assert sent < 199


@pytest.mark.parametrize(
    "line",
    [
        '127.0.0.1:1 - "WebSocket /ws?access_token={token}" [accepted]',
        "GET /sync/g/ws?token={token}&clientId=a HTTP/1.1",
        "authorization: Bearer {token}",
        "Sec-WebSocket-Protocol: lakesync.v1, bearer.{token}",
        "cookie: mainstem_token={token}; a=b",
        "grant_type=client_credentials&client_secret={token}",
    ],
)
def test_no_line_of_the_log_has_a_token(line: str) -> None:
    secret = token()
    shown = redacted(line.format(token=secret))
    assert secret not in shown
    assert secret.split(".")[2] not in shown
    assert shown.partition("***")[0] == line.partition("{token}")[0]


def test_the_log_keeps_what_is_no_token() -> None:
    line = "no token. expected=Authorization: Bearer got=none"
    assert redacted(line) == line


@pytest.mark.parametrize("form", ["text", "json"])
async def test_tokens_do_not_stand_in_the_servers_log(tmp_path: Path, form: Any) -> None:
    from mainstem.app.config import LoggingConfig

    config = msgspec.structs.replace(SECURED, logging=LoggingConfig(format=form, level="DEBUG"))
    good, bad = token("admin", gw="g", sub="c"), token("admin", lifetime_s=-900)
    async with ServerProcess(tmp_path, config, token=token()) as server:
        base = server.url.replace("http", "ws", 1)
        for path in ("/ws", "/sync/g/ws"):
            for name in ("access_token", "token"):
                assert await handshake(f"{base}{path}?{name}={good}", {}) == 101
                assert await handshake(f"{base}{path}?{name}={bad}", {}) == 401
        protocols = [websockets.Subprotocol("lakesync.v1"), websockets.Subprotocol(f"bearer.{good}")]
        assert await handshake(f"{base}/sync/g/ws", {}, subprotocols=protocols) == 101
        async with httpx.AsyncClient(timeout=60, base_url=server.url) as http:
            assert (await http.get("/status", headers=bearer(good))).status_code == 200
            assert (await http.get("/nowhere", headers=bearer(bad))).status_code == 401
        overview = await server.status()
    log = (tmp_path / "gateway.log").read_text()
    assert "/ws?access_token=***" in log
    for each in (good, bad):
        # The signature alone would be enough for nobody, and the rest says whose it is.
        for part in each.split("."):
            assert part not in log
            assert part not in json.dumps(overview)


# Item 13: queries


QUERIES = [
    # (statement, its status): named refusals of the statement, of its memory and of its time.
    ("SELECT 42", 200),
    ("SELECT list_sort(range(300000000))", 400),
    ("SELECT max(len(list_transform(range(200000000), x -> x * 2)))", 400),
    ("SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))", 504),
    ("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 7 = 3", 504),
    ("SELECT * FROM '/etc/passwd'", 404),
    ("SELECT * FROM read_text('/etc/passwd')", 403),
    ("COPY (SELECT 1) TO '/tmp/x'", 403),
    ("SELECT getenv('HOME')", 403),
]


async def test_no_query_harms_the_gateway(open_server: tuple[Gateway, str]) -> None:
    gateway, ws_url = open_server
    async with httpx.AsyncClient(timeout=120, base_url=http_url(ws_url)) as http:
        await http.post("/v1/query", json={"sql": "SELECT 1"})
        before = gateway.status().gateway.rss_bytes
        for sql, status in QUERIES:
            # Where a statement would run is asked of the same plan.
            for path in ("/v1/query", "/v1/query/plan", *(("/v1/query/route",) if status != 504 else ())):
                body = {"sql": sql, "timeoutMs": 2000} if path == "/v1/query" else {"sql": sql}
                answer = await http.post(path, json=body)
                # To plan is not to run: what is too large to run may be planned.
                allowed = (status,) if path == "/v1/query" else (200, status)
                assert answer.status_code in allowed, (path, sql, answer.text)
            assert (await http.post("/v1/query", json={"sql": "SELECT 42"})).json()["rows"] == [[42]]
        assert gateway.status().gateway.rss_bytes - before < 128 * MEGABYTE


# Item 23: what was refused can be seen


async def scraped(http: httpx.AsyncClient, headers: Mapping[str, str]) -> dict[str, float]:
    lines = (await http.get("/metrics", headers=dict(headers))).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def test_limits_and_refusals_are_in_the_metrics(tmp_path: Path) -> None:
    limits = RateSettings(exempt=(), requests_per_s=5, connections_per_address=2, connections_per_s=1000)
    config = msgspec.structs.replace(SECURED, limits=limits)
    far = {"X-Forwarded-For": "203.0.113.9"}
    async with (
        gateway_on_socket(tmp_path, gateway_config=config) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        admin = bearer(token())
        before = await scraped(http, admin)
        assert before['mainstem_rate_limit{limit="requests_per_s"}'] == 5
        assert before['mainstem_rate_limited_total{limit="requests_per_s"}'] == 0
        codes = [(await http.get("/health", headers={**admin, **far})).status_code for _ in range(12)]
        assert codes.count(429) > 0
        assert (await http.get("/status")).status_code == 401
        assert (await http.post("/flush", headers=bearer(token("reader")))).status_code == 403
        kept = [await websockets.connect(ws_url, additional_headers={**admin, **far}) for _ in range(2)]
        async with websockets.connect(ws_url, additional_headers={**admin, **far}) as third:
            assert json.loads(await third.recv())["reason"] == "ip_limit"
        for socket in kept:
            await socket.close()
        after = await scraped(http, admin)
        assert after['mainstem_rate_limited_total{limit="requests_per_s"}'] == codes.count(429)
        assert after['mainstem_http_refused_total{status="429"}'] == codes.count(429)
        assert after['mainstem_rate_limited_total{limit="connections_per_address"}'] == 1
        assert after['mainstem_http_refused_total{status="401"}'] == 1
        assert after['mainstem_http_refused_total{status="403"}'] == 1
        assert after['mainstem_auth_refused_total{reason="token_missing"}'] == 1
        assert after["mainstem_query_processes_replaced_total"] == 0


# Item 18: requests that are never finished, and children


HALF_SENT = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A",
    "a body that does not come": b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
    "half a body": b'POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"sql"',
    "half a chunk": b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nab",
    "half a push": b"POST /sync/g/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nab",
    "a second request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
}
PATIENCE_S = 0.5
IMPATIENT = msgspec.structs.replace(CONFIG, server=ServerConfig(port=0, request_timeout_s=PATIENCE_S))


async def test_half_sent_requests_are_given_up(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=IMPATIENT) as (_, ws_url):
        port = int(ws_url.split(":")[2].split("/")[0])

        async def until_closed(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            async with asyncio.timeout(20):
                answer = await reader.read()
            writer.close()
            return answer

        answers = await asyncio.gather(*map(until_closed, HALF_SENT.values()))
        for name, answer in zip(HALF_SENT, answers, strict=True):
            assert (b"408 Request Timeout" in answer) == (name != "nothing"), (name, answer)


async def test_a_head_that_drips_is_given_up_and_a_body_that_flows_is_not(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=IMPATIENT) as (_, ws_url):
        port = int(ws_url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        dripped = 0
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while dripped < 200:
                writer.write(b"X-%d: y\r\n" % dripped)
                await writer.drain()
                dripped += 1
                await asyncio.sleep(PATIENCE_S / 5)
                if reader.at_eof():
                    raise ConnectionError
        assert dripped < 100
        # A slow body is fine as long as something comes.
        body = json.dumps({"sql": "SELECT 42"}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 3):
            writer.write(body[at : at + 3])
            await asyncio.sleep(PATIENCE_S / 4)
        assert b"[[42]]" in await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_the_applications_own_time_does_not_count(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=IMPATIENT) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        waited = await http.get("/v1/pipeline/queries", params={"waitS": str(PATIENCE_S * 3)})
        assert waited.status_code == 204
        async with websockets.connect(ws_url) as socket:
            await asyncio.sleep(PATIENCE_S * 3)
            await send_batch(socket, 1)
            assert json.loads(await socket.recv())["type"] == "ack"


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (_, ws_url):
        port = int(ws_url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        # The server stops reading: what is under way then makes the connection end without the answer, or with it.
        with suppress(ConnectionError):
            for number in range(100):
                writer.write(b"X-%d: " % number + b"y" * 65_536 + b"\r\n")
                await writer.drain()
                sent = number
                if reader.at_eof():
                    break
        assert sent < 99
        writer.close()


CHILDREN = [
    "mainstem.query.sandbox.worker",
    "mainstem.log.seal.sealer",
    "mainstem.app.spark.pipeline",
    "mainstem.pipeline.session.archiving",
]


@pytest.mark.parametrize("module", CHILDREN)
def test_a_child_imports_nothing_from_the_working_folder(tmp_path: Path, module: str) -> None:
    trap = "import pathlib; pathlib.Path(__file__).with_name('sprung').touch()\nraise SystemExit(7)\n"
    for name in ("copy", "json", "pickle", "random", "duckdb", "msgspec", "pyarrow", "pyspark", "mainstem"):
        (tmp_path / f"{name}.py").write_text(trap)
    # Without its arguments each of them ends at once, after its imports.
    ended = subprocess.run(python_module(module), cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert ended.returncode != 7
    assert not (tmp_path / "sprung").exists()
    # The same without isolation falls into the trap: the test would notice.
    fallen = [sys.executable, "-m", module]
    subprocess.run(fallen, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert (tmp_path / "sprung").exists()


def test_every_child_is_started_in_the_same_way() -> None:
    source = Path(__file__).parents[2] / "src" / "mainstem"
    pattern = re.compile(r"sys\.executable")
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if pattern.search(path.read_text())}
    # The pipeline's two name the interpreter of Spark's workers, which go by the environment they inherit.
    assert found == {"runtime/children.py", "pipeline/runner.py", "pipeline/session/archiving.py"}


async def test_a_whole_server_runs_where_a_trap_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    trap = "import pathlib; pathlib.Path(__file__).with_name('sprung').touch()\nraise SystemExit(7)\n"
    (tmp_path / "cwd" / "copy.py").write_text(trap)
    monkeypatch.chdir(tmp_path / "cwd")
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with (
        ServerProcess(tmp_path / "data", config) as server,
        httpx.AsyncClient(timeout=60, base_url=server.url) as http,
    ):
        assert (await http.post("/v1/query", json={"sql": "SELECT 42"})).json()["rows"] == [[42]]
        async with websockets.connect(server.ws_url) as socket:
            await send_batch(socket, 1)
            assert json.loads(await socket.recv())["type"] == "ack"
        # Sealed by a child.
        await http.post("/flush?timeoutS=0.1")
    assert not (tmp_path / "cwd" / "sprung").exists()
