"""The tables of cases: what MongoDB documents of its languages, in our own words and data."""

import random
from typing import Any

import duckdb
import pytest
from bson import json_util

from mainstem.documents import (
    apply_update,
    columns,
    matched_offset,
    matcher,
    matches,
    parse_filter,
    project,
    row_document,
    sort_documents,
    to_duckdb,
)
from mainstem.documents.values import identical
from mainstem.model.errors import Invalid
from tests.unit.query_documents.vector_rows import decoded, plain_texts, questions, raw_cases, texts

NEW_YEAR_MS = 1_704_067_200_000


def cases(name: str) -> list[Any]:
    return [pytest.param(decoded(case), id=case["about"]) for case in raw_cases(name)]


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


@pytest.mark.parametrize("kind", ["json", "extended_json"])
def test_duckdb_answers_every_case_alike(kind: str) -> None:
    documents = plain_texts() if kind == "json" else texts()
    kinds = columns(j=kind)
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (n INTEGER, j VARCHAR)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(documents)))
    rows = [row_document({"j": text}, kinds) for text in documents]
    for about, source in questions():
        passes = matcher(source)
        expected = {n for n, document in enumerate(rows) if passes(document)}
        condition = to_duckdb(source, kinds)
        query = f"SELECT n FROM t WHERE {condition.text}"
        found = {row[0] for row in connection.execute(query, condition.parameters).fetchall()}
        assert found == expected if condition.exact else found >= expected, about
