"""What a large table needs before a pass, a rewrite or an index, is done beside the passes, and is right."""

from pathlib import Path
from typing import Any

import pytest

from mainstem.client.delta import create_storage
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.delta.writer import DeltaWriter
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.turns import Turns
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_large_table_that_is_only_appended_to_needs_no_index(bench: Any, tmp_path: Path) -> None:
    """No pass would use one: to read all keys of a topic before each pass would cost what the topic has."""
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), application="test-app")
    name, settings = bench.name("topic"), TableSettings.from_document({"format": "delta", "append": True})
    bench.writer = lambda table: DeltaWriter(
        bench.delta, bench.spark, table, settings, lineage=bench.lineage, finder=bench.finder, prepared_rows_min=3
    )
    carrier = bench.carrier()
    for last in (4, 8):
        bench.seal(*(bench.change(str(number), {"n": number}, table="topic") for number in range(4)))
        carrier.carry(None, (), "test")
        assert bench.progress.covered(name) == last


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_large_table_is_rewritten_and_indexed_beside_the_passes(bench: Any, tmp_path: Path, kind: str) -> None:
    name, small, turns = bench.name("large"), bench.name("small"), Turns()
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), application="test-app")
    settings = TableSettings.from_document({"format": kind})
    common: dict[str, Any] = {"lineage": bench.lineage, "finder": bench.finder, "prepared_rows_min": 3}

    def writer(table: Any) -> Any:
        if kind == "delta":
            return DeltaWriter(bench.delta, bench.spark, table, settings, **common)
        return IcebergWriter(bench.lake, table, settings, store=bench.store, **common)

    bench.writer = writer
    carrier = bench.carrier(turns=turns)

    def carry(*changes: Any) -> list[int]:
        bench.seal(*changes)
        carrier.carry(None, (), "test")
        return [bench.progress.covered(each) for each in (name, small)]

    def prepared() -> int:
        with turns.of(name):
            pass
        assert carrier.is_behind()
        carrier.carry(None, (), "test")
        return int(bench.progress.covered(name))

    rows = [bench.change(str(number), {"n": number}, table="large") for number in range(4)]
    assert carry(*rows, bench.change("a", {"n": 1}, table="small")) == [5, 5]
    # As after a restart, and with text in a column of numbers: the index is gone, and all rows must be cast.
    bench.finder.forget(name)
    changes = [bench.change("1", {"n": "one"}, table="large"), bench.change("a", {"n": 2}, table="small")]
    assert carry(*changes) == [5, 7], "the small table went on without the large one"
    assert prepared() == 7
    # Another client's commit makes the index old; this time only that is read again.
    bench.finder.forget(name)
    assert carry(bench.change("2", None, table="large"))[0] == 7
    assert prepared() == 8
    expected = {"0": "0", "1": "one", "3": "3"}
    if kind == "delta":
        found = bench.delta.table(name).query(projection=["_key", "n"])
        assert {row["_key"]: row["n"] for row in found} == expected and len(found) == 3
    else:
        assert {key: row["n"] for key, row in bench.values("large").items()} == expected
    assert bench.progress.report({}).tables[str(name)].error is None
