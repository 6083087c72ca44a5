"""Delta tables as the writer uses them, without Spark: marks, keys, evolution, and who loses a race."""

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from mainstem.client.delta import create_storage
from mainstem.model.errors import Conflict
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.pipeline.deltaplace import Listing
from mainstem.pipeline.deltatable import DeltaLake, DeltaLakeTable
from mainstem.pipeline.lake import Marks
from mainstem.runtime.clock import SystemClock
from mainstem.tables.evolution import plan_evolution
from mainstem.tables.layout import STATE_COLUMNS
from mainstem.tables.settings import TableSettings
from tests.compat.catalog_server import Server

NAME = TableName("ns.deep", "orders")
SETTINGS = TableSettings.from_document({"format": "delta", "columns": {"u": "uuid"}})


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(create_storage(str(tmp_path)), SystemClock())


@pytest.fixture
def table(lake: DeltaLake) -> DeltaLakeTable:
    columns = plan_evolution((), {}, SETTINGS).columns
    fields = [(column.stored, column.type) for column in columns]
    created = lake.create(NAME, [*fields, *STATE_COLUMNS], of_rows=columns, vectors=True)
    evolve(created, {"n": ["int"], "doc": ["object"]}, 0)
    return created


def evolve(table: DeltaLakeTable, seen: dict[str, list[str]], covered: int) -> None:
    table.evolve(plan_evolution(table.columns(), seen, SETTINGS), LogPosition(covered))


def rows(*values: dict[str, Any]) -> pa.Table:
    schema = pa.schema(
        [("u", pa.string()), ("n", pa.int64()), ("doc", pa.string()), ("_key", pa.string()), ("_hlc", pa.int64())]
    )
    return pa.Table.from_pylist(list(values), schema=schema)


def keys(*values: str) -> pa.Table:
    return pa.table({"_key": pa.array(values, pa.string())})


def test_rows_marks_and_replacement(lake: DeltaLake, table: DeltaLakeTable) -> None:
    table.append(rows({"_key": "1", "n": 1}, {"_key": "2", "n": 2}), Marks(LogPosition(2), 20))
    old = table.old_rows(keys("2", "3"), ["n"])
    assert old.select(["_key", "n"]).to_pylist() == [{"_key": "2", "n": 2}]
    table.replace(old, rows({"_key": "2", "n": 3}, {"_key": "3", "n": 4}), Marks(LogPosition(4), 40))
    loaded = lake.load(NAME)
    assert loaded is not None
    assert loaded.marks() == Marks(LogPosition(4), 40)
    found = lake.table(NAME).query({}, sort={"_key": 1}, projection=["_key", "n"])
    assert found == [{"_key": "1", "n": 1}, {"_key": "2", "n": 3}, {"_key": "3", "n": 4}]
    loaded.mark(Marks(LogPosition(9), 40))
    table.refresh()
    assert table.marks().position == 9


def test_a_writer_that_was_overtaken_loses(lake: DeltaLake, table: DeltaLakeTable) -> None:
    other = lake.load(NAME)
    assert other is not None
    table.append(rows({"_key": "1", "n": 1}), Marks(LogPosition(1), 1))
    with pytest.raises(Conflict):
        other.append(rows({"_key": "1", "n": 1}), Marks(LogPosition(1), 1))
    other.refresh()
    assert other.marks().position == 1
    assert len(lake.table(NAME).query()) == 1


def test_types_change_and_every_row_is_kept(lake: DeltaLake, table: DeltaLakeTable) -> None:
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    table.append(rows({"_key": "1", "n": 1, "u": uuid, "doc": '{"a":1}'}), Marks(LogPosition(1), 1))
    evolve(table, {"n": ["double"], "late": ["string"], "doc": ["string"]}, 1)
    types = {column.name: (column.type, column.kind) for column in table.columns()}
    assert types["u"] == ("uuid", None)
    assert (types["n"][0], types["late"][0]) == ("double", "string")
    assert table.columns_since() == {"late": 1}
    assert table.marks().position == 1
    evolve(table, {"n": ["string"]}, 1)
    (row,) = lake.table(NAME).query()
    assert (row["n"], row["doc"], row["u"]) == ("1.0", '{"a":1}', uuid)
    # A version from before still shows what was there.
    assert lake.table(NAME).snapshot(2).query(projection=["n"]) == [{"n": 1}]


def test_the_catalog_lists_every_table_once(tmp_path: Path) -> None:
    with Server(tmp_path / "catalog", str(tmp_path / "warehouse")) as server:
        listing = Listing(server.url, None)
        lake = DeltaLake(create_storage(str(tmp_path / "delta")), SystemClock(), listing.enter)
        for _ in range(2):
            lake.create(NAME, STATE_COLUMNS)
        # A process that starts anew enters them again.
        Listing(server.url, None).enter(NAME, lake.storage.uri(lake.path(NAME)))
        found = httpx.get(f"{server.url}/v1/namespaces/ns%1Fdeep/generic-tables", timeout=60).json()["identifiers"]
        assert found == [{"namespace": ["ns", "deep"], "name": "orders"}]
