"""A column that meets a value which it cannot hold becomes one that holds both, where the table's setting says so."""

import datetime as dt
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pytest
from bson.objectid import ObjectId
from duckdb_extensions import import_extension

from mainstem.client.delta import DeltaTable, Storage, VersionMismatchError, create_storage
from mainstem.formats.delta.schema import KIND
from mainstem.formats.delta.values import widening
from mainstem.formats.delta.values.evolution import EVOLUTION
from mainstem.model.errors import Invalid
from tests.harness.delta_values import is_kept

Row = dict[str, Any]
DAY, NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
ID = ObjectId("65f0c0ffee65f0c0ffee65f0")


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


def made(storage: Storage, first: Any, name: str = "t", **options: Any) -> DeltaTable:
    table = DeltaTable(storage, name)
    table.write([{"_id": 1, "v": first}], **{"evolution": "widen", **options})
    return table


def column(table: DeltaTable) -> str:
    field = table.schema.field("v")
    return str((field.metadata or {}).get(KIND.encode(), str(field.type).encode()).decode())


def values(table: DeltaTable) -> dict[int, Any]:
    return {row["_id"]: row.get("v") for row in table.query()}


def files(table: DeltaTable) -> int:
    return len(list(Path(table.uri).rglob("*.parquet")))


CASES = [
    (5, 2.75, "double"),
    (2**53 + 1, 0.5, "decimal128(38, 1)"),
    (2**53 + 1, 0.1, "json"),
    (2**53 + 1, float("nan"), "extended_json"),
    (5, Decimal("2.50"), "decimal128(38, 2)"),
    (5, Decimal("1e-30"), "extended_json"),
    (5, 10**20, "decimal128(38, 0)"),
    (5, "text", "json"),
    (5, True, "json"),
    (5, NOON, "extended_json"),
    (0.5, 2**53 + 1, "json"),
    (float("inf"), "text", "extended_json"),
    (Decimal("1.5"), Decimal("2.505"), "decimal128(38, 3)"),
    (Decimal("1" * 34), Decimal("0.00001"), "extended_json"),
    (DAY, NOON, "timestamp[us, tz=UTC]"),
    (DAY, "text", "extended_json"),
    ("text", 5, "json"),
    ('{"a": 1}', 5, "json"),
    ("text", b"\x00", "extended_json"),
    (b"\x00\xff", "text", "extended_json"),
    (True, 1, "json"),
    (ID, "text", "extended_json"),
    ({"a": 1}, NOON, "extended_json"),
    ([1, "a"], ID, "extended_json"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "becomes"), CASES, ids=str)
@pytest.mark.parametrize("vectors", [False, True])
def test_a_column_becomes_what_holds_both(storage: Storage, old: Any, new: Any, becomes: str, vectors: bool) -> None:
    ways: dict[str, Callable[[DeltaTable], object]] = {
        "write": lambda table: table.write([{"_id": 3, "v": new}, {"_id": 4}]),
        "stream": lambda table: table.write({"_id": at, "v": new} for at in (3,)),
        "upsert": lambda table: table.upsert([{"_id": 3, "v": new}, {"_id": 2, "v": old}]),
        "update": lambda table: table.update({"_id": 3}, {"$set": {"v": new}}),
    }
    for way, write in ways.items():
        table = made(storage, old, way, properties={"delta.enableDeletionVectors": str(vectors).lower()})
        table.write([{"_id": 2, "v": old}, {"_id": 3}] if way == "update" else [{"_id": 2, "v": old}])
        before = table.snapshot()
        write(table)
        assert table.version == before.version + 1, "one commit"
        assert column(table) == becomes
        found = values(table)
        assert is_kept(old, found[1])
        assert is_kept(old, found[2])
        assert is_kept(new, found[3])
        assert all(is_kept(old, row["v"]) for row in before.query() if row["_id"] < 3), "as it was"
        assert table.query({"v": new}) or new != new  # noqa: PLR0124
        rows = pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all() if not vectors else None
        assert rows is None or sorted(rows["_id"].to_pylist()) == sorted(found)


def test_a_variant_holds_whatever_comes(storage: Storage) -> None:
    for at, (old, new, _) in enumerate(CASES):
        table = made(storage, old, f"v{at}", evolution="variant")
        try:
            table.write([{"_id": 2, "v": new}])
        except Invalid as error:
            # A Variant has no ObjectIds.
            assert ID in (old, new)
            assert "column=v" in str(error)
            assert (table.version, files(table)) == (0, 1)
            continue
        assert table.schema.field("v").type.num_fields == 2
        assert is_kept(old, values(table)[1])
        assert is_kept(new, values(table)[2])


def test_other_engines_read_what_became_of_it(storage: Storage) -> None:
    table = made(storage, 5)
    table.write([{"_id": 2, "v": 2.5}])
    table.upsert([{"_id": 3, "v": "x"}])
    theirs = pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all().to_pylist()
    assert {row["_id"]: row["v"] for row in theirs} == {1: "5.0", 2: "2.5", 3: '"x"'}
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.load_extension("delta")
    found = connection.execute(f"SELECT v FROM delta_scan('{table.uri}') ORDER BY _id").fetchall()
    assert found == [("5.0",), ("2.5",), ('"x"',)]
    table.optimize()
    table.checkpoint()
    assert [row["v"] for row in DeltaTable(storage, "t").query(sort={"_id": 1})] == [5.0, 2.5, "x"]
    assert table.snapshot(0).query() == [{"_id": 1, "v": 5}]
    table.restore(0)
    assert (column(table), values(table)) == ("int64", {1: 5})
    table.write([{"_id": 2, "v": "again"}])
    assert values(table) == {1: 5, 2: "again"}


def test_arrow_goes_on_with_its_own_types(storage: Storage) -> None:
    """Text stays text in a column that became JSON, and a number a number, whoever wrote first."""
    table = made(storage, 5)
    for at in (2, 4, 6):
        table.write(pa.table({"_id": [at], "v": ["7"]}))
        table.write(pa.table({"_id": [at + 1], "v": [7]}))
    assert values(table) == {1: 5, 2: "7", 3: 7, 4: "7", 5: 7, 6: "7", 7: 7}
    table.set_properties({EVOLUTION: "refuse"})
    table.write(pa.table({"_id": [8], "v": ["8"]}))
    told = pa.schema([("_id", pa.int64()), table.schema.field("v")])
    table.write(pa.table({"_id": [9], "v": ['{"a": 1}']}, schema=told))
    assert (values(table)[8], values(table)[9]) == ("8", {"a": 1})


def test_the_setting_is_the_tables_own(storage: Storage) -> None:
    table = made(storage, 5, evolution=None)
    with pytest.raises(Invalid, match="column=v"):
        table.write([{"_id": 2, "v": 2.5}])
    table.set_properties({EVOLUTION: "widen"})
    other = DeltaTable(storage, "t")
    with pytest.raises(Invalid, match="column=v"):
        other.write([{"_id": 2, "v": 2.5}], evolve=False)
    other.write([{"_id": 2, "v": 2.5}])
    table.set_properties({EVOLUTION: "refuse"})
    with pytest.raises(Invalid, match="column=v"):
        table.write([{"_id": 3, "v": "x"}])
    for attempt in (
        lambda: table.set_properties({EVOLUTION: "narrow"}),
        lambda: made(storage, 1, "no", evolution="narrow"),
        lambda: DeltaTable(storage, "no").create(pa.schema([("a", pa.int64())]), properties={EVOLUTION: "x"}),
    ):
        with pytest.raises(Invalid, match=r"expected=refuse\|widen\|variant"):
            attempt()
    assert not DeltaTable(storage, "no").exists()


@pytest.mark.parametrize("evolution", ["widen", "variant"])
def test_what_must_keep_its_type_is_refused_by_name(storage: Storage, evolution: Literal["widen", "variant"]) -> None:
    table = DeltaTable(storage, "t")
    schema = pa.schema(
        [("_id", pa.int64()), ("p", pa.int64()), ("n", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    table.create(schema, partition_by=["p"], evolution=evolution)
    table.write([{"_id": 1, "p": 1, "n": 1, "m": {"a": 1}}])
    table.add_constraint("small", "n < 100")
    at, left = table.version, files(table)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: table.write([{"_id": 2, "p": "x"}]), "column=p .*a partition"),
        (lambda: table.update({}, {"$set": {"p": "x"}}), "column=p .*a partition"),
        (lambda: table.upsert([{"_id": "x", "p": 1}]), "column=_id .*a key"),
        (lambda: table.upsert([{"_id": 1, "p": 1}], delete=[{"_id": "x"}]), "column=_id"),
        (lambda: table.write([{"_id": 2, "n": 2.5}]), "column=n .*constraint=small"),
        (lambda: table.write([{"_id": 2, "m": "x"}]), "column=m .*a map"),
        (lambda: table.write([{"_id": "x", "v": "\ud800"}]), "column=v"),
    ]
    for attempt, said in refused:
        with pytest.raises(Invalid, match=said):
            attempt()
    assert (table.version, files(table)) == (at, left), "nothing is left behind"


def test_the_feed_knows_no_change_of_type(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    schema = pa.schema([("_id", pa.int64()), ("v", pa.string())])
    table.create(schema, change_feed=True, deletion_vectors=True, evolution="widen")
    table.write([{"_id": 1, "v": "5"}, {"_id": 2, "v": "b"}])
    table.upsert([{"_id": 1, "v": "6"}])
    table.write([{"_id": 3, "v": 3}])
    table.upsert([{"_id": 2, "v": DAY}])
    table.update({"_id": 3}, {"$set": {"v": None}})
    table.delete({"_id": 1})
    feed = table.changes().read_all()
    told = table.documents(feed, "_change_type", "_commit_version", "_commit_timestamp")
    midnight = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
    found = [(row["_commit_version"], row["_change_type"][:10], row["_id"], row.get("v")) for row in told]
    assert sorted(found, key=lambda each: (each[0], each[2], each[1] == "update_pos")) == [
        (1, "insert", 1, "5"), (1, "insert", 2, "b"),
        (2, "update_pre", 1, "5"), (2, "update_pos", 1, "6"),
        (3, "insert", 3, 3),
        (4, "update_pre", 2, "b"), (4, "update_pos", 2, midnight),
        (5, "update_pre", 3, 3), (5, "update_pos", 3, None),
        (6, "delete", 1, "6"),
    ]  # fmt: skip
    assert table.changes(2, 2).read_all()["v"].to_pylist() == ['"5"', '"6"'], "in the columns of the newest version"


def test_a_table_that_takes_only_new_rows_becomes_wider(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    table.create(pa.schema([("_id", pa.int64()), ("v", pa.int64())]), append_only=True, evolution="widen")
    table.write([{"_id": 1, "v": 1}])
    table.write([{"_id": 2, "v": "x"}])
    with pytest.raises(Invalid, match="only new rows"):
        table.upsert([{"_id": 1, "v": NOON}])
    assert values(table) == {1: 1, 2: "x"}
    log = Path(table.uri) / "_delta_log" / f"{2:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    assert [action["remove"]["dataChange"] for action in actions if "remove" in action] == [False]
    assert sorted(action["add"]["dataChange"] for action in actions if "add" in action) == [False, True]
    assert files(table) == 3


def test_a_stream_makes_its_own_columns_wider(storage: Storage) -> None:
    kinds: list[Any] = [1, 2.5, 2**60, "x", NOON]

    def parts() -> Iterator[pa.Table | list[Row]]:
        for at, value in enumerate(kinds):
            yield [{"_id": at, "v": value, "old": value if at > 2 else None}]

    table = DeltaTable(storage, "t")
    assert table.write(parts(), evolution="widen") == 0
    assert all(is_kept(value, values(table)[at]) for at, value in enumerate(kinds))
    assert files(table) == len(table.state().files)
    assert table.write(iter([[{"_id": at + 10, "v": value}] for at, value in enumerate(kinds)]), mode="overwrite") == 1
    assert all(is_kept(value, values(table)[at + 10]) for at, value in enumerate(kinds))


def test_a_stream_that_is_refused_after_a_column_became_wider_leaves_nothing(storage: Storage) -> None:
    table = made(storage, 5)

    def rows() -> Iterator[list[Row]]:
        yield [{"_id": 2, "v": 7}]
        yield [{"_id": 3, "v": "x"}]
        yield [{"_id": 4, "v": object()}]

    with pytest.raises(Invalid, match="column=v"):
        table.write(rows())
    assert (table.version, files(table), column(table)) == (0, 1, "int64")


@pytest.mark.parametrize("theirs", [7, 7.5, "x", NOON, 2**60], ids=str)
def test_a_writer_that_comes_late_takes_the_next_version(storage: Storage, theirs: Any) -> None:
    """Another writer commits while a stream is read that makes the same column a double."""
    table, other = made(storage, 5), DeltaTable(storage, "t")

    def rows() -> Iterator[list[Row]]:
        yield [{"_id": 2, "v": 2.5}]
        other.write([{"_id": 9, "v": theirs}])

    if theirs in (7, 7.5):
        assert table.write(rows()) == 2
        assert values(table) == {1: 5, 2: 2.5, 9: theirs}
        return
    with pytest.raises(VersionMismatchError, match="columns changed"):
        table.write(rows())
    assert values(table) == {1: 5, 9: theirs}
    assert files(table) == len({file for at in range(2) for file in table.snapshot(at).file_uris()})


RACE = """
import sys
from decimal import Decimal
from mainstem.client.delta import DeltaTable, create_storage

folder, me = sys.argv[1], int(sys.argv[2])
table = DeltaTable(create_storage(folder), "t")
sys.stdin.readline()
kinds = [lambda n: n, lambda n: n + 0.5, lambda n: str(n), lambda n: [n, Decimal(n)]]
for n in range(8):
    kind = kinds[min(n // 2, 3)] if me else kinds[min(n // 3, 3)]
    row = {"_id": me * 100 + n, "v": kind(n), f"w{n % 2}": kind(n + 1)}
    table.upsert([row]) if n % 2 else table.write([row])
"""


@pytest.mark.parametrize("evolution", ["widen", "variant"])
def test_two_processes_change_one_table(tmp_path: Path, evolution: Literal["widen", "variant"]) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.write([{"_id": -1, "v": 0}], evolution=evolution)
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    racers = [subprocess.Popen([*command, str(me)], stdin=subprocess.PIPE, text=True) for me in (0, 1)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert [racer.wait(120) for racer in racers] == [0, 0]
    kinds: list[Callable[[int], Any]] = [lambda n: n, lambda n: n + 0.5, str, lambda n: [n, Decimal(n)]]
    found = {row["_id"]: row for row in table.query()}
    assert table.query_arrow().num_rows == len(found) == 17
    for me in (0, 1):
        for n in range(8):
            kind, row = kinds[min(n // (2 if me else 3), 3)], found[me * 100 + n]
            assert is_kept(kind(n), row["v"])
            assert is_kept(kind(n + 1), row[f"w{n % 2}"])
    known = {file for at in range(table.version + 1) for file in table.snapshot(at).file_uris()}
    assert files(table) == len(known), "what lost left nothing"


POOLS: dict[str, Callable[[random.Random], Any]] = {
    "small": lambda rng: rng.randrange(-9, 9),
    "large": lambda rng: rng.randrange(-(2**63), 2**63),
    "fraction": lambda rng: rng.choice([0.5, -2.75, 0.1, 1e300, float("nan"), float("inf")]),
    "decimal": lambda rng: Decimal(rng.randrange(10**9)).scaleb(-rng.randrange(9)),
    "text": lambda rng: rng.choice(["", "5", "null", '{"a": 1}', "é"]),
    "day": lambda rng: DAY + dt.timedelta(rng.randrange(9)),
    "moment": lambda rng: NOON + dt.timedelta(microseconds=rng.randrange(10**9)),
    "boolean": lambda rng: rng.random() < 0.5,
    "list": lambda rng: [rng.randrange(9), {"a": None}],
    "null": lambda rng: None,
}


@pytest.mark.parametrize("evolution", ["widen", "variant"])
@pytest.mark.parametrize("seed", range(8))
def test_typed_batches_come_back_as_they_went(
    storage: Storage, seed: int, evolution: Literal["widen", "variant"]
) -> None:
    """Batches of one type each, as documents, Arrow and streams: all of them are in the table, value for value."""
    rng = random.Random(seed)
    table = DeltaTable(storage, "t")
    first = pa.schema([("_id", pa.int64()), ("v", rng.choice([pa.int64(), pa.int32(), pa.date32(), pa.string()]))])
    table.create(first, evolution=evolution, change_feed=True, deletion_vectors=rng.random() < 0.5)
    model: dict[int, Any] = {}
    versions: dict[int, dict[int, Any]] = {}
    for _ in range(8):
        batch = {rng.randrange(10**9): POOLS[pool](rng) for pool in [rng.choice([*POOLS])] for _ in range(4)}
        rows = [{"_id": id_, "v": value} for id_, value in batch.items()]
        match rng.randrange(4):
            case 0:
                table.write(rows)
            case 1:
                table.write(iter(rows))
            case 2:
                table.upsert(rows)
            case _ if not any(isinstance(value, list) for value in batch.values()):
                ids, cells = pa.array([*batch]), pa.array([*batch.values()])
                table.write(pa.table({"_id": ids, "v": cells}))
            case _:
                table.write(rows)
        model |= batch
        versions[table.version] = dict(model)
    for version, rows_then in versions.items():
        found = {row["_id"]: row.get("v") for row in table.snapshot(version).query()}
        assert found.keys() == rows_then.keys()
        for id_, value in rows_then.items():
            assert (value is found[id_] is None) or is_kept(value, found[id_]), f"{value!r} became {found[id_]!r}"
    told = table.documents(table.changes().read_all(), "_change_type", "_commit_version", "_commit_timestamp")
    assert {row["_change_type"] for row in told} == {"insert"}
    assert len(told) == len(model)
    assert all((model[row["_id"]] is row.get("v") is None) or is_kept(model[row["_id"]], row.get("v")) for row in told)


def test_a_large_file_is_written_anew_in_parts(storage: Storage) -> None:
    table = DeltaTable(storage, "t")
    count = 1_500_000
    text = pa.array(["x" * 80]).take(pa.array([0] * count, pa.int32()))
    table.write(pa.table({"_id": range(count), "v": range(count), "text": text}), evolution="widen")
    assert len(table.state().files) == 1
    table.write([{"_id": -1, "v": 0.5}])
    counts = [json.loads(file.stats or "")["numRecords"] for file in table.state().files.values()]
    assert sum(counts) == count + 1
    # A row takes about 100 bytes in Arrow.
    assert len(counts) > 2
    assert max(counts) * 90 < widening.PENDING_BYTES_MAX + widening.BATCH_ROWS * 100
    assert table.query({"_id": {"$in": [5, -1]}}, projection=["v"], sort={"_id": 1}) == [{"v": 0.5}, {"v": 5.0}]
