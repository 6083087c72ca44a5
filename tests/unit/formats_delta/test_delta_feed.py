"""The change feed says what happened to each row, whichever way a commit says it: with files of the feed or without."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, Storage, create_storage
from mainstem.model.errors import Corrupt, Invalid, NotFound

Row = dict[str, Any]


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


def made(storage: Storage, *, vectors: bool = True, partitions: tuple[str, ...] = ()) -> DeltaTable:
    table = DeltaTable(storage, "t")
    columns = [("_id", pa.int64()), ("n", pa.int64()), ("p", pa.string())]
    table.create(pa.schema(columns), change_feed=True, deletion_vectors=vectors, partition_by=partitions)
    return table


def told(table: DeltaTable, first: int, last: int | None = None) -> list[tuple[Any, ...]]:
    rows = table.changes(first, last).read_all().to_pylist()
    return sorted((row["_commit_version"], row["_change_type"], row["_id"], row["n"]) for row in rows)


def rows_of(numbers: range) -> list[Row]:
    return [{"_id": n, "n": n} for n in numbers]


def test_an_overwrite_takes_only_the_rows_that_were_left(storage: Storage) -> None:
    table = made(storage)
    table.write(rows_of(range(4)))
    table.delete({"_id": {"$in": [1, 2]}})
    at = table.write([{"_id": 9, "n": 9, "p": "x"}], mode="overwrite")
    assert told(table, at) == [(at, "delete", 0, 0), (at, "delete", 3, 3), (at, "insert", 9, 9)]


def test_a_restore_gives_back_what_a_vector_took(storage: Storage) -> None:
    table = made(storage)
    whole = table.write(rows_of(range(4)))
    table.delete({"_id": 1})
    fewer = table.version
    table.delete({"_id": 2})
    back = table.restore(whole)
    assert told(table, back) == [(back, "insert", 1, 1), (back, "insert", 2, 2)]
    again = table.restore(fewer)
    assert told(table, again) == [(again, "delete", 1, 1)]
    table.write([{"_id": 9, "n": 9, "p": "x"}], mode="overwrite")
    last = table.restore(fewer)
    assert told(table, last) == [(last, "delete", 9, 9)] + [(last, "insert", n, n) for n in (0, 2, 3)]


@pytest.mark.parametrize("value", ["a b", "é/=", "100%", "x:y?z#", "q\"uo'te", "%41", "", None])
@pytest.mark.parametrize("vectors", [False, True])
def test_partition_values_that_need_escaping(storage: Storage, value: str | None, vectors: bool) -> None:
    table = made(storage, vectors=vectors, partitions=("p",))
    table.write([{"_id": n, "n": n, "p": value} for n in range(3)])
    table.update({"_id": 1}, {"$set": {"n": 10}})
    table.delete({"_id": 2})
    at = table.write([{"_id": 5, "n": 5, "p": value}], mode="overwrite")
    feed = table.changes(1).read_all()
    assert set(feed["p"].to_pylist()) == {value}
    assert told(table, 1) == [
        (1, "insert", 0, 0), (1, "insert", 1, 1), (1, "insert", 2, 2),
        (2, "update_postimage", 1, 10), (2, "update_preimage", 1, 1),
        (3, "delete", 2, 2),
        (at, "delete", 0, 0), (at, "delete", 1, 10), (at, "insert", 5, 5),
    ]  # fmt: skip
    assert told(table, 2, 3) == [row for row in told(table, 1) if row[0] in (2, 3)]


def test_compaction_changes_nothing(storage: Storage) -> None:
    table = made(storage)
    for n in range(4):
        table.write(rows_of(range(n, n + 1)))
    table.delete({"_id": 1})
    at = table.version + 1
    table.optimize()
    assert table.version == at
    assert told(table, at) == []


def test_columns_that_came_later_are_null_before(storage: Storage) -> None:
    table = made(storage)
    table.write(rows_of(range(1)))
    table.upsert([{"_id": 0, "n": 1, "more": "x"}])
    feed = [(row["_change_type"], row["more"]) for row in table.changes(1).read_all().to_pylist()]
    assert sorted(feed, key=str) == [("insert", None), ("update_postimage", "x"), ("update_preimage", None)]


def replayed(seed: int, steps: int, *, vectors: bool) -> None:
    """Whatever is done, deletes and inserts add up to the rows of every version."""
    rng = random.Random(seed)
    table = made(create_storage("memory://"), vectors=vectors, partitions=("p",) if seed % 2 else ())
    for _ in range(steps):
        some = {"_id": {"$mod": [rng.randrange(2, 6), 0]}}
        start = rng.randrange(40)
        places = ["a/b", "c d", None]
        rows = [{"_id": n, "n": rng.randrange(9), "p": rng.choice(places)} for n in range(start, start + 6)]
        match rng.randrange(7):
            case 0:
                table.write(rows)
            case 1:
                table.upsert(rows, delete=[{"_id": start + 7}])
            case 2:
                table.update(some, {"$inc": {"n": 1}})
            case 3:
                table.delete(some)
            case 4:
                table.write(rows, mode="overwrite")
            case 5 if table.version:
                table.restore(rng.randrange(table.version))
            case _:
                table.optimize()
    feed = table.changes(0).read_all().to_pylist()
    now: Counter[tuple[Any, ...]] = Counter()
    for version in range(table.version + 1):
        for change in (row for row in feed if row["_commit_version"] == version):
            row = (change["_id"], change["n"], change["p"])
            now[row] += 1 if change["_change_type"] in ("insert", "update_postimage") else -1
        seen = table.snapshot(version).query()
        assert +now == Counter((row["_id"], row.get("n"), row.get("p")) for row in seen), version
        assert all(count >= 0 for count in now.values()), version


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_feed_replayed_is_the_table(seed: int, vectors: bool) -> None:
    replayed(seed, 25, vectors=vectors)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("vectors", [False, True])
def test_the_feed_replayed_is_the_table_for_long(vectors: bool) -> None:
    first = int(os.environ.get("SEED", "1")) * 1_000
    for seed in range(first, first + 50):
        replayed(seed, 80, vectors=vectors)


def test_versions_that_are_not_there_and_feeds_that_were_not_kept(tmp_path: Path) -> None:
    table = made(create_storage(str(tmp_path)))
    table.write(rows_of(range(2)))
    for first, last in ((5, None), (-1, None), (0, 7)):
        with pytest.raises(NotFound, match=r"expected=0\.\.1"):
            table.changes(first, last)
    table.set_properties({"delta.enableChangeDataFeed": "false"})
    with pytest.raises(Invalid, match="no change feed"):
        table.changes()
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(Invalid, match="kept no change feed then"):
        table.changes(1).read_all()
    table.write(rows_of(range(1)), mode="overwrite")
    old = {Path(uri) for uri in table.snapshot(1).file_uris()}
    for path in old:
        path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        table.changes(table.version).read_all()
