"""Tables too large for the index of keys: Spark looks the keys of each pass up, in the files that may have them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mainstem.client.delta import create_storage
from mainstem.pipeline.commit.places import KeyRange, LiveRows, PlaceFinder
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# Quotes, backslashes and letters beyond the first plane: what SQL, bounds and sort orders stumble over.
ODD = ["", "'", "\\", "a'b\\'c", "\ufffd", "\U0001f600", "z\U00010000", '"', "%_", "\x00nul"]


class Watching(PlaceFinder):
    """Remembers the ranges of keys that files were left out by; None where a whole index was built."""

    def __init__(self, rows_max: int = 0) -> None:
        super().__init__(rows_max)
        self.looked_up: list[KeyRange | None] = []
        self.files_read: list[int] = []

    def index_for(self, table: Any, snapshot_id: int | None, live: Any, keys: Any) -> Any:
        def watched() -> LiveRows:
            rows = live()

            def frame(between: KeyRange | None) -> Any:
                self.looked_up.append(between)
                found = rows.frame(between)
                self.files_read.append(found.select("path").distinct().count())
                return found

            return LiveRows(rows.snapshot_id, rows.files, rows.rows, frame)

        return super().index_for(table, snapshot_id, watched, keys)


def table_settings(kind: str) -> TableSettings:
    return TableSettings.from_document({"format": "delta"} if kind == "delta" else {})


@pytest.fixture(params=["iceberg", "delta"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def watching(bench: Any, tmp_path: Path) -> Watching:
    bench.finder = Watching()
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), application="test-app")
    return bench.finder  # type: ignore[no-any-return]


def state_of(bench: Any, kind: str) -> dict[str, int]:
    if kind == "iceberg":
        return {key: row["n"] for key, row in bench.values().items()}
    rows = bench.delta.table(bench.name("orders")).query(projection=["_key", "n"])
    found = {row["_key"]: row["n"] for row in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


def carry(bench: Any, kind: str, model: dict[str, int], keys: Sequence[str], number: int, gone: Sequence[str]) -> None:
    changes = [bench.change(key, {"n": number}) for key in keys] + [bench.change(key, None) for key in gone]
    model.update(dict.fromkeys(keys, number))
    for key in gone:
        model.pop(key, None)
    bench.seal(*changes)
    bench.catch_up(settings=table_settings(kind))


def test_upserts_are_right_without_an_index(bench: Any, watching: Watching, kind: str) -> None:
    draw = random.Random(kind)
    model: dict[str, int] = {}
    every = ODD + [f"tenant{number // 40:02d}:item{number % 40:03d}" for number in range(160)]
    for number in range(5):
        keys = draw.sample(every, 60)
        carry(bench, kind, model, keys[10:], number, keys[:10])
    assert state_of(bench, kind) == model
    assert len(watching.looked_up) == 4, "the first pass finds an empty table"
    assert None not in watching.looked_up


def test_files_without_such_keys_are_not_read(bench: Any, watching: Watching, kind: str) -> None:
    model: dict[str, int] = {}
    for month in range(1, 5):
        carry(bench, kind, model, [f"2026{month:02d}-{number:04d}" for number in range(20)], month, [])
    watching.files_read.clear()
    carry(bench, kind, model, [f"202602-{number:04d}" for number in range(5, 8)], 9, ["202602-0009"])
    assert watching.files_read == [1]
    assert watching.looked_up[-1] == KeyRange("202602-0005", "202602-0009")
    assert state_of(bench, kind) == model


def test_a_table_has_an_index_up_to_the_bound(bench: Any) -> None:
    bench.finder = Watching(rows_max=30)
    model: dict[str, int] = {}
    for number in range(3):
        carry(bench, "iceberg", model, [f"{key}" for key in range(number * 20, number * 20 + 20)], number, [])
        # As after a restart.
        bench.finder.forget(bench.name("orders"))
    assert bench.finder.looked_up == [None, KeyRange("40", "59")], "20 rows fit the index, 40 do not"
    assert state_of(bench, "iceberg") == model
