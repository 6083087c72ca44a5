"""Access to a table's files on S3, as tables: which requests are signed for whom, and what temporary keys open.

Against a real store: what is signed, the store carries out; what is changed after it was signed, the store refuses.
"""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from mainstem.catalog.access.sts import policy
from mainstem.catalog.settings import CatalogSettings
from mainstem.runtime.clock import SystemClock
from mainstem.wire.sigv4 import Keys, sign
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY, S3Server

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
TABLE = "/v1/namespaces/sales/tables/orders"
WHO = {
    "nobody": None,
    "reader of hr": token("reader", "hr"),
    "reader of sales": token("reader", "sales"),
    "writer of sales": token("writer", "sales"),
    "admin of everything": token(),
}
OWN, OTHERS = "tables/sales/orders", "tables/hr/plans"
DELETE = "<Delete><Quiet>true</Quiet>{}</Delete>"


def _objects(*keys: str) -> str:
    return DELETE.format("".join(f"<Object><Key>{key}</Key></Object>" for key in keys))


class Try(NamedTuple):
    """A request: to a path of the bucket, and whether it is one that reads, one that writes, or none that is signed."""

    kind: str
    method: str
    path: str
    headers: dict[str, list[str]] = {}  # noqa: RUF012
    body: str | None = None


READ, WRITE, NEVER = "read", "write", "never"
REQUESTS: dict[str, Try] = {
    "get": Try(READ, "GET", f"/{OWN}/data/a"),
    "get a range": Try(READ, "GET", f"/{OWN}/data/a", {"Range": ["bytes=0-1"]}),
    "head": Try(READ, "HEAD", f"/{OWN}/data/a"),
    "list": Try(READ, "GET", f"?list-type=2&prefix={OWN}/&max-keys=10"),
    "list, the old way": Try(READ, "GET", f"?prefix={OWN}/data"),
    "put": Try(WRITE, "PUT", f"/{OWN}/data/b", {"Content-Type": ["text/plain"], "x-amz-meta-k": ["v"]}),
    "put, as Amazon's client says it": Try(WRITE, "PUT", f"/{OWN}/data/b?x-id=PutObject"),
    "delete": Try(WRITE, "DELETE", f"/{OWN}/data/none"),
    "begin an upload": Try(WRITE, "POST", f"/{OWN}/data/c?uploads="),
    # The store of the tests does not look at the body that was signed: there it is not signed at all.
    "delete several": Try(NEVER, "POST", "?delete=", {}, _objects(f"{OWN}/data/none")),
    "get another's": Try(NEVER, "GET", f"/{OTHERS}/data/a"),
    "get by dots": Try(NEVER, "GET", f"/{OWN}/../../hr/plans/data/a"),
    "get by escaped dots": Try(NEVER, "GET", f"/{OWN}/%2e%2e/%2e%2e/hr/plans/data/a"),
    "get a name that begins alike": Try(NEVER, "GET", f"/{OWN}2/data/a"),
    "get an older version": Try(NEVER, "GET", f"/{OWN}/data/a?versionId=1"),
    "put another's": Try(NEVER, "PUT", f"/{OTHERS}/data/a"),
    "copy another's": Try(NEVER, "PUT", f"/{OWN}/data/d", {"x-amz-copy-source": [f"/lake/{OTHERS}/data/a"]}),
    "copy, spelt large": Try(NEVER, "PUT", f"/{OWN}/data/d", {"X-Amz-Copy-Source": [f"/lake/{OTHERS}/data/a"]}),
    "copy a part": Try(
        NEVER, "PUT", f"/{OWN}/data/d?partNumber=1&uploadId=u", {"x-amz-copy-source": [f"/lake/{OTHERS}/data/a"]}
    ),
    "copy by a parameter": Try(NEVER, "PUT", f"/{OWN}/data/d?x-amz-copy-source=/lake/{OTHERS}/data/a"),
    "publish": Try(NEVER, "PUT", f"/{OWN}/data/d", {"x-amz-acl": ["public-read"]}),
    "give away": Try(NEVER, "PUT", f"/{OWN}/data/d", {"x-amz-grant-read": ["id=1"]}),
    "lead elsewhere": Try(NEVER, "PUT", f"/{OWN}/data/d", {"x-amz-website-redirect-location": ["http://x"]}),
    "a header in two lines": Try(NEVER, "PUT", f"/{OWN}/data/d", {"x-amz-meta-a": ["b\r\nx-amz-acl: public-read"]}),
    "list everything": Try(NEVER, "GET", "?list-type=2"),
    "list above": Try(NEVER, "GET", "?list-type=2&prefix=tables/"),
    "list twice": Try(NEVER, "GET", f"?list-type=2&prefix={OWN}/&prefix="),
    "list uploads": Try(NEVER, "GET", f"?uploads=&prefix={OWN}/"),
    "list versions": Try(NEVER, "GET", f"?versions=&prefix={OWN}/"),
    "read the policy": Try(NEVER, "GET", f"?policy=&prefix={OWN}/"),
    "set the policy": Try(NEVER, "PUT", "?policy="),
    "an object's access list": Try(NEVER, "PUT", f"/{OWN}/data/a?acl="),
    "an object's tags": Try(NEVER, "PUT", f"/{OWN}/data/a?tagging="),
    "select from an object": Try(NEVER, "POST", f"/{OWN}/data/a?select=&select-type=2"),
    "delete the bucket": Try(NEVER, "DELETE", ""),
    "delete others'": Try(NEVER, "POST", "?delete=", {}, _objects(f"{OWN}/data/none", f"{OTHERS}/data/a")),
    "delete by version": Try(
        NEVER,
        "POST",
        "?delete=",
        {},
        DELETE.format(f"<Object><Key>{OWN}/data/a</Key><VersionId>1</VersionId></Object>"),
    ),
    "delete under another hash": Try(
        NEVER, "POST", "?delete=", {"x-amz-content-sha256": ["0" * 64]}, _objects(f"{OWN}/data/none")
    ),
    "an unknown method": Try(NEVER, "PATCH", f"/{OWN}/data/a"),
}


class Place(NamedTuple):
    """A catalog whose warehouse is a bucket."""

    store: S3Server
    bucket: str
    http: httpx.AsyncClient

    async def ask(self, who: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        text = WHO[who]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, path, json=body, headers=named | (bearer(text) if text else {}))

    def own(self, method: str, path: str, body: bytes = b"", keys: Keys | None = None) -> httpx.Response:
        """A request to the store with keys, the store's own where none are given."""
        uri = f"{self.store.url}/{self.bucket}{path}"
        hashed = {"x-amz-content-sha256": [hashlib.sha256(body).hexdigest()]}
        keys = keys or Keys(ACCESS_KEY, SECRET_KEY)
        now_ms = SystemClock().now_ms()
        signed = sign(keys, method=method, uri=uri, region=REGION, headers=hashed, now_ms=now_ms)
        return httpx.request(method, uri, content=body, headers={name: values[0] for name, values in signed.items()})


@pytest.fixture
async def place(tmp_path: Path, s3_server: S3Server, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    bucket = f"sec-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    warehouse = f"{s3_server.make_bucket(bucket)}/tables"
    catalog = CatalogSettings(warehouse=warehouse, io=s3_server.io(), vend_credentials=True, credentials_s=900)
    config = msgspec.structs.replace(SECURED, catalog=catalog)
    async with gateway_on_socket(tmp_path, gateway_config=config) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(timeout=60, base_url=url) as http:
            made = Place(s3_server, bucket, http)
            for namespace, name in (("sales", "orders"), ("hr", "plans")):
                await made.ask("admin of everything", "POST", "/v1/namespaces", {"namespace": [namespace]})
                body = {"name": name, "schema": SCHEMA}
                answer = await made.ask("admin of everything", "POST", f"/v1/namespaces/{namespace}/tables", body)
                assert answer.status_code == 200, answer.text
                assert made.own("PUT", f"/tables/{namespace}/{name}/data/a", b"rows").status_code == 200
            yield made


def _sign_body(place: Place, tried: Try) -> dict[str, Any]:
    body = {"region": REGION, "method": tried.method, "headers": tried.headers}
    return body | {"uri": f"{place.store.url}/{place.bucket}{tried.path}", "body": tried.body}


async def test_which_requests_are_signed_for_whom(place: Place) -> None:
    for who, text in WHO.items():
        for what, tried in REQUESTS.items():
            answer = await place.ask(who, "POST", f"{TABLE}/sign", _sign_body(place, tried))
            may = tried.kind == READ or (tried.kind == WRITE and who in ("writer of sales", "admin of everything"))
            sees = who != "reader of hr" or tried.method not in ("GET", "HEAD")
            expected = 401 if text is None else 404 if not sees else 200 if may else 403
            assert answer.status_code == expected, (who, what, answer.text)
            if expected != 200:
                continue
            # And the store takes it.
            headers = {name: ", ".join(values) for name, values in answer.json()["headers"].items()}
            content = (tried.body or "").encode() if tried.method in ("PUT", "POST") else None
            done = await place.http.request(tried.method, answer.json()["uri"], headers=headers, content=content)
            assert done.status_code in (200, 204, 206), (who, what, done.text)
    assert place.own("GET", f"/{OTHERS}/data/a").text == "rows"


async def test_what_was_signed_cannot_be_changed(place: Place) -> None:
    put = await place.ask("writer of sales", "POST", f"{TABLE}/sign", _sign_body(place, REQUESTS["put"]))
    given = {name: values[0] for name, values in put.json()["headers"].items()}
    copying = given | {"x-amz-copy-source": f"/{place.bucket}/{OTHERS}/data/a"}
    assert (await place.http.put(put.json()["uri"], headers=copying)).status_code == 403
    assert place.own("GET", f"/{OTHERS}/data/a").text == "rows"
    deletes = await place.ask("writer of sales", "POST", f"{TABLE}/sign", _sign_body(place, REQUESTS["delete several"]))
    assert deletes.status_code == 403 and "another body" in deletes.text


OPENED = {
    ("GET", f"/{OWN}/data/a"): True,
    ("PUT", f"/{OWN}/data/new"): True,
    ("DELETE", f"/{OWN}/data/new"): True,
    ("GET", f"?list-type=2&prefix={OWN}/"): True,
    ("GET", f"/{OTHERS}/data/a"): False,
    ("PUT", f"/{OTHERS}/data/a"): False,
    ("DELETE", f"/{OTHERS}/data/a"): False,
    ("PUT", f"/{OWN}2/data/a"): False,
    ("GET", "?list-type=2&prefix=tables/"): False,
    ("GET", "?list-type=2&prefix="): False,
    ("GET", "?policy="): False,
}


async def test_vended_keys_open_the_table_and_nothing_else(place: Place) -> None:
    for who, text in WHO.items():
        answer = await place.ask(who, "GET", TABLE, X_Iceberg_Access_Delegation="vended-credentials")
        asked = await place.ask(who, "GET", f"{TABLE}/credentials")
        refused = 401 if text is None else 404 if who == "reader of hr" else None
        if refused is not None:
            assert (answer.status_code, asked.status_code) == (refused, refused), who
            continue
        assert SECRET_KEY not in answer.text and ACCESS_KEY not in answer.text
        given = [*answer.json().get("storage-credentials", []), *asked.json()["storage-credentials"]]
        # Keys outlive a token and write: whoever is bound to namespaces has its requests signed.
        assert len(given) == (2 if who == "admin of everything" else 0), (who, answer.text)
        for each in given:
            config = each["config"]
            now_ms = SystemClock().now_ms()
            assert now_ms < int(config["s3.session-token-expires-at-ms"]) <= now_ms + 901_000
            keys = Keys(config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
            for (method, path), is_open in OPENED.items():
                status = place.own(method, path, b"x" if method == "PUT" else b"", keys).status_code
                assert (status < 300) is is_open, (method, path, status)
    assert place.own("GET", f"/{OTHERS}/data/a").text == "rows"


def test_a_policy_is_never_wider_than_the_folder() -> None:
    for folder in ("a*", "a?b", "${aws:username}"):
        assert policy("lake", folder) is None
    made = json.loads(policy("lake", "db/t/") or "")
    assert made["Statement"][0]["Resource"] == ["arn:aws:s3:::lake/db/t/*"]
