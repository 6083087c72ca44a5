"""Partitions, their statistics, schemas and their history over HTTP, without a pipeline: the gateway's own part."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess

TABLES = "/v1/namespaces/default/tables"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    server = ServerProcess(tmp_path_factory.mktemp("declared"), config)
    asyncio.run(server.start())
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
    asyncio.run(server.stop())


def _ask(http: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    answer = http.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_declared_table_is_there_before_its_first_change(http: httpx.Client) -> None:
    columns = {"price": "decimal(10,2)", "at": "timestamptz"}
    answer = _ask(http, "PUT", f"{TABLES}/declared/schemas", {"columns": columns})
    (schema,) = answer["schemas"]
    names = [field["name"] for field in schema["fields"]]
    assert names == ["price", "at", "_key", "_hlc", "_source", "_position", "_clocks"]
    assert [field["name"] for field in schema["fields"] if field["is-declared"]] == ["price", "at"]
    # More columns come before Mainstem's own, and widening is all that may happen to those that are there.
    columns = {"price": "decimal(12,2)", "city": "string"}
    answer = _ask(http, "PUT", f"{TABLES}/declared/schemas", {"columns": columns})
    newest = answer["schemas"][0]
    assert newest["schema-id"] == answer["current-schema-id"] == 1
    assert newest["changes"] == [
        {"change": "widened", "column": "price", "from": "decimal(10,2)", "type": "decimal(12,2)"},
        {"change": "added", "column": "city", "type": "string"},
    ]
    assert [field["name"] for field in newest["fields"]][:4] == ["price", "at", "city", "_key"]
    refused = http.put(f"{TABLES}/declared/schemas", json={"columns": {"city": "int"}})
    assert refused.status_code == 409 and "expected=string got=int" in refused.text


def test_partitions_are_set_and_what_cannot_be_waits(http: httpx.Client) -> None:
    _ask(http, "PUT", f"{TABLES}/parts/schemas", {"columns": {"ts": "timestamptz", "region": "string"}})
    fields = [
        {"type": "day", "sourceField": "ts", "name": "dt"},
        {"type": "bucket", "sourceField": "region", "numBuckets": 4},
        "truncate(3, later)",
        "month(region)",
    ]
    answer = _ask(http, "PUT", f"{TABLES}/parts/partitions", {"fields": fields})
    assert answer["spec"]["fields"] == [
        {"name": "dt", "transform": "day", "source": "ts"},
        {"name": "region_bucket_4", "transform": "bucket[4]", "source": "region"},
    ]
    assert [each["field"] for each in answer["waiting"]] == ["truncate(3, later)", "month(region)"]
    assert answer["partitions"] == []
    # Back to none, and to the first again: specs are numbered once.
    answer = _ask(http, "PUT", f"{TABLES}/parts/partitions", {"fields": []})
    assert answer["spec"] == {"spec-id": 0, "fields": []}
    answer = _ask(http, "PUT", f"{TABLES}/parts/partitions", {"fields": fields[:2]})
    assert answer["spec"]["spec-id"] == 1 and len(answer["specs"]) == 2
    # One name for two fields would break readers that see both specs.
    answer = _ask(http, "PUT", f"{TABLES}/parts/partitions", {"fields": ["hour(ts) as dt"]})
    assert answer["spec"]["fields"] == [] and "another field" in answer["waiting"][0]["reason"]
    stats = _ask(http, "GET", f"{TABLES}/parts/partition-stats")
    assert stats["totals"] == {
        "data-files": 0, "records": 0, "bytes": 0, "delete-files": 0, "deleted-records": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/none/partitions", None, 404),
        ("GET", "/none/partition-stats", None, 404),
        ("GET", "/none/schemas", None, 404),
        ("PUT", "/none/partitions", {"fields": ["a"]}, 404),
        ("PUT", "/wrong/partitions", {"fields": ["decade(a)"]}, 400),
        ("PUT", "/wrong/partitions", {"fields": ["bucket(0, a)"]}, 400),
        ("PUT", "/wrong/partitions", {"fields": ["hour(a)", "day(a)"]}, 400),
        ("PUT", "/wrong/partitions", {"fields": [7]}, 400),
        ("PUT", "/wrong/partitions", {"filds": []}, 400),
        ("PUT", "/wrong/schemas", {"columns": {}}, 400),
        ("PUT", "/wrong/schemas", {"columns": {"a": "colour"}}, 400),
        ("PUT", "/wrong/schemas", {"columns": {"": "int"}}, 400),
        ("PUT", "/wrong_history/schemas", {"columns": {"a": "int"}}, 400),
        ("DELETE", "/wrong/schemas", None, 405),
    ],
)
def test_bad_requests_get_a_named_error_and_change_nothing(
    http: httpx.Client, method: str, path: str, body: Any, code: int
) -> None:
    http.put(f"{TABLES}/wrong/schemas", json={"columns": {"a": "timestamptz"}})
    before = (http.get(f"{TABLES}/wrong")).json()["metadata-location"]
    answer = http.request(method, TABLES + path, json=body)
    assert answer.status_code == code, answer.text
    assert (http.get(f"{TABLES}/wrong")).json()["metadata-location"] == before
