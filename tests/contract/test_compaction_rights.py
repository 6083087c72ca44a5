"""Whoever administers a namespace maintains the tables of that namespace, and hears of no others."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from mainstem.app.gateway import Gateway
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

NAMESPACES = ("hr", "sales")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A gateway with a table of two files in each of two namespaces."""
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url):
        http_url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        await asyncio.to_thread(_fill, http_url)
        yield http_url


def _fill(url: str) -> None:
    from pyiceberg.catalog.rest import RestCatalog

    catalog = RestCatalog("lake", uri=url, token=token())
    rows = pa.table({"a": [1, 2]})
    for namespace in NAMESPACES:
        catalog.create_namespace(namespace)
        table = catalog.create_table(f"{namespace}.orders", rows.schema)
        table.append(rows)
        table.append(rows)


async def _ask(url: str, text: str, method: str, path: str, body: Any = None) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60, base_url=url, headers=bearer(text)) as http:
        return await http.request(method, path, json=body)


async def test_an_admin_of_a_namespace_acts_on_its_tables_only(url: str) -> None:
    sales, hr, everything = token("admin", "sales"), token("admin", "hr"), token()

    candidates = (await _ask(url, sales, "GET", "/v1/compaction/candidates?table=orders&namespace=sales")).json()
    assert [each["namespace"] for each in candidates["candidates"]] == ["sales"]
    # What it may not see is not there, whichever way it asks.
    for method, path, body in (
        ("GET", "/v1/compaction/candidates?table=orders&namespace=hr", None),
        ("POST", "/v1/compaction/run", {"namespace": "hr", "table": "orders"}),
        ("POST", "/v1/compaction/run", {"namespace": "hr", "table": "orders", "dryRun": True}),
        ("POST", "/v1/compaction/run", {"namespace": "hr", "table": "no_such_table"}),
    ):
        assert (await _ask(url, sales, method, path, body)).status_code == 404, (method, path, body)
    assert (await _ask(url, sales, "POST", "/v1/compaction/run", {"namespace": "hr"})).json()["jobs"] == []

    ids = {}
    for text, namespace in ((sales, "sales"), (hr, "hr")):
        answer = await _ask(url, text, "POST", "/v1/compaction/run", {"namespace": namespace, "minFiles": 2})
        (job,) = answer.json()["jobs"]
        assert job["table"] == f"{namespace}.orders"
        ids[namespace] = job["id"]
    assert [job["id"] for job in (await _ask(url, sales, "GET", "/v1/compaction/jobs")).json()] == [ids["sales"]]
    assert len((await _ask(url, everything, "GET", "/v1/compaction/jobs")).json()) == 2
    metrics = (await _ask(url, sales, "GET", "/v1/compaction/metrics")).json()
    assert (metrics["jobs"]["queued"], list(metrics["tables"])) == (1, ["sales.orders"])

    for method in ("GET", "DELETE"):
        assert (await _ask(url, sales, method, f"/v1/compaction/jobs/{ids['hr']}")).status_code == 404
    assert (await _ask(url, hr, "GET", f"/v1/compaction/jobs/{ids['hr']}")).json()["state"] == "queued"
    cancelled = await _ask(url, hr, "DELETE", f"/v1/compaction/jobs/{ids['hr']}")
    assert cancelled.json()["state"] == "cancelled"


async def test_nobody_but_an_admin_maintains(url: str) -> None:
    for text in (token("writer", "sales"), token("reader")):
        for method, path in (
            ("GET", "/v1/compaction/candidates"),
            ("POST", "/v1/compaction/run"),
            ("POST", "/v1/compaction/auto"),
            ("GET", "/v1/compaction/metrics"),
            ("GET", "/v1/compaction/jobs"),
        ):
            assert (await _ask(url, text, method, path, {})).status_code == 403, (method, path)
    # The pipeline's own routes hand out every table's work.
    assert (await _ask(url, token("admin", "sales"), "GET", "/v1/pipeline/jobs?worker=w&waitS=0")).status_code == 403


async def test_no_route_is_declared_in_a_way_that_goes_away(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        gateway = await Gateway.open(SECURED, tmp_path)
        try:
            gateway.routes()
        finally:
            await gateway.close()
