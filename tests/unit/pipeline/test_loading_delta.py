"""A load without the log into Delta tables: as through the log, and as into Iceberg tables. DuckDB and Spark read."""

import datetime as dt
import decimal
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.client.delta import create_storage
from mainstem.model.errors import Invalid
from mainstem.model.keys import key_text
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable
from mainstem.pipeline.upkeep.load_one import LOADS_PROPERTY
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import Format, TableSettings, parse_partition
from mainstem.tables.types import ColumnType
from tests.unit.pipeline.test_delta_lake import by_duckdb, values
from tests.unit.pipeline.test_loading import KEYS, LINES, MORE_LINES, REFUSALS, Loader, changes, through_the_log

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def settings(**more: Any) -> TableSettings:
    return TableSettings(format=Format.DELTA, **more)


def other_bench(bench: Any, folder: Path) -> Any:
    """A bench whose tables are in Delta, for what is to come out."""
    made = type(bench)(bench.spark, folder / "segments", f"{bench.namespace}_w", bench.lake.catalog)
    made.delta = DeltaLake(create_storage(str(folder / "delta")), SystemClock())
    return made


def state_of(bench: Any) -> DeltaLakeTable:
    found: DeltaLakeTable | None = bench.delta.load(bench.name("orders"))
    assert found is not None
    return found


def data_files(bench: Any) -> set[str]:
    """What lies in the table's folder."""
    folder = Path(str(bench.delta.storage.uri(bench.delta.path(bench.name("orders")))).removeprefix("file://"))
    return {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


@pytest.fixture
def loader(bench: Any, tmp_path: Path) -> Loader:
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock())
    made = Loader(bench, tmp_path / "load")
    made.settings = settings()
    return made


def test_every_type_becomes_what_it_becomes_through_the_log(bench: Any, loader: Loader) -> None:
    moment = dt.datetime(2026, 1, 31, 23, 59, 59, 123456)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "small": pa.array([1, None], pa.int16()),
            "large": pa.array([2**60, 1]),
            "ratio": pa.array([0.1, None]),
            "price": pa.array([decimal.Decimal("12.50"), None], pa.decimal128(12, 2)),
            "day": pa.array([dt.date(2026, 1, 31), None]),
            "at": pa.array([moment, None], pa.timestamp("us")),
            "seen": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "raw": pa.array([b"\x00\xff", None]),
            "is_new": pa.array([True, None]),
            "text": pa.array(['a "b" \\ ü', None]),
            "doc": pa.array([{"a": [1, 2], "b": "x"}, None]),
            "since": pa.array(["2026-01-31T23:59:59Z", None]),
            "clock": pa.array([1_700_000_000_123, None]),
        }
    )
    loader.settings = settings(columns={"since": ColumnType("timestamptz"), "clock": ColumnType("timestamptz")})
    pq.write_table(table, loader.folder / "a.parquet")
    assert loader.load() == {"rows": 2, "files": 1, "merged": 0, "repeated": 0}
    state = state_of(bench)
    kinds = {column.name: (str(column.type), str(column.kind)) for column in state.columns()}
    assert kinds == {
        "id": ("long", "int"), "small": ("long", "int"), "large": ("long", "long"), "ratio": ("double", "double"),
        "price": ("decimal(12,2)", "None"), "day": ("date", "None"), "at": ("timestamp", "None"),
        "seen": ("timestamptz", "None"), "raw": ("binary", "None"), "is_new": ("boolean", "bool"),
        "text": ("string", "string"), "doc": ("string", "json"), "since": ("timestamptz", "None"),
        "clock": ("timestamptz", "None"),
    }  # fmt: skip
    one = by_duckdb(bench)[0]
    assert (one["_key"], one["_source"], one["_hlc"], one["_position"]) == ("1", "load", 1, 0)
    assert one["doc"] == '{"a":[1,2],"b":"x"}' and one["raw"] == b"\x00\xff" and one["large"] == 2**60
    assert one["price"] == decimal.Decimal("12.50") and one["text"] == 'a "b" \\ ü' and one["at"] == moment
    assert one["since"] == dt.datetime(2026, 1, 31, 23, 59, 59, tzinfo=dt.UTC)
    # The log goes on from there: a part of a row, a delete, a new one.
    bench.seal(bench.change("1", {"ratio": 2}), bench.change("2", None), bench.change("3", {"id": 3, "more": "x"}))
    bench.catch_up(settings=loader.settings)
    rows = values(bench)
    assert set(rows) == {"1", "3"} and rows["1"]["ratio"] == 2.0
    assert all(rows["1"][name] == one[name] for name in kinds if name != "ratio")


@pytest.mark.parametrize("vectors", [True, False])
def test_rows_merge_with_what_the_log_brought_before_and_after(
    bench: Any, loader: Loader, tmp_path: Path, vectors: bool
) -> None:
    ids = [f"k{number:02d}" for number in range(KEYS)]
    loaded: dict[str, list[Any]] = {"id": ids, "n": list(range(KEYS)), "text": ["loaded"] * KEYS, "more": [0.5] * KEYS}
    loader.write("a.parquet", **{name: cells[:25] for name, cells in loaded.items()})
    (loader.folder / "deep").mkdir()
    loader.write("deep/b.parquet", **{name: cells[25:] for name, cells in loaded.items()})
    # As it would have been: the rows first, through the log.
    wanted = other_bench(bench, tmp_path / "other")
    rows = [{name: cells[number] for name, cells in loaded.items()} for number in range(KEYS)]
    wanted.seal(*(wanted.change(row["id"], row) for row in rows))
    wanted.catch_up(settings=loader.settings)
    for each in (wanted, bench):
        each.seal(*changes(each))
        each.catch_up(settings=loader.settings)
    if not vectors:
        bench.delta.table(bench.name("orders")).set_properties({"delta.enableDeletionVectors": "false"})
        assert not state_of(bench).keeps_vectors
    marks = state_of(bench).marks()
    assert loader.load() == {"rows": KEYS, "files": 2, "merged": 15, "repeated": 0}
    assert values(bench) == values(wanted)
    assert state_of(bench).marks() == marks
    for each in (wanted, bench):
        each.seal(each.change("k02", {"more": 9}), each.change("k12", {"n": 12}), each.change("k30", None))
        each.catch_up(settings=loader.settings)
    assert values(bench) == values(wanted)
    # The same files again are the same load; other ones win over loaded rows, and over nothing else.
    version = state_of(bench).version
    assert loader.load()["repeated"] == 1 and state_of(bench).version == version
    loader.write("a.parquet", id=["k20", "k02"], n=[2000, 2000])
    shutil.rmtree(loader.folder / "deep")
    assert loader.load() == {"rows": 2, "files": 1, "merged": 2, "repeated": 0}
    found = values(bench)
    assert found["k20"]["n"] == 2000 and found["k20"]["text"] == "loaded" and found["k02"]["n"] == -2
    # Spark's own reader agrees with DuckDB's.
    uri = bench.delta.storage.uri(bench.delta.path(bench.name("orders")))
    spark_rows = bench.spark.read.format("delta").load(uri).select("_key", "n", "text").collect()
    assert {row["_key"]: (row["n"], row["text"]) for row in spark_rows} == {
        key: (row["n"], row["text"]) for key, row in found.items()
    }


def test_a_table_that_was_changed_meanwhile_is_loaded_once(bench: Any, loader: Loader) -> None:
    bench.seal(bench.change("a", {"n": 1}), bench.change("x", {"text": "log"}))
    bench.catch_up(settings=loader.settings)
    loader.write("a.parquet", id=["x", "y"], n=[1, 2])
    races: list[int] = []

    def somebody_else() -> bool:
        if not races:
            races.append(1)
            state_of(bench).commit(state_of(bench).marks())
        return True

    assert loader.load(go_on=somebody_else) == {"rows": 2, "files": 1, "merged": 1, "repeated": 0}
    assert values(bench)["x"]["text"] == "log" and set(values(bench)) == {"a", "x", "y"} and races
    # What the lost try wrote is gone: the files are those of the versions.
    every = {Path(add["path"]).name for version in range(state_of(bench).version + 1) for add in added(bench, version)}
    assert data_files(bench) == every
    loader.write("b.parquet", id=["z"], n=[1])
    with pytest.raises(Invalid, match="cancelled"):
        loader.load(go_on=lambda: False)
    assert set(values(bench)) == {"a", "x", "y"} and data_files(bench) == every


def added(bench: Any, version: int) -> list[dict[str, Any]]:
    log = state_of(bench).log
    lines = bench.delta.storage.read(log.commit_path(version)).decode().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def test_partitions_and_keys_of_several_columns(bench: Any, loader: Loader) -> None:
    loader.settings = settings(
        partition=parse_partition(["day(at)", "bucket(4, name)", "kind"]),
        columns={"at": ColumnType("timestamptz"), "name": ColumnType("string"), "kind": ColumnType("string")},
    )
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    names, lines = ['a"b', "c\\d", "ü", "plain"], [1, 2, 3, 4]
    days = pa.array([start + dt.timedelta(days=number) for number in lines], pa.timestamp("us", "UTC"))
    loader.write("a.parquet", name=names, line=lines, at=days, kind=["x y", "p%7B{*}", None, "ä"])
    assert loader.load(key=("name", "line"))["rows"] == 4
    keys = [key_text({"name": name, "line": line}) for name, line in zip(names, lines, strict=True)]
    assert {key: row["kind"] for key, row in values(bench).items()} == dict(
        zip(keys, ["x y", "p%7B{*}", None, "ä"], strict=True)
    )
    assert {file.partitionValues["at_day"] for file in state_of(bench).files} == {f"2026-01-0{n}" for n in (2, 3, 4, 5)}
    bench.seal(bench.change(keys[0], None), bench.change(keys[1], {"line": 20}))
    bench.catch_up(settings=loader.settings)
    assert keys[0] not in values(bench) and values(bench)[keys[1]]["line"] == 20
    # A second load finds the rows of the first in their partitions.
    loader.write("a.parquet", name=names, line=lines, at=days, kind=["2"] * 4)
    assert loader.load(key=("name", "line"))["merged"] == 4
    assert {key: row["kind"] for key, row in values(bench).items()} == dict.fromkeys(keys[1:], "2")


def test_json_lines_become_what_they_become_through_the_log(bench: Any, loader: Loader, tmp_path: Path) -> None:
    declared = {"price": ColumnType("decimal(12,2)"), "day": ColumnType("date")}
    loader.settings = settings(columns=declared, infer_times=True)
    wanted = other_bench(bench, tmp_path / "other")
    for number, (text, rows, merged) in enumerate([(LINES, 4, 0), (MORE_LINES, 3, 2)]):
        for file in loader.folder.iterdir():
            file.unlink()
        (loader.folder / f"{number}.jsonl").write_text(text)
        through_the_log(wanted, text)
        wanted.catch_up(settings=loader.settings)
        assert loader.load() == {"rows": rows, "files": 1, "merged": merged, "repeated": 0}
        assert values(bench) == values(wanted)
        assert set(state_of(bench).columns()) == set(state_of(wanted).columns())


def test_what_cannot_be_loaded_is_refused_by_name_and_moves_nothing(bench: Any, loader: Loader) -> None:
    loader.settings = settings(columns={"at": ColumnType("timestamptz")})
    bench.seal(bench.change("k", {"n": 1, "ratio": 0.5}))
    bench.catch_up(settings=loader.settings)
    for case, (columns, message) in REFUSALS.items():
        loader.write("a.parquet", **columns)
        with pytest.raises(Invalid, match=message):
            loader.load()
        assert list(values(bench)) == ["k"], case
    assert state_of(bench).properties.get(LOADS_PROPERTY) is None
    loader.settings = settings(columns={"doc": ColumnType("variant")})
    loader.write("a.parquet", id=[1], doc=["{}"])
    with pytest.raises(Invalid, match="variant columns is loaded through the log"):
        loader.load()


def test_more_columns_than_delta_keeps_statistics_of(bench: Any, loader: Loader) -> None:
    """Whether whole numbers fit a column of doubles is known of every column."""
    bench.seal(bench.change("k", {f"c{number:02}": 0.5 for number in range(40)}))
    bench.catch_up(settings=loader.settings)
    loader.write("a.parquet", id=[1], **{f"c{number:02}": [number] for number in range(40)})
    assert loader.load()["rows"] == 1
    assert values(bench)["1"]["c39"] == 39.0
    loader.write("a.parquet", id=[2], c39=[2**60])
    with pytest.raises(Invalid, match=r"beyond 2\*\*53.*c39"):
        loader.load()
