"""One contract for every format that the pipeline writes, wherever it is: the same changes make the same tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pytest
from duckdb_extensions import import_extension
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from mainstem.app.spark.objectstore import spark_properties
from mainstem.catalog.settings import CatalogSettings
from mainstem.client.delta import Storage, create_storage
from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import TableSettings
from tests.compat.catalog_server import Server
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.unit.pipeline.conftest import Bench, Log

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]
OWN = ("_key", "_hlc", "_source", "_position", "_clocks")


class World(Protocol):
    """A log, a writer of one format, and a reader that is not ours."""

    log: Log

    def carry(self, **settings: Any) -> int: ...

    def rows(self, table: str) -> Rows: ...

    def versions(self, table: str) -> int | None: ...


class IcebergWorld:
    def __init__(self, bench: Bench, version: int = 2) -> None:
        self.log: Log = bench
        self._bench = bench
        self._version = version

    def carry(self, **settings: Any) -> int:
        return self._bench.catch_up(settings=TableSettings.from_document({"format_version": self._version, **settings}))

    def rows(self, table: str) -> Rows:
        return self._bench.rows(table)

    def versions(self, table: str) -> int | None:
        found = self._bench.lake.load(self._bench.name(table))
        return None if found is None else found.snapshot_id


class DeltaWorld:
    def __init__(self, bench: Bench, storage: Storage) -> None:
        self.log: Log = bench
        self._bench = bench
        self._lake = bench.delta = DeltaLake(storage, SystemClock(), store=bench.store)
        self._reader = duckdb.connect()
        import_extension("delta", con=self._reader)
        self._reader.load_extension("delta")
        storage.prepare(self._reader)

    def carry(self, **settings: Any) -> int:
        return self._bench.catch_up(settings=TableSettings.from_document({**settings, "format": "delta"}))

    def rows(self, table: str) -> Rows:
        uri = self._lake.storage.uri(self._lake.path(self.log.name(table)))
        found = self._reader.execute(f"SELECT * FROM delta_scan('{uri}') ORDER BY _key, _position").to_arrow_table()
        return list(found.to_pylist())

    def versions(self, table: str) -> int | None:
        found = self._lake.load(self.log.name(table))
        return None if found is None else found.version


# Iceberg on S3 has its own tests with a whole server; here it runs on demand.
@pytest.fixture(
    params=[
        "iceberg on disk", "iceberg version 3 on disk", "delta on disk", "delta on s3",
        pytest.param("iceberg on s3", marks=pytest.mark.soak),
    ]
)  # fmt: skip
def world(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> World:
    namespace = f"f_{tmp_path.name}".lower()[:60]
    bench = Bench(spark, tmp_path / "segments", namespace)
    if request.param.startswith("iceberg"):
        if request.param.endswith("s3"):
            bench.lake = Lake(spark, request.getfixturevalue("iceberg_on_s3"))
            bench.commits = IcebergCommits(bench.lake)
            bench.store = request.getfixturevalue("s3_server").io()
        return IcebergWorld(bench, 3 if "version 3" in request.param else 2)
    if request.param.endswith("disk"):
        return DeltaWorld(bench, create_storage(str(tmp_path / "lake")))
    server = request.getfixturevalue("s3_server")
    server.make_bucket("formats")
    bench.store = server.io()
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    storage = create_storage("s3://formats/lake", endpoint=server.url, region=REGION, **keys)
    return DeltaWorld(bench, storage)


@pytest.fixture(scope="session")
def iceberg_on_s3(spark: SparkSession, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a catalog whose warehouse is on S3."""
    warehouse = f"{s3_server.make_bucket('iceberg-formats')}/lake"
    with Server(tmp_path_factory.mktemp("on-s3"), warehouse, s3_server.io()) as server:
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": server.url,
            ".warehouse": "lake",
            **{f".{name}": value for name, value in spark_properties(_on_s3(warehouse, s3_server)).items()},
        }
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.on_s3{name}", value)
        yield "on_s3"


def _on_s3(warehouse: str, server: S3Server) -> CatalogSettings:
    return CatalogSettings(warehouse=warehouse, io=server.io())


def values(world: World) -> dict[str, dict[str, Any]]:
    rows = world.rows("orders")
    assert len({row["_key"] for row in rows}) == len(rows), "a key stands twice"
    return {row["_key"]: {name: row[name] for name in row if name not in OWN} for row in rows}


def test_rows_history_deletes_and_replays(world: World) -> None:
    log = world.log
    log.seal(
        log.change("1", {"id": 1, "note": "a"}),
        log.change("2", {"id": 2, "note": "b"}),
        log.change("1", {"id": 1, "note": "c"}),
    )
    assert world.carry() == 3
    log.seal(
        log.change("2", None),
        log.change("3", {"id": 3, "note": None}),
        log.change("4", {"id": 4, "note": "d"}),
        log.change("4", None),
    )
    assert world.carry() == 7
    assert values(world) == {"1": {"id": 1, "note": "c"}, "3": {"id": 3, "note": None}}
    history = sorted(world.rows("orders_history"), key=lambda row: row["_position"])
    assert [(row["_position"], row["_op"], row["_key"]) for row in history] == [
        (1, "update", "1"), (2, "update", "2"), (3, "update", "1"), (4, "delete", "2"),
        (5, "update", "3"), (6, "update", "4"), (7, "delete", "4"),
    ]  # fmt: skip
    before = [world.versions(name) for name in ("orders", "orders_history")]
    assert world.carry() == 7
    assert [world.versions(name) for name in ("orders", "orders_history")] == before


def test_columns_come_widen_and_become_text(world: World) -> None:
    log = world.log
    log.seal(log.change("1", {"a": 1, "b": 1, "c": True, "d": None, "e": {"x": [1]}}))
    world.carry()
    log.seal(log.change("2", {"a": 2.5, "b": "text", "c": 0, "d": 7, "e": "plain", "f": 2**70}))
    world.carry()
    assert values(world) == {
        "1": {"a": 1.0, "b": "1", "c": "true", "d": None, "e": '{"x":[1]}', "f": None},
        "2": {"a": 2.5, "b": "text", "c": "0", "d": 7, "e": "plain", "f": str(2**70)},
    }


def test_partial_rows_late_rows_and_tombstones(world: World) -> None:
    log = world.log
    log.seal(log.change("1", {"a": 1, "b": 1}), log.change("2", {"a": 1, "b": 1}), log.change("3", {"a": 1, "b": 1}))
    world.carry()
    log.seal(log.change("1", {"a": 2}), log.change("2", {"a": None, "c": "new"}), log.change("3", None))
    world.carry()
    assert values(world) == {"1": {"a": 2, "b": 1, "c": None}, "2": {"a": None, "b": 1, "c": "new"}}
    # Older than the delete, older than the last write, and newer than both.
    log.seal(
        log.change("3", {"a": 9}, hlc=35), log.change("1", {"a": 9, "b": 9}, hlc=15), log.change("4", {"a": 4}, hlc=36)
    )
    world.carry()
    assert values(world) == {
        "1": {"a": 2, "b": 9, "c": None},
        "2": {"a": None, "b": 1, "c": "new"},
        "4": {"a": 4, "b": None, "c": None},
    }


def test_declared_types_and_dead_letters(world: World) -> None:
    log = world.log
    declared = {"price": "decimal(20,4)", "day": "date", "n": "int", "at": "timestamptz", "u": "uuid", "b": "binary"}
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    log.seal(
        log.change("1", {"price": "12.50", "day": "2024-02-29", "n": 5, "u": uuid, "b": "aGk="}),
        log.change("2", {"price": "abc"}),
        log.change("3", {"n": 3_000_000_000}),
        log.change("4", {"x": 1}),
        errors={4: "refused by the sealer"},
    )
    assert world.carry(columns=declared) == 4
    letters = world.rows("orders_dead_letters")
    assert [row["_reason"] for row in letters] == [
        "price: 'abc' is not decimal(20,4)", "n: '3000000000' is not int", "refused by the sealer",
    ]  # fmt: skip
    (row,) = values(world).values()
    assert (str(row["price"]), str(row["day"]), row["n"]) == ("12.5000", "2024-02-29", 5)
    assert (row["u"], bytes(row["b"])) == (uuid, b"hi")
    log.seal(log.change("1", {"n": 6}))
    world.carry(columns=declared)
    assert values(world)["1"]["n"] == 6


EVERY_KIND = [
    "year(born)", "month(at)", "bucket(4, n)", "truncate(2, name)", "hour(seen) as at_hour", "country",
]  # fmt: skip


def test_every_kind_of_partition(world: World) -> None:
    log = world.log
    columns = {
        "born": "date", "at": "timestamptz", "n": "long", "name": "string", "seen": "timestamp", "country": "string",
    }  # fmt: skip
    settings = {"partition": EVERY_KIND, "columns": columns, "history_partition": ["day(_time)", "bucket(2, _key)"]}
    row = {"born": "1970-05-01", "at": "2026-01-31T23:59:59Z", "seen": "2026-01-31T07:00:00", "name": "abc"}
    log.seal(*(log.change(str(i), {**row, "n": i, "country": "at"}) for i in range(8)), log.change("null", {"n": None}))
    world.carry(**settings)
    log.seal(log.change("1", {"at": None, "name": "xyz"}), log.change("2", None), log.change("3", {"more": 1}))
    world.carry(**settings)
    rows = {row["_key"]: row for row in world.rows("orders")}
    assert rows.keys() == {"0", "1", "3", "4", "5", "6", "7", "null"}
    assert (rows["1"]["at"], rows["1"]["name"], str(rows["1"]["born"])) == (None, "xyz", "1970-05-01")
    assert (rows["3"]["more"], rows["4"]["more"]) == (1, None)
    assert len(world.rows("orders_history")) == 12
    if isinstance(world, DeltaWorld):
        found = {name: rows["3"][name] for name in rows["3"] if name.startswith(("born_", "at_", "n_b", "name_t"))}
        # The bucket is Iceberg's own.
        bucket = BucketTransform(4).transform(LongType())(3)
        assert found == {
            "born_year": 1970, "at_month": "2026-01", "n_bucket_4": bucket, "name_trunc_2": "ab",
            "at_hour": "2026-01-31-07",
        }  # fmt: skip


def test_partitions(world: World) -> None:
    log = world.log
    settings = {"partition": ["country"], "columns": {"country": "string"}, "history": False}
    log.seal(*(log.change(str(i), {"country": ["de", "a/b c", None][i % 3], "n": i}) for i in range(9)))
    world.carry(**settings)
    log.seal(log.change("0", {"country": "at", "n": 100}), log.change("1", None))
    world.carry(**settings)
    assert {key: (row["country"], row["n"]) for key, row in values(world).items()} == {
        "0": ("at", 100),
        **{str(i): (["de", "a/b c", None][i % 3], i) for i in range(2, 9)},
    }
    assert world.versions("orders_history") is None
