"""What a Delta table promises, with and without deletion vectors and the change feed."""

import asyncio
import datetime as dt
import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bson.objectid import ObjectId

from mainstem.client.delta import AsyncDeltaTable, DeltaTable, Storage, VersionMismatchError, create_storage
from mainstem.documents import matches
from mainstem.formats.delta import find
from mainstem.formats.delta.files.vacuum import RETENTION
from mainstem.formats.delta.files.vectors import encode85
from mainstem.model.errors import Invalid, NotFound
from mainstem.runtime.clock import ManualClock, SystemClock

PEOPLE: list[dict[str, Any]] = [
    {"_id": str(n), "name": f"name {n}", "age": n, "tags": ["all", n % 3], "home": {"city": "ab"[n % 2], "zip": n}}
    for n in range(60)
]
Row = dict[str, Any]


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


@pytest.fixture(params=["plain", "vectors", "feed", "vectors+feed"])
def people(request: pytest.FixtureRequest, storage: Storage) -> DeltaTable:
    table = DeltaTable(storage, "people")
    table.create(
        pa.schema([("_id", pa.string())]),
        deletion_vectors="vectors" in request.param,
        change_feed="feed" in request.param,
    )
    table.write(PEOPLE[:30])
    table.write(PEOPLE[30:])
    return table


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["_id"]))


def seen_by_delta_rs(table: DeltaTable) -> int:
    return int(pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all().num_rows)


@pytest.mark.parametrize(
    "filter",
    [
        {},
        {"age": {"$gte": 20, "$lt": 23}},
        {"_id": "7"},
        {"tags": 2},
        {"home.city": "a", "age": {"$mod": [5, 0]}},
        {"home": {"city": "b", "zip": 1}},
        {"name": {"$regex": "^name 1"}},
        {"$or": [{"age": 3}, {"home.zip": {"$in": [4, 5]}}]},
        {"absent": None},
        {"absent": {"$exists": True}},
        {"$expr": {"$eq": ["$age", "$home.zip"]}},
    ],
    ids=str,
)
def test_a_query_finds_what_matches(people: DeltaTable, filter: Row) -> None:
    assert by_id(people.query(filter)) == [row for row in PEOPLE if matches(filter, row)]


def test_sort_limit_skip_and_projection(people: DeltaTable) -> None:
    rows = people.query({"age": {"$gt": 10}}, sort={"home.city": 1, "age": -1}, limit=3, skip=1, projection=["age"])
    expected = sorted((row for row in PEOPLE if row["age"] > 10), key=lambda row: (row["home"]["city"], -row["age"]))
    assert rows == [{"age": row["age"]} for row in expected[1:4]]
    (last,) = people.query(sort={"age": -1}, limit=1, projection={"home.city": 1})
    assert last == {"_id": "59", "home": {"city": "b"}}
    arrow = people.query_arrow({"tags": 1}, sort={"age": 1}, limit=2, projection=["age", "_id"])
    assert arrow.to_pylist() == [{"_id": "1", "age": 1}, {"_id": "4", "age": 4}]
    # Sorted inside JSON, which is Python's to do.
    nested = people.query_arrow({}, sort={"home.zip": -1}, limit=2, projection=["_id"])
    assert nested.to_pylist() == [{"_id": "59"}, {"_id": "58"}]


def test_batches_stream_the_same_rows(people: DeltaTable) -> None:
    batches = list(people.query_batches({"home.city": "a"}))
    assert sum(batch.num_rows for batch in batches) == 30


def test_upsert_replaces_whole_rows_and_adds_new_ones(people: DeltaTable) -> None:
    changed = people.upsert([{"_id": "5", "age": 500}, {"_id": "99", "age": 1}, {"_id": "99", "age": 2}])
    assert (changed.updated, changed.inserted) == (1, 1)
    assert people.query({"_id": "5"}) == [{"_id": "5", "age": 500}]
    assert people.query({"_id": "99"}) == [{"_id": "99", "age": 2}]
    assert len(people.query()) == seen_by_delta_rs(people) == 61


def test_update_operators_and_new_columns(people: DeltaTable) -> None:
    changed = people.update({"age": {"$gte": 58}}, {"$inc": {"age": 100}, "$push": {"tags": "new"}, "$set": {"x": 1.5}})
    assert changed.updated == 2
    assert people.query({"x": 1.5}, sort={"age": 1}) == [
        {**PEOPLE[58], "age": 158, "tags": ["all", 1, "new"], "x": 1.5},
        {**PEOPLE[59], "age": 159, "tags": ["all", 2, "new"], "x": 1.5},
    ]
    before = people.version
    assert people.update({"age": -1}, {"$set": {"age": 0}}).updated == 0
    assert people.version == before


def test_delete_and_optimize_keep_the_rest(people: DeltaTable) -> None:
    assert people.delete({"age": {"$lt": 10}}).deleted == 10
    assert people.delete({"age": {"$lt": 20}}).deleted == 10
    assert by_id(people.query()) == PEOPLE[20:]
    assert seen_by_delta_rs(people) == 40
    people.optimize()
    assert by_id(people.query()) == PEOPLE[20:]
    people.delete({})
    assert people.query() == []


def test_versions_times_and_restore(people: DeltaTable) -> None:
    version = people.version
    people.delete({"age": {"$gte": 1}})
    # A version's time is its file's.
    for at in range(version + 2):
        path = Path(people.uri) / "_delta_log" / f"{at:020d}.json"
        os.utime(path, (1_700_000_000 + 60 * at,) * 2)
    moment = dt.datetime.fromtimestamp(1_700_000_000 + 60 * version + 1, dt.UTC)
    assert by_id(people.snapshot(version).query()) == PEOPLE
    assert by_id(people.snapshot(moment).query()) == PEOPLE
    people.restore(version)
    assert by_id(people.query()) == PEOPLE
    with pytest.raises(NotFound, match="no such version"):
        people.snapshot(10_000)


def test_the_change_feed_tells_every_change(people: DeltaTable) -> None:
    if people.snapshot().properties.get("delta.enableChangeDataFeed") != "true":
        with pytest.raises(Invalid, match="no change feed"):
            people.changes()
        return
    start = people.version + 1
    people.upsert([{"_id": "5", "age": 500}, {"_id": "99", "age": 1}])
    people.update({"_id": "6"}, {"$set": {"age": 600}})
    people.delete({"_id": "7"})
    feed = people.changes(start).read_all().select(["_id", "age", "_change_type"]).to_pylist()
    told = sorted((row["_id"], row["_change_type"], row["age"]) for row in feed)
    assert told == [
        ("5", "update_postimage", 500),
        ("5", "update_preimage", 5),
        ("6", "update_postimage", 600),
        ("6", "update_preimage", 6),
        ("7", "delete", 7),
        ("99", "insert", 1),
    ]


def test_a_checkpoint_says_the_same(people: DeltaTable, storage: Storage) -> None:
    people.delete({"age": {"$gte": 50}})
    people.checkpoint()
    people.upsert([{"_id": "1", "age": 1000}])
    fresh = DeltaTable(storage, "people")
    assert fresh.version == people.version
    assert by_id(fresh.query()) == by_id(people.query())
    assert len(fresh.query()) == 50


def test_pandas_polars_and_arrow_go_in(storage: Storage) -> None:
    table = DeltaTable(storage, "frames")
    table.write(pd.DataFrame({"a": [1, 2], "s": ["x", None]}))
    table.write(pl.DataFrame({"a": [3], "s": ["y"]}))
    table.write(pa.table({"a": [4], "s": ["z"]}).to_batches()[0])
    table.upsert(pl.DataFrame({"a": [1], "s": ["changed"]}), key="a")
    assert table.query(sort={"a": 1}) == [
        {"a": 1, "s": "changed"}, {"a": 2}, {"a": 3, "s": "y"}, {"a": 4, "s": "z"},
    ]  # fmt: skip


def test_python_values_come_back_as_they_went(storage: Storage) -> None:
    row: Row = {
        "_id": ObjectId(),
        "day": dt.date(2024, 2, 29),
        "moment": dt.datetime(2024, 2, 29, 12, 30, 1, 5000, tzinfo=dt.UTC),
        "price": Decimal("12.50"),
        "data": b"\x00\xff",
        "ratio": 0.1,
        "yes": True,
        "nested": {"when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "id": ObjectId(), "list": [1, None, {"a": 2.5}]},
        "mixed": "text",
    }
    table = DeltaTable(storage, "values")
    table.write([row, {"_id": ObjectId(), "mixed": 5, "ratio": math.inf}])
    (found,) = table.query({"_id": row["_id"]})
    # A document knows no days, only moments.
    assert found == {**row, "day": dt.datetime(2024, 2, 29, tzinfo=dt.UTC)}
    assert len(table.query({"mixed": 5})) == len(table.query({"nested.id": row["nested"]["id"]})) == 1
    with pytest.raises(Invalid, match="does not fit"):
        table.write([{"_id": ObjectId(), "ratio": "much"}])


def test_partitions(storage: Storage) -> None:
    table = DeltaTable(storage, "days")
    rows = [{"n": n, "day": dt.date(2024, 1, 1 + n % 4), "kind": ["a b", "é/=", None][n % 3]} for n in range(48)]
    table.write(rows, partition_by=["day", "kind"])
    assert table.snapshot().partition_by == ("day", "kind")
    found = table.find({"kind": "é/=", "day": dt.datetime(2024, 1, 2, tzinfo=dt.UTC)})
    assert found.statistics.files_skipped == 11
    assert sorted(row["n"] for row in found.rows()) == [n for n in range(48) if n % 4 == 1 and n % 3 == 1]
    table.upsert([{"n": 13, "day": dt.date(2024, 1, 9), "kind": "new"}], key="n")
    table.update({"kind": None, "n": 2}, {"$set": {"kind": "set"}})
    assert len(table.query()) == seen_by_delta_rs(table) == 48
    assert table.query({"kind": {"$in": ["new", "set"]}}, sort={"n": 1}, projection=["n"]) == [{"n": 2}, {"n": 13}]


def test_zone_maps_skip_files_and_row_groups(storage: Storage) -> None:
    table = DeltaTable(storage, "zones")
    for start in range(0, 1_000_000, 250_000):
        numbers = range(start, start + 250_000)
        table.write(pa.table({"n": pa.array(numbers), "s": [f"{n:07d}" for n in numbers]}))
    table.optimize(target_bytes=1)  # nothing fits together: the four files stay
    for filter in ({"n": 600_000}, {"s": "0600000"}, {"n": {"$gte": 600_000, "$lt": 600_010}}):
        found = table.find(filter)
        assert found.statistics.files == 4
        assert found.statistics.files_skipped == 3
        assert all(row["n"] >= 600_000 for row in found.rows())
    everything = table.find({"n": {"$gte": 0}}).statistics
    assert (everything.files_skipped, everything.row_groups_skipped) == (0, 0)
    table.optimize()
    found = table.find({"n": {"$lt": 5}})
    assert (found.statistics.files, found.statistics.files_skipped) == (1, 0)
    assert 0 < found.statistics.row_groups_skipped < found.statistics.row_groups
    assert len(found.rows()) == 5


def test_files_are_compressed_and_have_dictionaries_where_values_repeat(storage: Storage) -> None:
    table = DeltaTable(storage, "files")
    rows = pa.table({"n": pa.array(range(5_000)), "s": [f"{n % 7}" for n in range(5_000)]})
    table.write(rows, properties={"delta.enableDeletionVectors": "true"})  # a file of ours, being the first
    table.write(rows)  # one of delta-rs
    table.upsert(rows.slice(0, 4_000), "n")  # and one of ours again
    assert table.query_arrow({"n": {"$gte": 4_990}}).num_rows == 20
    uris = table.snapshot().file_uris()
    assert len(uris) == 3
    for uri in uris:
        group = pq.ParquetFile(uri).metadata.row_group(0)
        chunks = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
        assert (chunks["n"].has_dictionary_page, chunks["s"].has_dictionary_page) == (False, True)


def test_constraints_hold_for_every_kind_of_write(storage: Storage) -> None:
    table = DeltaTable(storage, "checked")
    table.write([{"_id": "1", "age": 5}])
    table.add_constraint("positive", "age > 0")
    for attempt in (
        lambda: table.write([{"_id": "2", "age": -1}]),
        lambda: table.upsert([{"_id": "1", "age": -1}]),
        lambda: table.update({}, {"$set": {"age": -1}}),
        lambda: table.write([{"_id": "2", "age": -1}], expected_version=table.version),
    ):
        with pytest.raises(Invalid, match="constraint"):
            attempt()
    assert table.query() == [{"_id": "1", "age": 5}]
    table.drop_constraint("positive")
    table.upsert([{"_id": "1", "age": -1}])


def test_append_only_tables_refuse_deletes(storage: Storage) -> None:
    table = DeltaTable(storage, "facts")
    table.create(pa.schema([("_id", pa.string())]), append_only=True)
    table.write([{"_id": "1"}])
    with pytest.raises(Invalid, match="only new rows"):
        table.delete({})


def test_an_expected_version_wins_or_loses(people: DeltaTable, storage: Storage) -> None:
    version = people.version
    other = DeltaTable(storage, "people")
    assert people.write([{"_id": "a"}], expected_version=version) == version + 1
    for attempt in (
        lambda: other.write([{"_id": "b"}], expected_version=version),
        lambda: other.upsert([{"_id": "b"}], expected_version=version),
        lambda: other.update({}, {"$set": {"x": 1}}, expected_version=version),
        lambda: other.delete({}, expected_version=version),
    ):
        with pytest.raises(VersionMismatchError) as lost:
            attempt()
        assert (lost.value.expected, lost.value.got) == (version, version + 1)
    assert people.version == version + 1


def test_an_application_writes_a_batch_once(storage: Storage) -> None:
    table = DeltaTable(storage, "once")
    for _ in range(2):
        table.write([{"_id": "1"}], transaction=("app", 7))
        table.upsert([{"_id": "2"}], transaction=("app", 8))
    assert len(table.query()) == 2
    assert table.snapshot().transactions == {"app": 8}


def a_minute_later(table: DeltaTable) -> DeltaTable:
    """The same table for whom all that is there now is old: a file of this very millisecond is not old yet."""
    return DeltaTable(table.storage, table.name, clock=ManualClock(SystemClock().now_ms() + 60_000))


def test_vacuum_shows_first_and_removes_when_told(storage: Storage) -> None:
    table = DeltaTable(storage, "old")
    table.write([{"_id": "1"}], properties={"delta.deletedFileRetentionDuration": "interval 0 hours"})
    table.write([{"_id": "2"}], mode="overwrite")
    later = a_minute_later(table)
    shown = later.vacuum(retention_hours=0)
    assert len(shown) == 1
    assert table.snapshot(0).query() == [{"_id": "1"}]
    assert later.vacuum(retention_hours=0, dry_run=False) == shown
    assert table.query() == [{"_id": "2"}]


def test_a_name_stays_below_its_storage(storage: Storage) -> None:
    for name in ("", "../x", "/x", "a/../b"):
        with pytest.raises(Invalid, match="below its storage"):
            DeltaTable(storage, name)


async def test_the_same_awaited(storage: Storage) -> None:
    table = AsyncDeltaTable(storage, "waited")
    await table.write(PEOPLE)
    await asyncio.gather(*(table.write([{"_id": str(100 + n), "age": n}]) for n in range(4)))
    assert len(await table.query()) == 64
    assert sum([batch.num_rows async for batch in table.query_batches({"age": {"$lt": 30}})]) == 34
    assert await table.version() == 4


def test_a_large_table_whole_is_the_same_rows(storage: Storage) -> None:
    table = DeltaTable(storage, "large")
    table.create(pa.schema([("n", pa.int64()), ("s", pa.string()), ("p", pa.int64())]), deletion_vectors=True)
    for part in range(2):
        numbers = range(part * 200_000, (part + 1) * 200_000)
        table.write(pa.table({"n": numbers, "s": [f"{n * 7919 % 10**9:040d}" for n in numbers], "p": [part] * 200_000}))
    table.delete({"n": {"$mod": [1000, 1]}})
    whole = table.query_arrow()
    assert whole.num_rows > find.WHOLE_ROWS_MIN
    assert whole.schema == pa.schema([("n", pa.int64()), ("s", pa.string()), ("p", pa.int64())])
    # A condition that every row meets goes the other way.
    assert whole.sort_by("n") == table.query_arrow({"n": {"$gte": 0}}).sort_by("n")
    assert whole.num_rows == 399_600
    assert table.snapshot(1).query_arrow(projection=["s"]).num_rows == 200_000


def test_vectors_in_the_log_are_read_and_ours_are_in_files(tmp_path: Path) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.write([{"_id": n} for n in range(100)], properties={"delta.enableDeletionVectors": "true"})
    table.delete({"_id": {"$in": [3, 77]}})
    (binary,) = (tmp_path / "t").glob("deletion_vector_*.bin")
    commit = tmp_path / "t" / "_delta_log" / f"{table.version:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    # The same vector as some other writers keep it: after the file's version and the length, up to the checksum.
    size = add["deletionVector"]["sizeInBytes"]
    data = binary.read_bytes()[5 : 5 + size]
    add["deletionVector"] = {
        "storageType": "i",
        "pathOrInlineDv": encode85(data + b"\0" * (-size % 4)),
        "sizeInBytes": size,
        "cardinality": 2,
    }
    commit.write_text("\n".join(map(json.dumps, actions)))
    binary.unlink()
    again = DeltaTable(create_storage(str(tmp_path)), "t")
    left = sorted(set(range(100)) - {3, 77})
    assert sorted(row["_id"] for row in again.query()) == left
    theirs = pa.RecordBatchReader.from_stream(again.delta_rs().scan()).read_all()
    assert sorted(theirs["_id"].to_pylist()) == left
    again.delete({"_id": 4})
    assert len(again.query()) == 97


def test_vacuum_keeps_the_vectors_that_are_in_use_and_takes_the_others(tmp_path: Path) -> None:
    storage = create_storage(str(tmp_path))
    table = DeltaTable(storage, "t")
    table.write([{"_id": n, "p": n % 2} for n in range(100)], partition_by=["p"],
                properties={"delta.enableDeletionVectors": "true", RETENTION: "interval 0 hours"})  # fmt: skip
    table.delete({"_id": 3})
    (first,) = (tmp_path / "t").glob("*.bin")
    table.delete({"_id": 5})
    DeltaTable(storage, "t/inner").write([{"_id": 1}])
    stray = tmp_path / "t" / "p=0" / "stray.parquet"
    stray.write_bytes(b"of a writer that died")
    inner = DeltaTable(storage, "t/inner").snapshot().file_uris()
    later = a_minute_later(table)
    assert sorted(later.vacuum()) == sorted([first.name, "p=0/stray.parquet"])
    later.vacuum(dry_run=False)
    assert not first.exists() and not stray.exists() and all(Path(uri).exists() for uri in inner)
    again = DeltaTable(create_storage(str(tmp_path)), "t")
    assert sorted(row["_id"] for row in again.query()) == [n for n in range(100) if n not in (3, 5)]
    with pytest.raises(Invalid, match="keeps more"):
        DeltaTable(storage, "t/inner").vacuum(retention_hours=1)
