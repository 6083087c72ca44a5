"""Who may call which route, by which token: one table of every route there is, tried cell by cell on a real socket.

A route that is added and not entered here fails the first test. What a token sees of a route that it may call (its own
tables only) is in `test_security_catalog`, `test_auth_gate` and `test_sync_scopes`.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from litestar.routes import WebSocketRoute

from mainstem.app.gateway import Gateway
from mainstem.wire.reports import BreakerStatus, MicroBatchStatus, PassStatus, PipelineReport
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.contract.test_auth_gate import SCHEMA, every_request, http_url
from tests.contract.test_security_http import handshake
from tests.harness.inprocess import gateway_on_socket

ANY, READER, WRITER, ADMIN = "any", "reader", "writer", "admin"
# Figures of all tables together, for who may see every one; and what changes the server.
OVERALL, EVERYTHING = "overall", "everything"
# By what a route asks for, the tokens that get past the door; all others get 403, and no token 401. Weak ones come
# first: what the strong ones may do, they do.
TOKENS: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "client": ({"role": "client", "namespace": [], "gw": "g"}, frozenset({ANY})),
    "reader of sales": ({"role": "reader", "namespace": "sales"}, frozenset({ANY, READER})),
    "writer of sales": ({"role": "writer", "namespace": "sales"}, frozenset({ANY, READER, WRITER})),
    "admin of sales": ({"role": "admin", "namespace": "sales"}, frozenset({ANY, READER, WRITER, ADMIN})),
    "admin of a table": ({"role": "admin", "tables": ["orders"]}, frozenset({ANY, READER, WRITER, ADMIN})),
    "reader": ({"role": "reader"}, frozenset({ANY, READER, OVERALL})),
    "writer": ({"role": "writer"}, frozenset({ANY, READER, OVERALL, WRITER})),
    "admin": ({"role": "admin"}, frozenset({ANY, READER, OVERALL, WRITER, ADMIN, EVERYTHING})),
}
ROUTES = {
    ANY: """
        GET /health
        GET /v1
        POST /console/sign-out
        POST /v1/oauth/tokens
    """,
    READER: """
        GET /status
        GET /metrics
        POST /v1/query
        POST /v1/query/plan
        POST /v1/query/route
        GET /v1/analyst/table/as-of
        GET /v1/analyst/table/changes
        GET /v1/analyst/table/blame
        GET /v1/config
        GET /v1/scaling/status
        GET /v1/memory-stats
        GET /v1/write-stats
        GET /v1/overview
        GET /
        GET /console
        GET /console/name
        GET /console/tables/name
        GET /schema
        GET /schema/openapi.json
        GET /schema/path
        GET /v1/namespaces
        GET /v1/clients
    """,
    OVERALL: """
        GET /v1/charts
    """,
    WRITER: """
        POST /flush
        POST /v1/debezium
        POST /v1/debezium/auth/authenticate
        POST /v1/debezium/auth/refreshToken
        POST /v1/namespaces
        POST /v1/tables/rename
        POST /v1/views/rename
        POST /v1/transactions/commit
    """,
    ADMIN: """
        GET /v1/compaction/candidates
        POST /v1/compaction/run
        POST /v1/compaction/auto
        GET /v1/compaction/metrics
        GET /v1/compaction/jobs
        GET /v1/compaction/jobs/job_id
        DELETE /v1/compaction/jobs/job_id
    """,
    EVERYTHING: """
        POST /v1/loads
        POST /v1/pipeline/report
        GET /v1/config/server
        PATCH /v1/config
        GET /v1/errors
        GET /v1/pipeline/jobs
        POST /v1/pipeline/jobs/job_id
        GET /v1/pipeline/queries
        GET /v1/pipeline/queries/query_id
        POST /v1/pipeline/queries/query_id
        POST /v1/pipeline/queries/query_id/failed
    """,
}
# Of the catalog: the role, for who is bound to no other namespace than the one that the path names.
IN_A_NAMESPACE = {
    READER: """
        GET /v1/namespaces/namespace
        HEAD /v1/namespaces/namespace
        GET /v1/namespaces/namespace/tables
        GET /v1/namespaces/namespace/tables/table
        HEAD /v1/namespaces/namespace/tables/table
        POST /v1/namespaces/namespace/tables/table/metrics
        POST /v1/namespaces/namespace/tables/table/plan
        GET /v1/namespaces/namespace/tables/table/plan/plan-id
        DELETE /v1/namespaces/namespace/tables/table/plan/plan-id
        POST /v1/namespaces/namespace/tables/table/tasks
        GET /v1/namespaces/namespace/tables/table/credentials
        POST /v1/namespaces/namespace/tables/table/sign
        GET /v1/namespaces/namespace/views
        GET /v1/namespaces/namespace/views/view
        HEAD /v1/namespaces/namespace/views/view
        GET /v1/namespaces/namespace/functions
        GET /v1/namespaces/namespace/functions/function
        GET /v1/namespaces/namespace/generic-tables
        GET /v1/namespaces/namespace/generic-tables/table
    """,
    WRITER: """
        POST /v1/namespaces/namespace/properties
        POST /v1/namespaces/namespace/tables
        POST /v1/namespaces/namespace/register
        POST /v1/namespaces/namespace/tables/table
        POST /v1/namespaces/namespace/views
        POST /v1/namespaces/namespace/register-view
        POST /v1/namespaces/namespace/views/view
        DELETE /v1/namespaces/namespace/views/view
        POST /v1/namespaces/namespace/generic-tables
        POST /v1/namespaces/namespace/generic-tables/table
        DELETE /v1/namespaces/namespace/generic-tables/table
        POST /v1/namespaces/namespace/tables/table/unregister
        DELETE /v1/namespaces/namespace/tables/table
        DELETE /v1/namespaces/namespace
    """,
}
# The same, of the doors that name a table in their own way.
OF_A_TABLE = {
    READER: """
        GET /v1/tables/name
        GET /v1/tables/name/snapshots
        GET /v1/tables/name/diff
        GET /v1/tables/name/files
        GET /v1/tables/name/dead-letters
    """,
    WRITER: """
        POST /v1/tables/name/rollback
        POST /v1/tables/name/dead-letters/replay
        POST /v1/ingest/namespace/table
    """,
}
NAMES_ONE = re.compile(r"/(tables|views|functions)/").search
BOUND = ("reader of sales", "writer of sales", "admin of sales", "admin of a table")
# The sync door, for the gateway `hr`: who may, by token. Its routes are no routes of the router's, so its own table of
# paths is what there is to try.
SYNC_TOKENS: dict[str, dict[str, Any]] = {
    **{name: claims for name, (claims, _) in TOKENS.items()},
    "client of hr": {"role": "client", "namespace": [], "gw": "hr"},
    "admin of hr": {"role": "admin", "namespace": "hr"},
}
PUSHERS = {"client of hr", "admin of hr", "admin", "admin of a table"}
ADMINS = {"admin of hr", "admin", "admin of a table"}
SYNC_ROUTES = {
    "POST /sync/hr/push": PUSHERS,
    "GET /sync/hr/pull": PUSHERS,
    "GET /sync/hr/checkpoint": PUSHERS,
    "GET /v1/sync/hr/pull": PUSHERS,
    "POST /admin/flush/hr": ADMINS,
    "GET /admin/schema/hr": ADMINS,
    "POST /admin/schema/hr": ADMINS,
    # Rules are of all tables of a gateway.
    "GET /admin/rules/hr": ADMINS - {"admin of a table"},
    "POST /admin/rules/hr": ADMINS - {"admin of a table"},
    "GET /v1/admin/rules/hr": ADMINS - {"admin of a table"},
    "GET /v1/pipeline/checkpoints": {"admin"},
}
SOCKETS = {
    "/ws": {"writer of sales", "admin of sales", "admin of a table", "writer", "admin", "admin of hr"},
    "/lakehouse": {"writer of sales", "admin of sales", "admin of a table", "writer", "admin", "admin of hr"},
    "/sync/hr/ws": PUSHERS,
}


class Rule(NamedTuple):
    method: str
    path: str
    asks_for: str
    of_a_namespace: bool


def rules() -> list[Rule]:
    found = []
    for table, of_a_namespace in ((ROUTES, False), (IN_A_NAMESPACE, True), (OF_A_TABLE, True)):
        for asks_for, lines in table.items():
            for line in lines.strip().splitlines():
                method, path = line.split()
                found.append(Rule(method, path, asks_for, of_a_namespace))
    return found


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as found:
        yield found


async def test_every_route_is_in_the_table(secured: tuple[Gateway, str]) -> None:
    gateway, _ = secured
    there = {(method, path) for method, path in every_request(gateway) if method != "OPTIONS"}
    entered = [(rule.method, rule.path) for rule in rules()]
    assert len(entered) == len(set(entered))
    assert there - set(entered) == set(), "a route that says nowhere who may call it"
    assert set(entered) - there == set(), "a route that is not there any more"
    assert {route.path for route in gateway.routes().routes if isinstance(route, WebSocketRoute)} <= set(SOCKETS)


async def test_every_cell_of_the_table(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    params = {"waitS": "0", "timeoutS": "0.1"}

    async def status(rule: Rule, headers: dict[str, str]) -> int:
        path = rule.path
        path = path.replace("/v1/tables/name", "/v1/tables/hr.pay").replace("/ingest/namespace/table", "/ingest/hr/pay")
        if path.startswith("/v1/namespaces/namespace"):
            path = f"/v1/namespaces/hr{rule.path.removeprefix('/v1/namespaces/namespace')}"
            path = path.replace("/tables/table", "/tables/pay").replace("/generic-tables/table", "/generic-tables/pay")
        # So that no cookie of one token is sent with the next.
        http.cookies.clear()
        return (await http.request(rule.method, path, params=params, headers=headers)).status_code

    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        admin = bearer(token())
        assert (await http.post("/v1/namespaces", json={"namespace": ["hr"]}, headers=admin)).status_code == 200
        body = {"name": "pay", "schema": SCHEMA}
        assert (await http.post("/v1/namespaces/hr/tables", json=body, headers=admin)).status_code == 200
        for rule in rules():
            # A probe has no token.
            assert await status(rule, {}) == (200 if rule.path == "/health" else 401), rule
        for name, rule in ((name, rule) for name in TOKENS for rule in rules()):
            claims, may = TOKENS[name]
            found = await status(rule, bearer(token(**claims)))
            is_foreign = rule.of_a_namespace and name in BOUND
            if name == "admin of a table" and rule.asks_for == READER and not NAMES_ONE(rule.path):
                # Bound to tables and to no namespace: the namespace is there, its other tables are not.
                is_foreign = False
            if rule.asks_for not in may:
                # What is not there for somebody need not say that it may not be changed.
                assert found == 403 or (is_foreign and found == 404), (name, rule, found)
            elif is_foreign:
                # Nothing is told of a table of others, and nothing done to it; 400 where the body is looked at first.
                assert found in (400, 403, 404), (name, rule, found)
            else:
                assert found not in (401, 403) and found < 500, (name, rule, found)


async def test_every_cell_of_the_sync_door(secured: tuple[Gateway, str]) -> None:
    _, ws_url = secured
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for line, may in SYNC_ROUTES.items():
            method, path = line.split()
            assert (await http.request(method, path)).status_code == 401, line
            for name, claims in SYNC_TOKENS.items():
                body = {"clientId": "c", "deltas": [], "lastSeenHlc": "0"} if method == "POST" else None
                asked = {"since": "0", "clientId": "c"}
                headers = bearer(token(**claims, sub="c"))
                found = (await http.request(method, path, headers=headers, params=asked, json=body)).status_code
                assert (found != 403) == (name in may) and found != 401 and found < 500, (line, name, found)
    for path, may in SOCKETS.items():
        url = ws_url.removesuffix("/ws") + path
        assert await handshake(url, {}) == 401
        for name, claims in SYNC_TOKENS.items():
            assert (await handshake(url, bearer(token(**claims))) == 101) == (name in may), (path, name)


async def test_an_event_is_stored_in_the_table_that_was_asked_about(secured: tuple[Gateway, str]) -> None:
    """Of the two places where an event may name its table, the gate and the log read the same one."""
    _, ws_url = secured
    flat = {
        "id": 1,
        "source": {"schema": "sales", "table": "orders"},
        "__schema": "hr",
        "__table": "plans",
        "__op": "u",
    }
    envelope = {"op": "c", "before": None, "after": {"id": 1}, "source": {"schema": "sales", "table": "eu.orders"}}
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for namespace, event, code in (("sales", flat, 403), ("sales.eu", envelope, 400)):
            headers = bearer(token(role="writer", namespace=namespace))
            answer = await http.post("/v1/debezium", params={"key": "id"}, json=event, headers=headers)
            assert answer.status_code == code, answer.text


async def test_figures_of_all_tables_together_are_not_for_a_token_with_bounds(secured: tuple[Gateway, str]) -> None:
    """Their growth is the traffic of others. What a token with bounds is told, it is told of its own tables."""
    gateway, ws_url = secured
    of_all = PipelineReport(
        state="running",
        breaker=BreakerStatus(state="open", error="hr.plans: no answer"),
        passes=[PassStatus(batch="1")],
        totals={"rows_in": 5},
        micro_batches=[MicroBatchStatus(batch="1")],
        steps={"addBatch": 0.5},
    )
    gateway.carried.report(of_all)
    async with httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http:
        for name, (claims, _) in TOKENS.items():
            if name == "client":
                continue
            headers = bearer(token(**claims))
            writes, clients = [
                (await http.get(f"/v1/{each}", headers=headers)).json() for each in ("write-stats", "clients")
            ]
            pipeline = (await http.get("/status", headers=headers)).json()["pipeline"]
            told = [writes["segments"], writes["segmentBytes"], clients["cdcConnections"], clients["syncConnections"]]
            assert all((each is None) == (name in BOUND) for each in told), name
            told = [pipeline[each] for each in ("passes", "microBatches", "totals", "steps")]
            told.append(pipeline["circuitBreaker"]["error"])
            assert all((not each) == (name in BOUND) for each in told), (name, told)
