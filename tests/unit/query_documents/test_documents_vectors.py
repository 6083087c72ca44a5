"""The tables of cases: what MongoDB documents of its languages, in our own words and data."""

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from mainstem.model.errors import Invalid
from mainstem.query.documents import (
    apply_update,
    matched_offset,
    matches,
    parse_filter,
    project,
    sort_documents,
)
from mainstem.query.documents.values import identical

VECTORS = Path(__file__).parents[2] / "vectors" / "documents"
OPTIONS = json_util.JSONOptions(tz_aware=True, tzinfo=dt.UTC)
MARKS = {"$oid", "$date", "$numberLong", "$numberDouble", "$numberDecimal", "$binary", "$regularExpression"}
MARKS |= {"$timestamp", "$minKey", "$maxKey"}
NEW_YEAR_MS = 1_704_067_200_000


def decoded(value: Any) -> Any:
    """Extended JSON, but only its own marks: `$regex` and `$ref` are part of the filter language and stay."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)) in MARKS:
        return json_util.loads(json.dumps(value), json_options=OPTIONS)
    return {name: decoded(item) for name, item in value.items()}


def cases(name: str) -> list[Any]:
    raw = json.loads((VECTORS / f"{name}.json").read_text())
    return [pytest.param(decoded(case), id=case["about"]) for case in raw]


@pytest.mark.parametrize("case", cases("filters"))
def test_filter(case: dict[str, Any]) -> None:
    wrong = [document for document in case["match"] if not matches(case["filter"], document)]
    wrong += [document for document in case["differ"] if matches(case["filter"], document)]
    assert wrong == []


@pytest.mark.parametrize("case", cases("refused_filters"))
def test_refused_filter(case: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parse_filter(case["filter"])


@pytest.mark.parametrize("case", cases("updates"))
def test_update(case: dict[str, Any]) -> None:
    document = case["document"]
    original = json_util.dumps(document)

    def run() -> Any:
        return apply_update(
            case["update"],
            document,
            now_ms=NEW_YEAR_MS,
            array_filters=case.get("array_filters", ()),
            offset=matched_offset(case.get("filter", {}), document),
            inserting=case.get("inserting", False),
        )

    if "error" in case:
        with pytest.raises(Invalid) as refused:
            run()
        assert refused.value.reason == case["error"]
    else:
        updated = run()
        assert identical(updated.document, case["result"]), updated.document
        assert updated.modified == case.get("modified", not identical(document, case["result"]))
    assert json_util.dumps(document) == original


@pytest.mark.parametrize("case", cases("projections"))
def test_projection(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(Invalid) as refused:
            project(case["projection"], case["document"])
        assert refused.value.reason == case["error"]
    else:
        assert project(case["projection"], case["document"]) == case["result"]


@pytest.mark.parametrize("case", cases("sorts"))
def test_sort(case: dict[str, Any]) -> None:
    expected = case["documents"]
    shuffled = list(expected)
    random.Random(7).shuffle(shuffled)
    found = sort_documents(shuffled, case["sort"])
    assert [json_util.dumps(item) for item in found] == [json_util.dumps(item) for item in expected]
