"""A pass on the driver: real segments, a real catalog, rows judged by DuckDB and pyiceberg. Needs no Spark."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from mainstem.model import Conflict, TableName
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.driverpass import DriverPass
from mainstem.pipeline.quickcatalog import QuickCatalog
from mainstem.pipeline.quickcommit import QuickCommits
from mainstem.pipeline.segments import SegmentFolder, TableSlice, slice_for
from mainstem.runtime.clock import SystemClock
from mainstem.tables.layout import HISTORY_COLUMNS, KINDS_PROPERTY, STATE_COLUMNS, stored_name
from mainstem.tables.settings import DEFAULT_SETTINGS, TableSettings
from tests.unit.pipeline.conftest import PLAIN_ROW, Log, sealed_events

_TYPES = {
    "long": LongType(),
    "string": StringType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamptz": TimestamptzType(),
}
# Column: type in the table, and the kind that it is remembered by.
_COLUMNS = {
    "n": ("long", "long"),
    "price": ("double", "double"),
    "text": ("string", "string"),
    "ok": ("boolean", "bool"),
    "doc": ("string", "json"),
}


class Served:
    """A table of the catalog, made as the pipeline makes it, and drivers that write to it."""

    def __init__(
        self, url: str, log: Any, side_jobs: ThreadPoolExecutor, columns: dict[str, tuple[str, str]] | None = None
    ) -> None:
        self._columns = columns = columns or _COLUMNS
        self._url = url
        self._side_jobs = side_jobs
        self.log = log
        self.name: TableName = log.name("orders")
        self._catalog = RestCatalog("judge", uri=url)
        self._catalog.create_namespace_if_not_exists(self.name.namespace)
        own = [(stored_name(name), kind) for name, (kind, _) in columns.items()]
        kinds = {name: kind for name, (_, kind) in columns.items()}
        self._create(self.name, [*own, *STATE_COLUMNS], {KINDS_PROPERTY: json.dumps(kinds)})
        self._create(self.name.history, HISTORY_COLUMNS, {})
        self.driver = self.new_driver()

    def _create(self, name: TableName, columns: Any, properties: dict[str, str]) -> None:
        fields = [NestedField(i, column, _TYPES[kind]) for i, (column, kind) in enumerate(columns, 1)]
        self._catalog.create_table(str(name), Schema(*fields), properties={"format-version": "2", **properties})

    def new_driver(self, **more: Any) -> DriverPass:
        """As if the process had just started."""
        catalog = QuickCatalog(self._url, "lake", {})
        commits = QuickCommits(catalog, SystemClock(), **more)
        return DriverPass(DriverSql(), catalog, commits, self._side_jobs, 4_000_000)

    def slice(self) -> TableSlice | None:
        """Everything past what the state covers."""
        segments = SegmentFolder(self.log.folder).list()
        return slice_for(self.name, segments, self.driver.marks(self.name).position, 4_000_000)

    def write(self, *changes: Any, settings: TableSettings = DEFAULT_SETTINGS) -> bool:
        """Seal changes and write them."""
        self.log.seal(*changes)
        run = self.slice()
        assert run is not None
        return self.driver.write(run, settings)

    def load(self, name: TableName | None = None) -> Any:
        """The table as pyiceberg has it."""
        return self._catalog.load_table(str(name or self.name))

    def data_files(self) -> list[str]:
        """Whatever stands in the state's data folder, part of the table or not."""
        return sorted(path.name for path in (Path(urlsplit(self.load().location()).path) / "data").iterdir())

    def rows(self, name: TableName | None = None) -> list[dict[str, Any]]:
        """The rows that pyiceberg and DuckDB agree on, by key and position."""
        table = self.load(name)
        by_pyiceberg = table.scan().to_arrow().to_pylist()
        with duckdb.connect() as duck:
            for extension in ("avro", "iceberg"):
                import_extension(extension, con=duck)
                duck.load_extension(extension)
            by_duckdb = duck.execute(f"SELECT * FROM iceberg_scan('{table.metadata_location}')").to_arrow_table()
        ordered = sorted(by_pyiceberg, key=lambda row: (row["_key"], row["_position"]))
        assert ordered == sorted(by_duckdb.to_pylist(), key=lambda row: (row["_key"], row["_position"]))
        return ordered

    def values(self) -> dict[str, dict[str, Any]]:
        """The rows' own columns by key."""
        rows = self.rows()
        assert len({row["_key"] for row in rows}) == len(rows), "a key stands twice"
        return {row["_key"]: {name: row[stored_name(name)] for name in self._columns} for row in rows}


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    """Where histories are written, and old rows are looked up."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def served(catalog_url: str, tmp_path: Path, threads: ThreadPoolExecutor) -> Served:
    """An empty table in a namespace of its own."""
    return Served(catalog_url, Log(tmp_path / "segments", tmp_path.name), threads)


def row(number: int, **more: Any) -> dict[str, Any]:
    doc = {"x": [number]}
    return {"n": number, "price": number + 0.5, "text": f"t{number}", "ok": number % 2 == 0, "doc": doc} | more


def stored(number: int) -> dict[str, Any]:
    return row(number) | {"doc": json.dumps({"x": [number]}, separators=(",", ":"))}


def test_rows_are_replaced_deleted_and_added(served: Served) -> None:
    change = served.log.change
    assert served.write(change("1", row(1)), change("2", row(2)), change("1", row(3)), change("4", row(4)))
    assert served.write(change("2", None), change("5", row(5)), change("6", row(6)), change("6", None))
    assert served.write(change("2", row(7)))
    assert served.values() == {"1": stored(3), "2": stored(7), "4": stored(4), "5": stored(5)}
    assert [one["_position"] for one in served.rows(served.name.history)] == [1, 3, 2, 5, 9, 4, 6, 7, 8]
    assert served.driver.marks(served.name).position == served.driver.marks(served.name.history).position == 9


def test_every_value_that_json_can_hold_arrives(served: Served) -> None:
    change = served.log.change
    odd = {
        "1": row(2**63 - 1, price=1e300, text='quo"te \\ \n ü 😀 \u0000', ok=None, doc={"ä": [1, 2.5, None, "x"]}),
        "2": row(-(2**63), price=-0.0, text="", ok=True, doc=[]),
        "3": dict.fromkeys(_COLUMNS),
        "ключ'\"": row(0, price=3, text="'; DROP TABLE x", doc={}),
    }
    assert served.write(*(change(key, columns) for key, columns in odd.items()))
    found = served.values()
    for key, columns in odd.items():
        doc = found[key].pop("doc")
        assert (None if doc is None else json.loads(doc)) == columns.pop("doc")
        assert found[key] == columns


def test_odd_names_of_columns(catalog_url: str, tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    names = ["_key", "_file", "a.b", "with space", "back`tick", 'quo"te', "it's", "Ünï", "$x", "select"]
    odd = dict.fromkeys(names, ("string", "string"))
    served = Served(catalog_url, Log(tmp_path / "segments", tmp_path.name), threads, odd)
    values = {name: f"value of {name}" for name in names}
    assert served.write(served.log.change("1", values), served.log.change("2", dict.fromkeys(names)))
    assert served.write(served.log.change("2", values))
    assert served.values() == {"1": values, "2": values}


@pytest.mark.parametrize("seed", [1, 2])
def test_many_batches_over_restarts_leave_what_the_last_change_of_each_key_says(served: Served, seed: int) -> None:
    draw = random.Random(seed)
    expected: dict[str, dict[str, Any]] = {}
    # Manifests are written together several times over.
    served.driver = served.new_driver(merged_at=3)
    for batch in range(25):
        changes = []
        for _ in range(draw.randrange(1, 200)):
            key, number = str(draw.randrange(150)), draw.randrange(1000)
            if draw.random() < 0.2:
                expected.pop(key, None)
                changes.append(served.log.change(key, None))
            else:
                expected[key] = stored(number)
                changes.append(served.log.change(key, row(number)))
        if batch % 7 == 6:
            served.driver = served.new_driver(merged_at=3)
        assert served.write(*changes)
    assert served.values() == expected
    snapshot = served.load().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(served.load().io)) < 15
    live = int(snapshot.summary["total-records"]) - int(snapshot.summary["total-position-deletes"])
    assert live == len(expected)
    assert len(served.rows(served.name.history)) == served.log.position


def test_manifests_are_written_together_step_by_step_and_large_ones_left_alone(served: Served) -> None:
    served.driver = served.new_driver(merged_at=2)
    for number in range(20):
        if number == 9:
            # From here on some of them have to be read.
            served.driver = served.new_driver(merged_at=2)
        assert served.write(served.log.change(str(number), row(number)))
    for name in (served.name, served.name.history):
        table = served.load(name)
        manifests = table.current_snapshot().manifests(table.io)
        sizes = [manifest.added_files_count + manifest.existing_files_count for manifest in manifests]
        assert sum(sizes) == 20 and set(sizes) <= {1, 2, 4}, sizes
        assert sizes.count(1) <= 3 and sizes.count(2) <= 3, sizes
    assert served.values() == {str(number): stored(number) for number in range(20)}


def test_a_replay_commits_nothing(served: Served) -> None:
    served.write(served.log.change("1", row(1)))
    run = slice_for(served.name, SegmentFolder(served.log.folder).list(), -1, 10)  # type: ignore[arg-type]
    assert run is not None
    before = served.load().metadata_location, served.load(served.name.history).metadata_location
    assert served.driver.write(run, DEFAULT_SETTINGS) and served.new_driver().write(run, DEFAULT_SETTINGS)
    assert (served.load().metadata_location, served.load(served.name.history).metadata_location) == before


def test_a_history_that_was_left_behind_catches_up(served: Served) -> None:
    change = served.log.change
    assert served.write(change("1", row(1)), settings=TableSettings(history=False))
    assert served.write(change("1", row(2)), settings=TableSettings(history=False))
    run = slice_for(served.name, SegmentFolder(served.log.folder).list(), -1, 10)  # type: ignore[arg-type]
    assert run is not None and served.driver.write(run, DEFAULT_SETTINGS)
    assert served.values() == {"1": stored(2)}
    assert [one["_position"] for one in served.rows(served.name.history)] == [1, 2]


def test_whoever_commits_meanwhile_is_noticed_and_nothing_is_lost(served: Served) -> None:
    change = served.log.change
    assert served.write(change("1", row(1)), change("2", row(2)))
    # A compaction in spirit: another writer replaces the files while the driver remembers the old ones.
    table = served.load()
    table.overwrite(table.scan().to_arrow())
    served.log.seal(change("1", row(10)), change("3", row(3)))
    run = served.slice()
    assert run is not None
    with pytest.raises(Conflict):
        served.driver.write(run, DEFAULT_SETTINGS)
    assert served.values() == {"1": stored(1), "2": stored(2)}
    served.driver.forget(served.name)
    assert served.driver.write(run, DEFAULT_SETTINGS)
    assert served.values() == {"1": stored(10), "2": stored(2), "3": stored(3)}
    assert [one["_position"] for one in served.rows(served.name.history)] == [1, 3, 2, 4]


def test_what_is_not_plain_is_declined_and_left_alone(served: Served) -> None:
    change = served.log.change
    assert served.write(change("1", row(1)))
    before = served.load().metadata_location
    late = {"hlc": 1}
    for columns, more in [
        ({"n": 1}, {}),
        (row(1, n="text"), {}),
        (row(1, text=5), {}),
        (row(1, extra=1), {}),
        (row(1, doc="text"), {}),
        (row(2), late),
    ]:
        position = served.log.position
        path = served.log.seal(change("1", columns, **more))
        run = served.slice()
        assert run is not None and not served.driver.write(run, DEFAULT_SETTINGS), columns
        path.unlink()
        served.log.position = position
    assert served.load().metadata_location == before


def test_a_name_that_stands_twice_in_a_row_is_left_to_spark(served: Served) -> None:
    assert served.write(served.log.change("1", row(0)))
    files = served.data_files()
    path = served.log.seal(served.log.change("1", row(1)))
    table = pa.parquet.read_table(path)
    text = json.dumps(row(1))[:-1] + ', "n": 2}'
    twice = table.set_column(table.schema.get_field_index("columns"), "columns", pa.array([text]))
    pa.parquet.write_table(twice, path)
    run = served.slice()
    assert run is not None and not served.driver.write(run, DEFAULT_SETTINGS)
    assert served.values() == {"1": stored(0)}
    # Neither of what was written for it, nor of what tells that the old row is gone, is anything left.
    assert served.data_files() == files
    # The history has it as it came, and says so: whoever goes on from here does not append it again.
    assert served.driver.marks(served.name.history).position == 2


def test_a_large_segment_of_one_table_becomes_a_file_of_the_history(served: Served) -> None:
    alone = sealed_events(served.log.folder, served.name.namespace, 1, ["orders"])
    shared = sealed_events(served.log.folder, served.name.namespace, 60_001, ["orders", "other"])
    run = served.slice()
    assert run is not None and len(run.segments) == 2 and served.driver.write(run, DEFAULT_SETTINGS)
    files = [task.file.file_path for task in served.load(served.name.history).scan().plan_files()]
    assert [Path(file.removeprefix("file://")).samefile(alone) for file in files].count(True) == 1
    # The log lets go of it; the history does not.
    alone.unlink()
    shared.unlink()
    rows = served.load(served.name.history).scan().to_arrow().sort_by("_position")
    assert rows["_position"].to_pylist() == list(range(1, 120_001))
    # The same rows twice: once as the segment has them, once as they were copied. But for where they stand.
    linked, copied = (rows.slice(start, 60_000).drop(["_position", "_hlc", "_batch_sequence"]) for start in (0, 60_000))
    assert linked.equals(copied)
    first, second = linked.slice(0, 2).to_pylist()
    assert (first["_source_time"], second["_source_time"].year) == (None, 2023)
    assert json.loads(second["_columns"]) == PLAIN_ROW | {"n": 1}
    assert len(served.load().scan(selected_fields=("_key",)).to_arrow()) == 60_000
