"""What the OpenAPI document promises: schemathesis asks every operation all kinds of things, and compares.

Bounded by the number of examples, so that it is a test and not a campaign: EXAMPLES=200 makes it one.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess

ALONE = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
EXAMPLES = int(os.environ.get("EXAMPLES", "8"))
TIMEOUT_S = 60
BOUNDED = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("openapi"), ALONE)
    asyncio.run(process.start())
    yield process.url
    asyncio.run(process.stop())


def document_of(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/schema/openapi.json", timeout=TIMEOUT_S)


def tried(schema: Any) -> dict[str, str]:
    """Every operation with many requests, good and bad; what was found, by operation.

    schemathesis' own way into pytest needs an older pytest, so its strategies are run here.
    """
    troubles = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        both = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        case = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in both))

        @BOUNDED
        @given(case=case)
        def ask(case: Any) -> None:
            case.call_and_validate(timeout=TIMEOUT_S, excluded_checks=_beyond_a_schema(case.path))

        try:
            ask()
        # Not all of them are `Exception`s.
        except (Exception, FailureGroup) as error:
            causes = [str(each) for each in getattr(error, "exceptions", ())]
            troubles[f"{operation.method.upper()} {operation.path}"] = "\n".join([str(error)[:3000], *causes])
    return troubles


def _beyond_a_schema(path: str) -> list[Any]:
    """Whether a text is SQL or a clock, settings fit each other, or rows have a key, no schema says: 400 is right."""
    free = ("/v1/query", "/v1/config", "/v1/analyst", "/v1/namespaces", "/v1/tables", "/v1/ingest", "/v1/debezium")
    return [positive_data_acceptance] if path.startswith(free) else []


def told(troubles: dict[str, str]) -> str:
    return "\n\n".join(f"=== {name}\n{text}" for name, text in troubles.items())


def test_every_operation_does_what_the_document_says(server: str) -> None:
    schema = document_of(server).exclude(path="/v1/config")
    troubles = tried(schema)
    assert not troubles, told(troubles)


def test_partitions_and_schemas_are_answered_as_the_document_says(server: str) -> None:
    schema = document_of(server)
    table = "/v1/namespaces/{namespace}/tables/{table}"
    fields = ["day(ts)", {"type": "bucket", "sourceField": "region", "numBuckets": 4}, "later"]
    for verb, path, body in (
        ("PUT", "schemas", {"columns": {"ts": "timestamptz", "region": "string"}}),
        ("PUT", "partitions", {"fields": fields}),
        ("GET", "schemas", None),
        ("GET", "partitions", None),
        ("GET", "partition-stats", None),
    ):
        told: dict[str, Any] = {} if body is None else {"body": body, "media_type": "application/json"}
        case = schema[f"{table}/{path}"][verb].Case(path_parameters={"namespace": "default", "table": "told"}, **told)
        answer = case.call_and_validate(timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text


def test_the_configuration_does_what_the_document_says(tmp_path: Path) -> None:
    # A server of its own: its limits may be changed to anything.
    process = ServerProcess(tmp_path, ALONE)
    asyncio.run(process.start())
    try:
        schema = document_of(process.url).include(path="/v1/config")
        troubles = tried(schema)
    finally:
        asyncio.run(process.stop())
    assert not troubles, told(troubles)


def test_the_document_names_every_path_of_the_seed(server: str) -> None:
    paths = httpx.get(f"{server}/schema/openapi.json", timeout=60).json()["paths"]
    named = {(verb.upper(), path) for path, item in paths.items() for verb in item}
    assert {
        ("GET", "/health"),
        ("GET", "/status"),
        ("GET", "/metrics"),
        ("POST", "/flush"),
        ("PATCH", "/v1/config"),
        ("POST", "/v1/query"),
        ("POST", "/v1/query/plan"),
        ("POST", "/v1/query/route"),
        ("GET", "/v1/scaling/status"),
        ("GET", "/v1/memory-stats"),
        ("GET", "/v1/write-stats"),
        ("GET", "/v1/compaction/candidates"),
        ("POST", "/v1/compaction/run"),
        ("GET", "/v1/compaction/metrics"),
        ("POST", "/v1/compaction/auto"),
        ("GET", "/v1/namespaces/{namespace}/tables/{table}/partitions"),
        ("GET", "/v1/namespaces/{namespace}/tables/{table}/partition-stats"),
    } <= named


def test_nothing_of_the_pages_comes_from_elsewhere() -> None:
    pages = Path(__file__).parents[2] / "src" / "mainstem" / "doors" / "console" / "pages"
    for page in pages.iterdir():
        text = page.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text, page.name
