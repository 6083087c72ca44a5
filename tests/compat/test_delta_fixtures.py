"""Tables that Spark left behind are read as Spark read them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mainstem.client.delta import DeltaTable, create_storage
from mainstem.model.errors import Invalid
from tests.compat.delta_fixtures import FIXTURES, FOLDER, ordered

NAMES = [make.__name__ for make in FIXTURES]


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    shutil.copytree(FOLDER / request.param, tmp_path / request.param)
    return DeltaTable(create_storage(str(tmp_path)), request.param)


def expected(name: str) -> list[Any]:
    return list(json.loads((FOLDER / f"{name}.json").read_text()))


@pytest.mark.parametrize("table", [name for name in NAMES if "variants" not in name], indirect=True)
def test_the_same_rows(table: DeltaTable) -> None:
    rows = table.query_arrow().to_pylist(maps_as_pydicts="strict")
    assert ordered(rows) == expected(table.name)


@pytest.mark.parametrize("table", [name for name in NAMES if "variants" in name], indirect=True)
def test_variants_are_plain_values(table: DeltaTable) -> None:
    assert ordered([{"v": None, **row} for row in table.query()]) == expected(table.name)
    assert [row["n"] for row in table.query({"v.b.c": "x"})] == [1]
    # Files of ours stand beside those of Spark, and rows of both can be found and changed.
    table.write([{"n": 100, "v": {"b": {"c": "x"}, "day": [1.5, None]}}])
    assert sorted(row["n"] for row in table.query({"v.b.c": "x"})) == [1, 100]
    assert table.delete({"n": {"$in": [2, 100]}}).deleted == 2
    assert sorted(row["n"] for row in table.query()) == [row["n"] for row in expected(table.name) if row["n"] != 2]


@pytest.mark.parametrize("table", ["partitioned", "vectors", "checkpointed", "feed"], indirect=True)
def test_and_they_can_be_written_on(table: DeltaTable) -> None:
    count = len(table.query())
    key = "_id" if table.name == "feed" else "n"
    column = table.query({}, limit=1, projection=[key])[0][key]
    changed = table.upsert([{key: column}], key=key)
    assert (changed.updated, changed.inserted) == (1, 0)
    assert table.delete({key: column}).deleted == 1
    assert len(table.query()) == count - 1


@pytest.mark.parametrize("table", ["mapped", "evolved"], indirect=True)
def test_or_are_refused_by_name(table: DeltaTable) -> None:
    with pytest.raises(Invalid, match=r"columnMapping|typeWidening"):
        table.delete({})
    assert ordered(table.query_arrow().to_pylist()) == expected(table.name)


@pytest.mark.parametrize("table", ["vectors", "partitioned"], indirect=True)
def test_filters_skip_and_find(table: DeltaTable) -> None:
    rows = table.query_arrow().to_pylist()
    for low, high in ((100, 120), (4, 5)):
        found = table.query_arrow({"n": {"$gte": low, "$lt": high}}).to_pylist()
        assert ordered(found) == ordered([row for row in rows if low <= row["n"] < high])
