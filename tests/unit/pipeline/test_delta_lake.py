"""Delta tables take in the log as Iceberg tables do: rows, marks, replays, evolution, and who loses a race."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from duckdb_extensions import import_extension

from mainstem.client.delta import LocalStorage, create_storage
from mainstem.formats.delta.files.engine import engine_of
from mainstem.model import UNNAMED, Conflict, NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.delta.place import Listing
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.delta.writer import DeltaWriter
from mainstem.pipeline.plan.writer import Writer, Written
from mainstem.runtime.clock import SystemClock
from mainstem.tables.layout import HISTORY_COLUMNS, PARTITIONS_PROPERTY, STATE_COLUMNS
from mainstem.tables.settings import TableSettings
from mainstem.tables.since import Since
from tests.compat.catalog_server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

UUID = "123e4567-e89b-12d3-a456-426614174000"


def settings(**more: Any) -> TableSettings:
    return TableSettings.from_document({"format": "delta", **more})


@pytest.fixture
def lake(bench: Any, tmp_path: Path) -> Any:
    """A bench whose tables are in Delta."""
    bench.delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), application="test-app")
    return bench


def by_duckdb(bench: Any, table: str = "orders") -> list[dict[str, Any]]:
    """The rows as a reader that is not ours has them."""
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.load_extension("delta")
    uri = bench.delta.storage.uri(bench.delta.path(bench.name(table)))
    rows: list[dict[str, Any]] = connection.execute(f"SELECT * FROM delta_scan('{uri}')").to_arrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_key"], row["_position"]))


def commits(bench: Any, operation: str) -> list[list[dict[str, Any]]]:
    """What the commits of an operation add and remove."""
    uri = bench.delta.storage.uri(bench.delta.path(bench.name("orders")))
    found = []
    for path in sorted(Path(uri.removeprefix("file://")).glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        if any(each.get("commitInfo", {}).get("operation") == operation for each in actions):
            found.append([each.get("add") or each["remove"] for each in actions if "add" in each or "remove" in each])
    assert found
    return found


def values(bench: Any) -> dict[str, dict[str, Any]]:
    own = {"_key", "_hlc", "_source", "_position", "_clocks"}
    rows = by_duckdb(bench)
    assert len({row["_key"] for row in rows}) == len(rows), "a key stands twice"
    return {row["_key"]: {name: row[name] for name in row if name not in own} for row in rows}


def marks(bench: Any, table: str = "orders") -> dict[str, int]:
    loaded = bench.delta.load(bench.name(table))
    assert loaded is not None
    return dict(loaded.marks().positions)


def test_rows_are_replaced_deleted_and_added(lake: Any) -> None:
    lake.seal(lake.change("1", {"n": 1}), lake.change("2", {"n": 2}), lake.change("1", {"n": 3}))
    assert lake.catch_up(settings=settings()) == 3
    lake.seal(lake.change("2", None), lake.change("3", {"n": 4}), lake.change("4", {"n": 5}), lake.change("4", None))
    assert lake.catch_up(settings=settings()) == 7
    assert values(lake) == {"1": {"n": 3}, "3": {"n": 4}}
    assert [row["_position"] for row in by_duckdb(lake, "orders_history")] == [1, 3, 2, 4, 5, 6, 7]
    assert marks(lake) == marks(lake, "orders_history") == {UNNAMED: 7}
    versions = [lake.delta.load(lake.name(table)).version for table in ("orders", "orders_history")]
    # A replay commits nothing.
    assert lake.catch_up(settings=settings()) == 7
    assert [lake.delta.load(lake.name(table)).version for table in ("orders", "orders_history")] == versions
    # Every commit of rows says which application of Spark's it is of.
    log = lake.delta.table(lake.name("orders")).history()
    assert {each.get("spark.app.id") for each in log if each["operation"] in ("WRITE", "MERGE")} == {"test-app"}


def test_what_was_carried_does_not_come_again_after_a_way_back(lake: Any) -> None:
    lake.seal(lake.change("1", {"n": 1}), lake.change("2", {"n": 2}))
    lake.catch_up(settings=settings())
    lake.seal(lake.change("1", {"n": 3, "more": "x"}), lake.change("2", None), lake.change("3", {"n": 4}))
    lake.catch_up(settings=settings())
    before, after, marked = lake.delta.table(lake.name("orders")), values(lake), marks(lake)
    newest = before.version
    whole = next(v for v in range(newest) if len(before.snapshot(v).query()) == 2)
    before.restore(whole)
    assert values(lake) == {"1": {"n": 1}, "2": {"n": 2}} and marks(lake) == marked
    # A pipeline that starts anew sees all segments, and carries none.
    assert lake.catch_up(settings=settings()) == 5
    assert values(lake) == {"1": {"n": 1}, "2": {"n": 2}}
    lake.seal(lake.change("2", {"more": "later"}))
    lake.catch_up(settings=settings())
    assert values(lake) == {"1": {"n": 1, "more": None}, "2": {"n": 2, "more": "later"}}
    before.restore(newest)
    assert values(lake) == after and marks(lake) == {UNNAMED: 6}


def test_a_version_whose_files_are_gone_is_not_put_back(lake: Any) -> None:
    lake.seal(lake.change("1", {"n": 1}), lake.change("2", {"n": 2}))
    lake.catch_up(settings=settings())
    for key in ("1", "2"):
        lake.seal(lake.change(key, {"n": 3}))
        lake.catch_up(settings=settings())
    table = lake.delta.table(lake.name("orders"))
    version, now = table.version - 1, values(lake)
    # Of the version before, the vector of its first file: the file itself is in it no less than in this one.
    folder = Path(str(lake.delta.storage.uri(table.name)).removeprefix("file://"))
    for file in folder.glob("deletion_vector_*.bin"):
        file.unlink()
    with pytest.raises(NotFound, match=r"not kept any more.*deletion_vector"):
        table.restore(version)
    assert values(lake) == now and table.version == version + 1


def test_partial_and_late_rows_are_merged_with_the_old_ones(lake: Any) -> None:
    wanted = settings(columns={"u": "uuid", "at": "timestamptz", "price": "decimal(10,2)", "b": "binary", "d": "date"})
    whole = {"u": UUID, "at": "2024-01-01T10:00:00.123456Z", "price": "1.50", "b": "aGk=", "d": "2024-02-29", "n": 1}
    lake.seal(lake.change("1", whole, hlc=100), lake.change("2", whole, hlc=100), lake.change("3", whole, hlc=100))
    lake.catch_up(settings=wanted)
    before = values(lake)
    lake.seal(
        lake.change("1", {"n": 2}, hlc=200),
        # Older than what is there: it adds a column, and changes none.
        lake.change("2", {"n": 7, "late": "x"}, hlc=50),
        lake.change("3", None, hlc=300),
    )
    lake.catch_up(settings=wanted)
    lake.seal(lake.change("3", {"n": 8}, hlc=250), lake.change("3", {"late": "back"}, hlc=400))
    lake.catch_up(settings=wanted)
    found = values(lake)
    assert found["1"] == before["1"] | {"n": 2, "late": None}
    assert found["2"] == before["2"] | {"late": "x"}
    assert found["3"] == dict.fromkeys(before["3"]) | {"late": "back"}


def test_a_row_that_does_not_fit_is_a_dead_letter(lake: Any) -> None:
    wanted = settings(columns={"n": "int"})
    lake.seal(lake.change("1", {"n": "no"}), lake.change("2", {"n": 5}))
    lake.catch_up(settings=wanted)
    assert values(lake) == {"2": {"n": 5}}
    assert [row["_reason"] for row in by_duckdb(lake, "orders_dead_letters")] == ["n: 'no' is not int"]
    assert [row["_position"] for row in by_duckdb(lake, "orders_history")] == [2]


def test_types_change_and_every_row_is_kept(lake: Any) -> None:
    wanted = settings(columns={"u": "uuid"})
    lake.seal(lake.change("1", {"n": 1, "u": UUID, "doc": {"a": 1}}))
    lake.catch_up(settings=wanted)
    table = lake.delta.load(lake.name("orders"))
    version = table.version
    lake.seal(lake.change("2", {"n": 1.5, "u": None, "doc": "text", "late": "x"}))
    lake.catch_up(settings=wanted)
    table.refresh()
    types = {column.name: (column.type, column.kind) for column in table.columns()}
    assert types["u"] == ("uuid", None)
    assert (types["n"][0], types["late"][0]) == ("double", "string")
    assert table.columns_since() == Since(clocks={"late": 10})
    lake.seal(lake.change("3", {"n": "word", "u": None, "doc": None, "late": None}))
    lake.catch_up(settings=wanted)
    assert values(lake) == {
        "1": {"u": UUID, "n": "1.0", "doc": '{"a":1}', "late": None},
        "2": {"u": None, "n": "1.5", "doc": "text", "late": "x"},
        "3": {"u": None, "n": "word", "doc": None, "late": None},
    }
    for actions in commits(lake, "CHANGE COLUMNS"):
        assert not any(each["dataChange"] for each in actions), "a change of types is none of rows"
    # A version from before still shows what was there.
    assert lake.delta.table(lake.name("orders")).snapshot(version).query(projection=["n"]) == [{"n": 1}]


def test_a_history_from_before_it_said_of_which_log_its_rows_are_begins_to(lake: Any) -> None:
    lake.delta.create(lake.name("orders_history"), HISTORY_COLUMNS[:-1])
    wanted = settings()
    lake.seal(lake.change("1", {"n": 1}))
    lake.catch_up(settings=wanted)
    lake.seal(lake.change("1", {"n": 2}))
    lake.catch_up(settings=wanted)
    assert [row["_log"] for row in by_duckdb(lake, "orders_history")] == ["", ""]
    table = lake.delta.load(lake.name("orders_history"))
    assert table.properties["mainstem.unlogged"] == "{}" and table.marks().positions == {"": 2}


def test_many_batches_over_restarts_and_partitions(lake: Any) -> None:
    wanted = settings(columns={"day": "date"}, partition=["day"])
    draw = random.Random(4)
    expected: dict[str, Any] = {}
    for batch in range(5):
        changes = []
        for _ in range(60):
            key, day, number = str(draw.randrange(50)), f"2024-01-0{draw.randrange(1, 4)}", draw.randrange(1000)
            if draw.random() < 0.2:
                expected.pop(key, None)
                changes.append(lake.change(key, None))
            else:
                expected[key] = (day, number)
                changes.append(lake.change(key, {"day": day, "n": number}))
        lake.seal(*changes)
        if batch % 2:
            lake.finder.forget(lake.name("orders"))
        lake.catch_up(settings=wanted)
    assert {key: (str(row["day"]), row["n"]) for key, row in values(lake).items()} == expected
    assert len(by_duckdb(lake, "orders_history")) == lake.position


def test_hours_stand_below_their_day(lake: Any) -> None:
    wanted = settings(columns={"at": "timestamptz"}, partition=["day(at) as dt", "hour(at) as hr"])
    moments = ["2024-01-15T14:30:00+00:00", "2024-01-15T03:00:00+00:00", "2024-02-01T00:00:00+00:00", None]
    lake.seal(*(lake.change(str(number), {"at": at}) for number, at in enumerate(moments)))
    lake.catch_up(settings=wanted)
    lake.seal(lake.change("1", {"at": moments[0]}))
    lake.catch_up(settings=wanted)
    shown = {key: (str(row["dt"]), row["hr"]) for key, row in values(lake).items()}
    assert shown == {
        "0": ("2024-01-15", "14"),
        "1": ("2024-01-15", "14"),
        "2": ("2024-02-01", "00"),
        "3": ("None", None),
    }
    paths = [file.path for file in lake.delta.load(lake.name("orders")).files]
    assert any(path.startswith("dt=2024-01-15/hr=14/") for path in paths), paths


@pytest.mark.parametrize("later", [["month(at) as by"], ["bucket(2, n) as by"], []])
def test_partitions_are_what_the_table_was_made_with_whatever_is_declared_later(lake: Any, later: list[str]) -> None:
    columns = {"at": "timestamptz", "n": "long"}
    lake.seal(lake.change("1", {"at": "2024-01-15T14:30:00+00:00", "n": 1}))
    lake.catch_up(settings=settings(columns=columns, partition=["day(at) as by"]))
    lake.seal(lake.change("2", {"at": "2024-02-01T00:00:00+00:00", "n": 2}), lake.change("1", {"n": 3}))
    lake.catch_up(settings=settings(columns=columns, partition=later))
    assert {key: (str(row["by"]), row["n"]) for key, row in values(lake).items()} == {
        "1": ("2024-01-15", 3),
        "2": ("2024-02-01", 2),
    }


def test_of_a_table_that_did_not_note_its_partitions_no_others_may_be_declared(lake: Any) -> None:
    made = settings(columns={"at": "timestamptz"}, partition=["day(at) as by"])
    lake.seal(lake.change("1", {"at": "2024-01-15T14:30:00+00:00"}))
    lake.catch_up(settings=made)
    uri = lake.delta.storage.uri(lake.delta.path(lake.name("orders")))
    first = Path(uri.removeprefix("file://")) / "_delta_log" / f"{0:020d}.json"
    noted = json.dumps(json.dumps([["by", "at", "day"]]))
    text = first.read_text()
    assert text.count(noted) == 1, text
    first.write_text(text.replace(json.dumps(PARTITIONS_PROPERTY), '"mainstem.none"'))
    # As after a restart.
    lake.delta = DeltaLake(create_storage(str(lake.delta.storage.root)), SystemClock(), application="test-app")
    lake.seal(lake.change("2", {"at": "2024-02-01T00:00:00+00:00"}))
    with pytest.raises(AssertionError, match="made with other partitions"):
        lake.catch_up(settings=settings(columns={"at": "timestamptz"}))
    lake.catch_up(settings=made)
    assert {key: str(row["by"]) for key, row in values(lake).items()} == {"1": "2024-01-15", "2": "2024-02-01"}


class Overtaken(DeltaWriter):
    """Somebody else commits the same changes when everything of this writer is staged. Only the first time."""

    overtake: Any = None

    def stage(self, written: Written) -> Sequence[Any]:
        staged = super().stage(written)
        overtake, Overtaken.overtake = Overtaken.overtake, None
        if overtake is not None:
            overtake()
        return staged


def test_two_pipelines_at_once_count_nothing_twice(lake: Any) -> None:
    """A zombie runs the same micro-batch as the pipeline that took its place."""
    lake.seal(lake.change("1", {"n": 1}), lake.change("2", {"n": 2}))
    lake.catch_up(settings=settings())
    lake.seal(lake.change("1", {"n": 10}), lake.change("2", None), lake.change("3", {"n": 3}))
    other = lake.carrier()
    Overtaken.overtake = lambda: other.carry(None, (), "other")

    def zombie(name: TableName) -> Writer:
        return Overtaken(lake.delta, lake.spark, name, settings(), lineage=lake.lineage, finder=lake.finder)

    lake.writer = zombie
    carrier = lake.carrier()
    carrier.carry(None, (), "zombie")
    assert Overtaken.overtake is None
    assert lake.progress.report({}).tables[str(lake.name("orders"))].error is None
    assert values(lake) == {"1": {"n": 10}, "3": {"n": 3}}
    assert [row["_position"] for row in by_duckdb(lake, "orders_history")] == [1, 3, 2, 4, 5]


def test_without_deletion_vectors_the_executors_write_files_anew(lake: Any) -> None:
    wanted = settings(columns={"shop": "string"}, partition=["identity(shop)"])
    for shop in ("a", "b"):
        lake.seal(*(lake.change(f"{shop}{n}", {"n": n, "shop": shop}) for n in range(4)))
        lake.catch_up(settings=wanted)
    # Some rows have left by vectors before these are turned off.
    lake.seal(lake.change("a0", None), lake.change("b0", {"n": 10, "shop": "b"}))
    lake.catch_up(settings=wanted)
    uri = lake.delta.storage.uri(lake.delta.path(lake.name("orders")))
    lake.spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    # A storage of its own: what this process reads of data files by it would show below.
    lake.delta = DeltaLake(create_storage(uri.removesuffix(lake.delta.path(lake.name("orders")))), SystemClock())
    carrier = lake.carrier()
    rng, expected = random.Random(3), {f"a{n}": n for n in range(1, 4)} | {f"b{n}": n for n in range(1, 4)} | {"b0": 10}
    for batch in range(4):
        changes = []
        for key in rng.sample([f"{shop}{n}" for shop in "ab" for n in range(6)], 4):
            expected[key] = 100 * batch + rng.randrange(50)
            changes.append(lake.change(key, {"n": expected[key], "shop": key[0]}))
        # All rows of a file go once; and a row moves on to another partition.
        for key in [each for each in expected if batch == 2 and each.startswith("a")]:
            expected.pop(key)
            changes.append(lake.change(key, None))
        if batch == 3:
            expected["b1"] = 7
            changes.append(lake.change("b1", {"n": 7, "shop": "a"}))
        lake.seal(*changes)
        # The same writer goes on, as in the pipeline: what it knows of places must be true after a rewrite.
        carrier.carry(None, (), "test")
        assert lake.progress.report({}).tables[str(lake.name("orders"))].error is None
        assert {key: row["n"] for key, row in values(lake).items()} == expected
    assert values(lake)["b1"]["shop"] == "a"
    table = lake.delta.load(lake.name("orders"))
    assert table is not None and not table.keeps_vectors
    # No commit since has a vector, and the files are the executors': this process, the driver, has read no row.
    adds = [add for actions in commits(lake, "MERGE")[-4:] for add in actions if "modificationTime" in add]
    assert adds and not [add for add in adds if "deletionVector" in add]
    assert engine_of(lake.delta.storage)._connection is None


def test_what_was_staged_for_a_race_that_was_lost_is_not_committed_later(lake: Any) -> None:
    """Not even where the files could not be removed, because the store was away just then."""
    lake.seal(lake.change("1", {"n": 1}))
    lake.catch_up(settings=settings())
    lake.seal(lake.change("2", {"n": 2}))

    class Unlucky(DeltaWriter):
        losses = 1

        def stage(self, written: Written) -> Sequence[Any]:
            staged = super().stage(written)
            if Unlucky.losses:
                Unlucky.losses -= 1
                raise Conflict("lost")
            return staged

    class Away(LocalStorage):
        def delete(self, path: str) -> None:
            raise OSError(f"the store is away. path={path}")

    storage = lake.delta.storage
    lake.delta.storage = Away(storage.folder)
    lake.writer = lambda name: Unlucky(
        lake.delta, lake.spark, name, settings(), lineage=lake.lineage, finder=lake.finder
    )
    carrier = lake.carrier()
    carrier.carry(None, (), "unlucky")
    lake.delta.storage = storage
    assert Unlucky.losses == 0
    assert values(lake) == {"1": {"n": 1}, "2": {"n": 2}}
    assert [row["_position"] for row in by_duckdb(lake, "orders_history")] == [1, 2]


@pytest.mark.parametrize("committed", ["history", "state"])
def test_what_one_of_two_commits_left_behind_catches_up(lake: Any, committed: str) -> None:
    """Every Delta table has a log of its own: a crash may come between."""
    lake.seal(lake.change("1", {"n": 1}))
    lake.catch_up(settings=settings())
    lake.seal(lake.change("1", {"n": 2}), lake.change("2", {"n": 3}))

    class OnlyOne(DeltaWriter):
        def stage(self, written: Written) -> Sequence[Any]:
            for change in super().stage(written):
                if (change.table.name == lake.name("orders")) == (committed == "state"):
                    change.commit()
            raise RuntimeError("killed")

        def discard(self, written: Written) -> None:
            """Nobody is left who could."""

    writer = lake.writer
    lake.writer = lambda name: OnlyOne(
        lake.delta, lake.spark, name, settings(), lineage=lake.lineage, finder=lake.finder
    )
    lake.carrier().carry(None, (), "killed")
    lake.writer = writer
    assert "killed" in lake.progress.report({}).tables[str(lake.name("orders"))].error
    # A process that starts anew knows nothing of it.
    lake.finder.forget(lake.name("orders"))
    assert lake.catch_up(settings=settings()) == 3
    assert values(lake) == {"1": {"n": 2}, "2": {"n": 3}}
    assert [row["_position"] for row in by_duckdb(lake, "orders_history")] == [1, 2, 3]


def test_the_catalog_lists_every_table_once(tmp_path: Path) -> None:
    name = TableName("ns.deep", "orders")
    with Server(tmp_path / "catalog", str(tmp_path / "warehouse")) as server:
        listing = Listing(server.url, None)
        delta = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), listing.enter)
        for _ in range(2):
            delta.create(name, STATE_COLUMNS)
        # A process that starts anew enters them again.
        Listing(server.url, None).enter(name, delta.storage.uri(delta.path(name)))
        found: Sequence[Any] = httpx.get(f"{server.url}/v1/namespaces/ns%1Fdeep/generic-tables", timeout=60).json()[
            "identifiers"
        ]
        assert found == [{"namespace": ["ns", "deep"], "name": "orders"}]
