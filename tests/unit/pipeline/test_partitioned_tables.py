"""Partitions of every kind, evolving under upserts, read alike by three readers; and what footers say."""

import datetime as dt
import json
import random
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from mainstem.catalog.files import LocalFiles
from mainstem.catalog.scan.inventory import Inventories
from mainstem.pipeline.plan.declared import bring_up_to_date
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.pipeline.upkeep.scanfiles import plan_files
from mainstem.query.sandbox.session import extension_file
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COLUMNS = {"ts": "timestamptz", "d": "date", "country": "string", "n": "long"}
START = dt.datetime(2026, 1, 30, 22, tzinfo=dt.UTC)
EVERY_KIND = ["hour(ts)", "month(d)", "bucket(4, _key)", "truncate(2, country)", "identity(n) as number"]


def settings(*partition: str, **more: Any) -> TableSettings:
    return TableSettings.from_document({"columns": COLUMNS, "partition": list(partition), **more})


def row(draw: random.Random) -> dict[str, Any]:
    when = START + dt.timedelta(hours=draw.randrange(72))
    return {
        "ts": when.isoformat(),
        "d": str(when.date()),
        "country": draw.choice(["chad", "cuba", "peru", None]),
        "n": draw.randrange(3),
    }


def metadata_location(bench: Any, table: str = "orders") -> str:
    location = bench.lake.load(bench.name(table)).java.operations().current().metadataFileLocation()
    return str(location).removeprefix("file:")


def by_duckdb(bench: Any) -> dict[str, tuple[Any, ...]]:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{extension_file(name)}'")
    sql = f"SELECT _key, epoch_us(ts), d, country, n FROM iceberg_scan('{metadata_location(bench)}')"
    return {key: values for key, *values in connection.execute(sql).fetchall()}  # type: ignore[misc]


def by_pyiceberg(bench: Any) -> dict[str, list[Any]]:
    from pyiceberg.table import StaticTable

    found = StaticTable.from_metadata(metadata_location(bench)).scan().to_arrow().to_pylist()
    return {each["_key"]: [_us(each["ts"]), each["d"], each["country"], each["n"]] for each in found}


def by_pyiceberg_column(bench: Any, column: str) -> dict[str, Any]:
    from pyiceberg.table import StaticTable

    found = StaticTable.from_metadata(metadata_location(bench)).scan().to_arrow().to_pylist()
    return {each["_key"]: each[column] for each in found}


def by_spark(bench: Any) -> dict[str, list[Any]]:
    bench.lake.load(bench.name("orders"))
    rows = bench.spark.sql(
        f"SELECT _key, unix_micros(ts) AS ts, d, country, n FROM {bench.lake.identifier(bench.name('orders'))}"
    ).collect()
    assert len({each["_key"] for each in rows}) == len(rows), "a key stands twice"
    return {each["_key"]: [each["ts"], each["d"], each["country"], each["n"]] for each in rows}


def _us(value: dt.datetime) -> int:
    return round(value.timestamp() * 1_000_000)


def expected_of(model: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        key: [
            _us(dt.datetime.fromisoformat(each["ts"])),
            dt.date.fromisoformat(each["d"]),
            each["country"],
            each["n"],
        ]
        for key, each in model.items()
    }


@pytest.mark.parametrize("version", [2, 3])
def test_upserts_are_right_over_specs_that_evolve(bench: Any, version: int) -> None:
    draw = random.Random(7)
    model: dict[str, dict[str, Any]] = {}
    specs: list[tuple[str, ...]] = [
        (),
        ("bucket(3, _key)",),
        ("day(ts) as dt", "hour(ts) as hr"),
        ("day(ts) as dt", "bucket(2, _key)"),
        ("country",),
    ]
    for number, spec in enumerate(specs):
        wanted = settings(*spec, format_version=version)
        bring_up_to_date(bench.lake, bench.name("orders"), wanted)
        # In two of the batches every row is whole and newer; in the others rows are merged with those of older specs.
        merges = number in (1, 3, 4)
        changes = [bench.change(key, row(draw), hlc=1) for key in list(model)[:5]] if merges else []
        for key in draw.sample(range(60), 45):
            if draw.random() < 0.2:
                model.pop(str(key), None)
                changes.append(bench.change(str(key), None))
            elif merges and str(key) in model and draw.random() < 0.5:
                part = {name: value for name, value in row(draw).items() if name in ("ts", "country")}
                model[str(key)] = {**model[str(key)], **part}
                changes.append(bench.change(str(key), part))
            else:
                model[str(key)] = row(draw)
                changes.append(bench.change(str(key), model[str(key)]))
        bench.seal(*changes)
        bench.catch_up(settings=wanted)
    expected = expected_of(model)
    table = bench.lake.load(bench.name("orders"))
    assert table.java.specs().size() == len(specs)
    assert len({int(file.specId()) for file in (task.file() for task in plan_files(table).tasks.values())}) >= 3
    assert by_spark(bench) == expected
    assert {key: list(values) for key, values in by_duckdb(bench).items()} == expected
    assert by_pyiceberg(bench) == expected
    # Compaction brings every file to the present spec, and changes no row.
    eager = MaintenanceSettings(min_files=2, deleted_share=0.01)
    Maintenance(bench.lake, Turns(), eager, SystemClock()).run(bench.name("orders"), [Step.COMPACT, Step.DELETES])
    assert by_spark(bench) == expected
    assert {key: list(values) for key, values in by_duckdb(bench).items()} == expected
    assert by_pyiceberg(bench) == expected


def test_every_kind_of_partition_and_its_name(bench: Any) -> None:
    wanted = settings(*EVERY_KIND, history_partition=["day(_time)", "year(_source_time)", "bucket(2, _key)"])
    draw = random.Random(3)
    model = {str(key): row(draw) for key in range(20)}
    bench.seal(*(bench.change(key, each) for key, each in model.items()))
    bench.catch_up(settings=wanted)
    table = bench.lake.load(bench.name("orders"))
    names = {field.name() for field in table.java.spec().fields()}
    assert names == {"ts_hour", "d_month", "_key_bucket_4", "country_trunc_2", "number"}
    # The gateway names partitions as Iceberg itself does.
    by_java = {facts.path: facts.partition for facts in plan_files(table).facts}
    document = json.loads(Path(metadata_location(bench)).read_bytes())
    by_python = {facts.path: facts.partition for facts in Inventories(LocalFiles().file_io).take(document).files}
    assert by_python == by_java and len(set(by_java.values())) > 5
    assert by_spark(bench) == expected_of(model)
    history = bench.lake.load(bench.name("orders_history"))
    names = {field.name() for field in history.java.spec().fields()}
    assert names == {"_time_day", "_source_time_year", "_key_bucket_2"}


def test_hours_below_their_day_are_shown_without_it_and_outlive_a_rewrite(bench: Any) -> None:
    wanted = settings("day(ts) as dt", "hour(ts) as hr")
    draw = random.Random(5)
    model = {str(key): row(draw) for key in range(20)}
    bench.seal(*(bench.change(key, {**each, "odd": 1}) for key, each in model.items()))
    bench.catch_up(settings=wanted)
    table = bench.lake.load(bench.name("orders"))
    assert _spec(table) == {("dt", "day"), ("hr", "hour")}
    document = json.loads(Path(metadata_location(bench)).read_bytes())
    files = Inventories(LocalFiles().file_io).take(document).files
    for facts in files:
        assert re.fullmatch(r"dt=2026-0[12]-\d\d/hr=\d\d", facts.partition) and f"/{facts.partition}/" in facts.path
    assert {facts.partition: facts.path for facts in plan_files(table).facts} == {
        facts.partition: facts.path for facts in files
    }
    # Text in a column of numbers: the table is rewritten, and keeps its partitions.
    bench.seal(bench.change("0", {**model["0"], "odd": "text"}))
    bench.catch_up(settings=wanted)
    table.refresh()
    assert _spec(table) == {("dt", "day"), ("hr", "hour")}
    assert by_spark(bench) == expected_of(model) == by_pyiceberg(bench)


def test_a_field_waits_for_its_column_and_its_column_keeps_a_type_that_suits_it(bench: Any) -> None:
    wanted = TableSettings.from_document({"partition": ["bucket(2, city)", "truncate(10, size)"]})
    bench.seal(bench.change("1", {"a": 1, "city": None}))
    bench.catch_up(settings=wanted)
    table = bench.lake.load(bench.name("orders"))
    assert table.java.spec().isUnpartitioned()
    bench.seal(bench.change("2", {"a": 2, "city": "Oslo", "size": 15}))
    bench.catch_up(settings=wanted)
    table.refresh()
    both = {("city_bucket_2", "bucket[2]"), ("size_trunc_10", "truncate[10]")}
    assert _spec(table) == both
    earlier = table.snapshot_id
    # No double can be truncated: the column becomes text, as it does wherever values have no number in common.
    bench.seal(bench.change("3", {"a": 3, "city": "Rome", "size": 0.5}))
    bench.catch_up(settings=wanted)
    table.refresh()
    assert _spec(table) == both
    assert {key: each["size"] for key, each in bench.values().items()} == {"1": None, "2": "15", "3": "0.5"}
    # The table goes on, upserts included, and what it was before can still be read.
    bench.seal(bench.change("2", {"a": 2, "city": "Oslo", "size": 16}), bench.change("3", None))
    bench.catch_up(settings=wanted)
    assert {key: each["size"] for key, each in bench.values().items()} == {"1": None, "2": "16"}
    before = bench.spark.sql(f"SELECT _key, size FROM {table.identifier} VERSION AS OF {earlier}").collect()
    assert {row["_key"]: row["size"] for row in before} == {"1": None, "2": 15}
    sizes = by_pyiceberg_column(bench, "size")
    assert sizes == {"1": None, "2": "16"}
    eager = MaintenanceSettings(min_files=2, deleted_share=0.01, snapshots_max=1, snapshot_age_min_s=0)
    Maintenance(bench.lake, Turns(), eager, SystemClock()).run(bench.name("orders"), list(Step))
    assert {key: each["size"] for key, each in bench.values().items()} == {"1": None, "2": "16"}


def _spec(table: Any) -> set[tuple[str, str]]:
    return {(str(field.name()), str(field.transform().toString())) for field in table.java.spec().fields()}


@pytest.mark.parametrize(
    "codec", [pytest.param("snappy", marks=pytest.mark.soak), pytest.param("gzip", marks=pytest.mark.soak), "zstd"]
)
def test_footers_say_what_was_set_on_every_way_of_writing(bench: Any, codec: str) -> None:
    parquet = {"compression": codec, "row_group_rows": 200, "target_file_bytes": 64 * 1024}
    wanted = TableSettings.from_document({"parquet": parquet})
    for number in range(2):
        bench.seal(*(bench.change(str(key), {"n": number, "t": f"{key:x}" * 50}) for key in range(1000)))
        bench.catch_up(settings=wanted)
    table = bench.lake.load(bench.name("orders"))
    planned = plan_files(table)
    deletes = [str(each.location()) for each in planned.deletes.values()]
    assert deletes and all(_codec(path) == codec for path in deletes)
    _check_footers([facts.path for facts in planned.facts], codec)
    history = bench.lake.load(bench.name("orders_history"))
    _check_footers([facts.path for facts in plan_files(history).facts], codec)
    # And once more by compaction.
    eager = MaintenanceSettings(min_files=2)
    Maintenance(bench.lake, Turns(), eager, SystemClock()).run(bench.name("orders"), [Step.COMPACT])
    _check_footers([facts.path for facts in plan_files(table).facts], codec)


def test_another_codec_holds_for_what_is_written_from_then_on(bench: Any) -> None:
    for codec in ("zstd", "snappy"):
        wanted = TableSettings.from_document({"parquet": {"compression": codec}})
        bring_up_to_date(bench.lake, bench.name("orders"), wanted)
        bench.seal(bench.change(codec, {"n": 9}))
        bench.catch_up(settings=wanted)
    table = bench.lake.load(bench.name("orders"))
    assert sorted(_codec(facts.path) for facts in plan_files(table).facts) == ["snappy", "zstd"]


def _codec(location: str) -> str:
    footer = pq.read_metadata(location.removeprefix("file:"))
    (codec,) = {
        footer.row_group(group).column(column).compression.lower()
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    }
    return str(codec)


def _check_footers(locations: list[str], codec: str) -> None:
    assert locations
    for location in locations:
        footer = pq.read_metadata(location.removeprefix("file:"))
        assert _codec(location) == codec
        rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        assert max(rows) <= 200 and all(count == 200 for count in rows[:-1]), rows
