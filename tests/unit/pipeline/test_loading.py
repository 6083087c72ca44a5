"""A load without the log ends as if its rows had come through the log before everything else."""

import datetime as dt
import decimal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.formats.segments import segment_name
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.log.settings import TimesRule
from mainstem.model import Hlc, LogPosition, SourceId
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.errors import Denied, Invalid, MainstemError
from mainstem.model.keys import key_text
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.load_one import LOADS_PROPERTY
from mainstem.pipeline.upkeep.loading import Loading
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import DEFAULT_SETTINGS, Format, TableSettings, parse_partition
from mainstem.tables.types import ColumnType
from mainstem.wire.jobs import LoadOrder
from mainstem.wire.rows import Mode, RowsHead, check_lines, pack

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = 40


class Loader:
    """Loads into a bench's tables from a folder."""

    def __init__(self, bench: Any, folder: Path) -> None:
        self.bench = bench
        self.folder = folder
        self.settings = DEFAULT_SETTINGS
        folder.mkdir()

    def load(self, *, place: Path | None = None, key: tuple[str, ...] = ("id",), **more: Any) -> dict[str, int]:
        loading = Loading(
            self.bench.lake,
            Turns(),
            SystemClock(),
            places=[str(self.folder)],
            settings_of=lambda _: self.settings,
            kind_of=lambda _: "",
            covered=self.bench.progress.covered,
            lineage=self.bench.lineage,
            store={},
            delta=self.bench.delta,
        )
        order = LoadOrder(place=str(place or self.folder), key=key)
        return loading.run(self.bench.name("orders"), order, **{"on_progress": lambda _: None, **more})

    def write(self, file: str, /, **columns: Any) -> None:
        pq.write_table(pa.table(columns), self.folder / file)


@pytest.fixture
def loader(bench: Any, tmp_path: Path) -> Loader:
    return Loader(bench, tmp_path / "load")


def test_every_type_becomes_what_it_becomes_through_the_log(bench: Any, loader: Loader) -> None:
    moment = dt.datetime(2026, 1, 31, 23, 59, 59, 123456)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "small": pa.array([1, None], pa.int16()),
            "large": pa.array([2**60, 1]),
            "ratio": pa.array([0.1, None]),
            "narrow": pa.array([0.5, 1.5], pa.float32()),
            "price": pa.array([decimal.Decimal("12.50"), None], pa.decimal128(12, 2)),
            "day": pa.array([dt.date(2026, 1, 31), None]),
            "at": pa.array([moment, None], pa.timestamp("us")),
            "seen": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "raw": pa.array([b"\x00\xff", None]),
            "is_new": pa.array([True, None]),
            "text": pa.array(['a "b" \\ ü', None]),
            "doc": pa.array([{"a": [1, 2], "b": "x"}, None]),
            "tags": pa.array([["x", None], []]),
            "since": pa.array(["2026-01-31T23:59:59Z", None]),
            "clock": pa.array([1_700_000_000_123, None]),
        }
    )
    times = {"since": ColumnType("timestamptz"), "clock": ColumnType("timestamptz")}
    loader.settings = TableSettings(columns=times)
    pq.write_table(table, loader.folder / "a.parquet")
    assert loader.load() == {"rows": 2, "files": 1, "merged": 0, "repeated": 0}
    state = bench.lake.load(bench.name("orders"))
    types = {name: str(kind) for name, kind, _ in state.fields() if not name.startswith("_")}
    assert types == {
        "id": "long", "small": "long", "large": "long", "ratio": "double", "narrow": "double", "price": "decimal(12,2)",
        "day": "date", "at": "timestamp", "seen": "timestamptz", "raw": "binary", "is_new": "boolean", "text": "string",
        "doc": "string", "tags": "string", "since": "timestamptz", "clock": "timestamptz",
    }  # fmt: skip
    kinds = {column.name: str(column.kind) for column in state.columns()}
    assert (kinds["id"], kinds["large"], kinds["price"]) == ("int", "long", "None")
    one = bench.rows()[0]
    assert (one["_key"], one["_source"], one["_hlc"], one["_position"]) == ("1", "load", 1, 0)
    assert one["doc"] == '{"a":[1,2],"b":"x"}' and one["tags"] == '["x",null]' and one["raw"] == b"\x00\xff"
    assert one["price"] == decimal.Decimal("12.50") and one["text"] == 'a "b" \\ ü'
    first = one["since"].replace(tzinfo=dt.UTC) if one["since"].tzinfo is None else one["since"].astimezone(dt.UTC)
    assert first == dt.datetime(2026, 1, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert int(one["clock"].timestamp() * 1000) % 1000 == 123
    # The log goes on from there: a part of a row, a delete, a new one.
    bench.seal(bench.change("1", {"ratio": 2}), bench.change("2", None), bench.change("3", {"id": 3, "more": "x"}))
    bench.catch_up(settings=loader.settings)
    rows = {row["_key"]: row for row in bench.rows()}
    assert set(rows) == {"1", "3"} and rows["1"]["ratio"] == 2.0
    kept = {name: value for name, value in one.items() if name in types and name != "ratio"}
    assert {name: rows["1"][name] for name in kept} == kept


def changes(bench: Any) -> list[Any]:
    """What the log brings: whole rows, parts of rows, deletes, a key that came back, and a column of its own."""
    some = [bench.change(f"k{number:02d}", {"id": f"k{number:02d}", "n": -number}) for number in range(5)]
    parts = [bench.change(f"k{number:02d}", {"text": "log"}) for number in range(5, 10)]
    gone = [bench.change(f"k{number:02d}", None) for number in range(10, 15)]
    back = [bench.change("k14", {"text": "back"}), bench.change("new", {"n": 1, "later": True})]
    return [*some, *parts, *gone, *back]


@pytest.mark.parametrize("version", [2, 3])
def test_rows_merge_with_what_the_log_brought_before_and_after(
    bench: Any, loader: Loader, tmp_path: Path, version: int
) -> None:
    settings = loader.settings = TableSettings(format_version=version)
    ids = [f"k{number:02d}" for number in range(KEYS)]
    loaded: dict[str, list[Any]] = {"id": ids, "n": list(range(KEYS)), "text": ["loaded"] * KEYS, "more": [0.5] * KEYS}
    loader.write("a.parquet", **{name: values[:25] for name, values in loaded.items()})
    (loader.folder / "deep").mkdir()
    loader.write("deep/b.parquet", **{name: values[25:] for name, values in loaded.items()})
    # As it would have been: the rows first, through the log.
    wanted = type(bench)(bench.spark, tmp_path / "other", f"{bench.namespace}_w", bench.lake.catalog)
    rows = [{name: values[number] for name, values in loaded.items()} for number in range(KEYS)]
    wanted.seal(*(wanted.change(row["id"], row) for row in rows))
    wanted.catch_up(settings=settings)
    for each in (wanted, bench):
        each.seal(*changes(each))
        each.catch_up(settings=settings)
    marks = bench.lake.load(bench.name("orders")).marks()
    assert loader.load() == {"rows": KEYS, "files": 2, "merged": 15, "repeated": 0}
    assert bench.values() == wanted.values()
    assert bench.lake.load(bench.name("orders")).marks() == marks
    for each in (wanted, bench):
        each.seal(each.change("k02", {"more": 9}), each.change("k12", {"n": 12}), each.change("k30", None))
        each.catch_up(settings=settings)
    assert bench.values() == wanted.values()
    # The same files again are the same load; other ones win over loaded rows, and over nothing else.
    assert loader.load()["repeated"] == 1
    assert bench.values() == wanted.values()
    loader.write("a.parquet", id=["k20", "k02"], n=[2000, 2000])
    (loader.folder / "deep" / "b.parquet").unlink()
    assert loader.load() == {"rows": 2, "files": 1, "merged": 2, "repeated": 0}
    values = bench.values()
    assert values["k20"]["n"] == 2000 and values["k20"]["text"] == "loaded" and values["k02"]["n"] == -2


def test_a_table_that_was_changed_meanwhile_is_loaded_once(bench: Any, loader: Loader) -> None:
    bench.seal(bench.change("a", {"n": 1}))
    bench.catch_up()
    loader.write("a.parquet", id=["x", "y"], n=[1, 2])
    races: list[int] = []

    def somebody_else() -> bool:
        if not races:
            races.append(1)
            state = bench.lake.load(bench.name("orders"))
            state.mark(state.marks())
        return True

    assert loader.load(go_on=somebody_else)["rows"] == 2
    assert set(bench.values()) == {"a", "x", "y"}
    state = bench.lake.load(bench.name("orders"))
    files = {path.rsplit("/", 1)[1] for path in (file.path for file in bench.lake.data_files(state))}
    data = Path(str(state.java.location()).removeprefix("file:")) / "data"
    # What the lost try wrote is gone.
    assert {path.name for path in data.rglob("*.parquet")} == files
    with pytest.raises(Invalid, match="cancelled"):
        loader.write("b.parquet", id=["z"], n=[1])
        loader.load(go_on=lambda: False)
    assert set(bench.values()) == {"a", "x", "y"}


def test_partitions_and_keys_of_several_columns(bench: Any, loader: Loader) -> None:
    loader.settings = TableSettings(partition=parse_partition(["day(at)", "bucket(4, name)"]))
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    names, lines = ['a"b', "c\\d", "ü", "plain"], [1, 2, 3, 4]
    days = pa.array([start + dt.timedelta(days=number) for number in lines], pa.timestamp("us", "UTC"))
    loader.write("a.parquet", name=names, line=lines, at=days)
    loader.load(key=("name", "line"))
    keys = [key_text({"name": name, "line": line}) for name, line in zip(names, lines, strict=True)]
    assert set(bench.values()) == set(keys)
    bench.seal(bench.change(keys[0], None), bench.change(keys[1], {"line": 20}))
    bench.catch_up(settings=loader.settings)
    assert keys[0] not in bench.values() and bench.values()[keys[1]]["line"] == 20


def test_csv_has_the_types_of_its_texts(bench: Any, loader: Loader) -> None:
    (loader.folder / "a.csv").write_text(
        'id,zip,n,ratio,ok,note\n1,01234,5,1.5,true,"a, ""b""\nc"\n2,99999,-7,2,false,""\n'
    )
    assert loader.load()["rows"] == 2
    assert bench.values() == {
        "1": {"id": 1, "zip": "01234", "n": 5, "ratio": 1.5, "ok": True, "note": 'a, "b"\nc'},
        "2": {"id": 2, "zip": "99999", "n": -7, "ratio": 2.0, "ok": False, "note": ""},
    }


LINES = """
{"id": "k00", "n": 1, "ratio": 1.10, "mixed": 1.10, "doc": {"a": [1, 2.50], "b": null}, "at": "2026-01-31T23:59:59.5Z"}
{"id": "k01", "n": 9007199254740993, "ratio": 2, "mixed": "x", "large": 123456789012345678901234567890, "price": 12.5}
  {"id": 7, "n": null, "ok": true, "at": null, "price": "1.10", "day": "2026-01-31", "tags": [], "_odd \\"name\\"": 1}\r

{"id": "k03"}
"""
MORE_LINES = '{"id": "k00", "n": 5, "ratio": null}\n{"id": "k09", "later": "x"}\n{"id": "k03", "n": 3}'


def through_the_log(bench: Any, text: str) -> None:
    """Lines as one request of `/v1/ingest`, sealed by the log's own sealer."""
    body = check_lines(text.encode(), ("id",), 1 << 20)
    header = BatchHeader(
        first=LogPosition(bench.position + 1),
        count=body.count,
        hlc_first=Hlc(bench.position * 10 + 10),
        arrival_ms=1_700_000_000_000,
        source=SourceId("s1"),
        sequence=1,
        fingerprint=0,
        encoding=Encoding.ROWS_JSON,
    )
    builder = SegmentBuilder(TimesRule(default=True))
    builder.add(header, pack(RowsHead(table=str(bench.name("orders")), mode=Mode.UPSERT, key=("id",)), body.body), "")
    bench.position += body.count
    bench.folder.mkdir(exist_ok=True)
    builder.write(bench.folder / segment_name(header.first, header.last))


def test_json_lines_become_what_they_become_through_the_log(bench: Any, loader: Loader, tmp_path: Path) -> None:
    declared = {"price": ColumnType("decimal(12,2)"), "day": ColumnType("date")}
    settings = loader.settings = TableSettings(columns=declared, infer_times=True)
    wanted = type(bench)(bench.spark, tmp_path / "other", f"{bench.namespace}_w", bench.lake.catalog)
    for number, (text, rows, merged) in enumerate([(LINES, 4, 0), (MORE_LINES, 3, 2)]):
        for file in loader.folder.iterdir():
            file.unlink()
        (loader.folder / f"{number}.jsonl").write_text(text)
        through_the_log(wanted, text)
        wanted.catch_up(settings=settings)
        assert loader.load() == {"rows": rows, "files": 1, "merged": merged, "repeated": 0}
        assert bench.values() == wanted.values()
        ours, theirs = (each.lake.load(each.name("orders")) for each in (bench, wanted))
        assert set(ours.columns()) == set(theirs.columns())
    values = bench.values()
    assert values["k00"]["mixed"] == "1.10" and values["k00"]["ratio"] is None and values["k00"]["n"] == 5
    assert values["k01"]["n"] == 9007199254740993 and values["7"]["price"] == decimal.Decimal("1.10")
    # The log goes on from there.
    for each in (bench, wanted):
        each.seal(each.change("k01", {"ratio": 3}), each.change("7", None), each.change("k03", {"ok": False}))
        each.catch_up(settings=settings)
    assert bench.values() == wanted.values()


def test_a_line_that_is_no_row_is_named_with_its_file_and_moves_nothing(bench: Any, loader: Loader) -> None:
    (loader.folder / "good.jsonl").write_text('{"id": 1}\n')
    for text, message in (
        ('{"id": 2}\n[3]\n', r"object per line file=bad.json .*line=\[3\]"),
        ('{"id": 2, "at": 1}\n{"n": 3}\n', "lacks its key. column=id got=nothing"),
        ('{"id": 1}\n', r"more than once.*'1'"),
        ("\n \n", None),
    ):
        (loader.folder / "bad.json").write_text(text)
        if message is None:
            assert loader.load()["rows"] == 1
        else:
            with pytest.raises(Invalid, match=message):
                loader.load()
            assert bench.lake.load(bench.name("orders")).property(LOADS_PROPERTY) is None
    (loader.folder / "good.jsonl").unlink()
    with pytest.raises(Invalid, match="key columns are not there"):
        loader.load()


REFUSALS: Mapping[str, tuple[dict[str, Any], str]] = {
    "a key twice": ({"id": [1, 2, 1]}, r"more than once.*'1'"),
    "no key": ({"id": [1, None]}, "lacks its key. column=id"),
    "no key column": ({"n": [1]}, r"key columns are not there"),
    "a key of fractions": ({"id": [1.5]}, "a key of this type"),
    "no number": ({"id": [1], "f": [float("nan")]}, "column=f"),
    "too late": ({"id": [1], "t": pa.array([10**18], pa.timestamp("us"))}, "out of range. column=t"),
    "nanoseconds": ({"id": [1], "ns": pa.array([1], pa.timestamp("ns"))}, "NANOS"),
    "another type": ({"id": [1], "n": ["x"]}, "change their type.*long in the table, string here"),
    "no time": ({"id": [1], "at": ["soon"]}, "does not fit its column. column=at expected=timestamptz"),
    "too large": ({"id": [1], "ratio": [2**60]}, r"beyond 2\*\*53.*ratio"),
}


def test_what_cannot_be_loaded_is_refused_by_name_and_moves_nothing(bench: Any, loader: Loader) -> None:
    loader.settings = TableSettings(columns={"at": ColumnType("timestamptz")})
    bench.seal(bench.change("k", {"n": 1, "ratio": 0.5}))
    bench.catch_up(settings=loader.settings)
    for case, (columns, message) in REFUSALS.items():
        loader.write("a.parquet", **columns)
        with pytest.raises(Invalid, match=message):
            loader.load()
        assert list(bench.values()) == ["k"], case
    assert bench.lake.load(bench.name("orders")).property(LOADS_PROPERTY) is None
    for settings in (TableSettings(format=Format.DELTA, append=True), TableSettings(state=False)):
        loader.settings = settings
        with pytest.raises(Invalid, match="only a state is loaded"):
            loader.load()
    loader.settings = DEFAULT_SETTINGS
    for place in ("/etc", str(loader.folder / ".." / "x"), f"{loader.folder}x"):
        with pytest.raises(Denied, match="not loaded from there"):
            loader.load(place=Path(place))
    for name in ("a.csv", "b.parquet"):
        (loader.folder / name).write_bytes(b"no parquet")
    with pytest.raises(MainstemError, match="of these kinds"):
        loader.load()


def test_files_and_moments_unlike_most(bench: Any, loader: Loader) -> None:
    """Names that are patterns to Spark, and the last moment that there is: what many tables say for `never`."""
    day, moment = dt.date(9999, 12, 31), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
    noon = pa.array([moment.replace(hour=12)], pa.timestamp("us", "UTC"))
    for number, name in enumerate(["a[1].parquet", "b{x,y}.parquet", "c*.parquet", "d ?.parquet"]):
        loader.write(name, id=[number], day=[day], moment=pa.array([moment], pa.timestamp("us")), noon=noon)
    assert loader.load()["rows"] == 4
    assert [(row["day"], row["moment"]) for row in bench.rows()] == [(day, moment)] * 4
