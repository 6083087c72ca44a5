"""The merge in Spark agrees with `mainstem.model.merge`: shared vectors, and many random keys in one run."""

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainstem.model import Change, merge
from tests.unit.pipeline.conftest import BOTH_CATALOGS

pytestmark = [pytest.mark.spark, BOTH_CATALOGS]

_FOLDER = Path(__file__).parents[2] / "vectors"
VECTORS = json.loads((_FOLDER / "merge.json").read_text())
# Those that every sync client passes too.
SYNC_VECTORS = json.loads((_FOLDER / "sync" / "merges.json").read_text())
COLUMNS = {"a": "int", "b": "string", "c": "double", "d": "bool"}


def _value(draw: random.Random, kind: str) -> Any:
    if draw.random() < 0.15:
        return None
    match kind:
        case "int":
            return draw.randrange(100)
        case "double":
            return draw.randrange(100) + 0.5
        case "bool":
            return draw.random() < 0.5
    return draw.choice(["x", "y", 'quo"te', "ü", ""])


def _random_changes(draw: random.Random, bench: Any, keys: int, count: int) -> list[Change]:
    """Several sources with clocks out of order, partial and whole rows, deletes, resurrections, repeats."""
    changes: list[Change] = []
    for _ in range(count):
        key = f"k{draw.randrange(keys)}"
        source = draw.choice(["s1", "s2", "s3"])
        # One source never uses a clock twice, but two sources may use the same one.
        hlc = draw.randrange(1, 60) * 3 + int(source[1]) * (draw.random() < 0.5)
        columns: dict[str, Any] | None = None
        if draw.random() > 0.25:
            chosen = [name for name in COLUMNS if draw.random() < 0.5] if draw.random() < 0.7 else list(COLUMNS)
            columns = {name: _value(draw, COLUMNS[name]) for name in chosen}
        changes.append(bench.change(key, columns, source=source, hlc=hlc))
        if draw.random() < 0.1:
            again = draw.choice(changes)
            changes.append(bench.change(again.key, again.columns, source=again.source, hlc=again.hlc))
    return changes


def _without_ties(changes: list[Change]) -> list[Change]:
    """Drop what cannot happen: one source saying two things of one key at one time."""
    said: dict[tuple[str, str, int | None], dict[str, Any] | None] = {}
    kept = []
    for change in changes:
        if said.setdefault((change.key, change.source, change.hlc), change.columns) == change.columns:
            kept.append(change)
    return kept


def _expected(changes: list[Change]) -> dict[str, dict[str, Any]]:
    by_key: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_key[change.key].append(change)
    rows = {key: merge(of_key) for key, of_key in by_key.items()}
    return {key: row.values() for key, row in rows.items() if row.visible}


def _check(bench: Any, changes: list[Change]) -> None:
    expected = _expected(changes)
    found = bench.values()
    assert sorted(found) == sorted(expected)
    for key, values in expected.items():
        assert {name: value for name, value in found[key].items() if value is not None} == {
            name: value for name, value in values.items() if value is not None
        }, key
    # The clocks that a row carries are those of the model, so that whatever comes later merges right.
    by_key = defaultdict(list)
    for change in changes:
        by_key[change.key].append(change)
    for row in bench.rows():
        cells = merge(by_key[row["_key"]]).cells
        assert (row["_hlc"], row["_source"]) == max(cell.stamp for cell in cells.values())
        if row["_clocks"] is not None:
            assert json.loads(row["_clocks"]) == {name: list(cell.stamp) for name, cell in cells.items()}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes_in_random_batches(bench: Any, seed: int) -> None:
    draw = random.Random(seed)
    changes = _without_ties(_random_changes(draw, bench, keys=150, count=1500))
    rest = list(changes)
    while rest:
        size = draw.randrange(1, 600)
        bench.seal(*rest[:size])
        rest = rest[size:]
        bench.catch_up()
    _check(bench, changes)


def test_vectors(bench: Any) -> None:
    """Every vector is a key of its own; batch n holds the changes that each has as its n-th."""
    changes: list[Change] = []
    longest = max(len(vector["changes"]) for vector in VECTORS)
    for turn in range(longest):
        batch = [
            bench.change(vector["name"], given["columns"], hlc=given["hlc"], source=given["source"])
            for vector in VECTORS
            for given in vector["changes"][turn : turn + 1]
        ]
        bench.seal(*batch)
        bench.catch_up()
        changes += batch
    found = bench.values()
    for vector in VECTORS:
        row = found.get(vector["name"])
        present = None if row is None else {name: value for name, value in row.items() if value is not None}
        wanted = vector["row"]
        if wanted is not None:
            wanted = {name: value for name, value in wanted.items() if value is not None}
        assert present == wanted, vector["name"]
    _check(bench, changes)


def _as_text(value: Any) -> str | None:
    """A value as a column has it that took values of several kinds, which every column of these vectors does."""
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def test_sync_vectors(bench: Any) -> None:
    """Each case is a key. Its deltas come in three batches, in their order, in reverse, and some of them twice."""
    rows: dict[str, Any] = {}
    batches: list[list[Change]] = [[], [], []]
    for number, case in enumerate(SYNC_VECTORS):
        for way, deltas in enumerate([case["deltas"], case["deltas"][::-1], [*case["deltas"], *case["deltas"]]]):
            key = f"{number}/{way}"
            rows[key] = case["row"]
            for index, delta in enumerate(deltas):
                columns = {each["column"]: each["value"] for each in delta["columns"]}
                change = bench.change(
                    key,
                    None if delta["op"] == "DELETE" else columns,
                    hlc=int(delta["hlc"]),
                    source=delta["clientId"],
                )
                batches[index * 3 // len(deltas)].append(change)
    # One value of each kind beside a text, so that no column's type depends on the batch that it came in.
    names = {name for row in rows.values() for name in row["cells"]}
    batches[0].append(bench.change("kinds", dict.fromkeys(names, "text"), hlc=1))
    batches[0].append(bench.change("more kinds", {name: [1] for name in names}, hlc=1))
    for batch in batches:
        # Positions were given out while the batches were filled; a segment has its own run of them.
        bench.seal(*[replace(change, position=bench.position + place) for place, change in enumerate(batch, 1)])
        bench.position += len(batch)
        bench.catch_up()
    found = {row["_key"]: row for row in bench.rows()}
    for key, wanted in rows.items():
        cells = wanted["cells"]
        row = found.get(key)
        assert (row is None) == (not cells), key
        if row is None:
            continue
        stamps = {name: [int(cell["hlc"]), cell["source"]] for name, cell in cells.items()}
        assert [row["_hlc"], row["_source"]] == max(stamps.values()), key
        assert {name: row[name] for name in cells} == {name: _as_text(cell["value"]) for name, cell in cells.items()}
        if row["_clocks"] is not None:
            assert json.loads(row["_clocks"]) == stamps, key
