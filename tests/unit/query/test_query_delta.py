"""Delta tables under `/v1/query`'s engine: a Variant is the value that it holds, pending or committed."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, LocalStorage
from mainstem.formats.delta.values.variant import encode
from mainstem.model import Invalid, TableName
from mainstem.query.binding import Binder, Freshness
from mainstem.query.delta import DeltaTables
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.plan import Planner, PlanRequest
from mainstem.query.ports import LoadedTable
from mainstem.query.sandbox.encode import csv_bytes, json_rows
from mainstem.query.sandbox.processes import Sandboxes
from mainstem.query.statements.questions import Statements
from mainstem.tables.layout import delta_path
from mainstem.tables.marks import POSITION_MARK
from tests.unit.query.test_query_latest import FakePending, change

NAME = TableName("default", "orders")
VALUES: list[Any] = [{"a": {"b": 17, "big": 2**60}, "tags": [1, "x", None]}, "text", 2.5, None, [], True]


class DeltaLakeOnly:
    """What the engine asks of a catalog, over one folder of Delta tables."""

    def __init__(self, folder: Path) -> None:
        self._tables = DeltaTables(LocalStorage(folder))

    async def tables(self) -> Sequence[TableName]:
        return [NAME]

    async def load(self, name: TableName) -> LoadedTable:
        return self._tables.load(name)


def _variants(values: Sequence[Any]) -> list[dict[str, bytes] | None]:
    pairs = [None if value is None else encode(value) for value in values]
    return [None if pair is None else {"metadata": pair[0], "value": pair[1]} for pair in pairs]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[QueryEngine]:
    table = DeltaTable(LocalStorage(tmp_path), delta_path(NAME))
    two = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("id", pa.int64()), ("doc", two), ("_key", pa.string()), ("_hlc", pa.int64()), ("_source", pa.string()),
            ("_position", pa.int64()), ("_clocks", pa.string()),
        ]
    )  # fmt: skip
    table.create(schema, variants=["doc"], deletion_vectors=True)
    count = len(VALUES)
    rows = {
        "id": range(count), "doc": _variants(VALUES), "_key": [str(n) for n in range(count)],
        "_hlc": [1] * count, "_source": ["s"] * count, "_position": [1] * count, "_clocks": [None] * count,
    }  # fmt: skip
    table.write(pa.table({name: pa.array(rows[name], schema.field(name).type) for name in schema.names}),
                transaction=(POSITION_MARK, 1))  # fmt: skip
    table.delete({"id": 1})
    pending = FakePending([change(2, "0", {"doc": {"new": [1.5]}}), change(3, "9", {"id": 9, "doc": "late"})])
    engine = QueryEngine(DeltaLakeOnly(tmp_path), EngineSettings(folder=f"{tmp_path}/"), pending=pending)
    yield engine
    await engine.close()


async def answer(engine: QueryEngine, sql: str, **more: Any) -> tuple[list[str], list[list[Any]], str]:
    async with engine.open(QueryRequest(sql=sql, **more)) as running:
        batches = [batch async for batch in running.batches()]
        types = [column.type for column in running.columns]
    rows = [msgspec.json.decode(row) for batch in batches for row in json_rows(batch)]
    return types, rows, b"".join(csv_bytes(batch, header=False) for batch in batches).decode()


async def test_a_variant_is_the_value_that_it_holds(engine: QueryEngine) -> None:
    types, rows, text = await answer(engine, "SELECT id, doc, id FROM orders ORDER BY id DESC")
    assert types == ["BIGINT", "VARIANT", "BIGINT"]
    left = [(n, value) for n, value in enumerate(VALUES) if n != 1]
    expected = [[n, value, n] for n, value in reversed(left)]
    # As everywhere in an answer, a number that JSON's readers would round is text.
    expected[-1] = [0, {"a": {"b": 17, "big": str(2**60)}, "tags": [1, "x", None]}, 0]
    assert rows == expected
    assert text.splitlines()[1] == '4,"[]",4'


async def test_paths_into_it_can_be_asked_for(engine: QueryEngine) -> None:
    _, rows, _ = await answer(engine, "SELECT id FROM orders WHERE CAST(doc.a.b AS BIGINT) = 17")
    assert rows == [[0]]
    types, rows, _ = await answer(engine, "SELECT CAST(doc AS JSON) AS doc FROM orders WHERE id = 2;")
    assert (types, rows) == (["JSON"], [["2.5"]])
    with pytest.raises(Invalid, match="inside another"):
        await answer(engine, "SELECT [doc] AS docs FROM orders")


async def test_the_latest_is_of_the_same_kind(engine: QueryEngine) -> None:
    types, rows, _ = await answer(engine, "SELECT id, doc FROM orders ORDER BY id", freshness=Freshness.LATEST)
    assert types == ["BIGINT", "VARIANT"]
    assert rows == [[0, {"new": [1.5]}], [2, 2.5], [3, None], [4, []], [5, True], [9, "late"]]


async def test_a_plan_names_deltas_partitions(tmp_path: Path, sandboxes: Sandboxes) -> None:
    table = DeltaTable(LocalStorage(tmp_path), delta_path(NAME))
    rows = pa.table({"id": [1, 2, 3], "day": ["2026-01-01", "2026-01-02", None]})
    table.write(rows, partition_by=["day"])
    planner = Planner(Binder(DeltaLakeOnly(tmp_path), None), Statements(sandboxes))
    (scan,) = (await planner.plan(PlanRequest(sql="SELECT * FROM orders"))).scans
    assert scan.partition_names == ("day=2026-01-01", "day=2026-01-02", "day=null")
    (scan,) = (await planner.plan(PlanRequest(sql="SELECT * FROM orders WHERE day = '2026-01-02'"))).scans
    assert scan.partition_names == ("day=2026-01-02",)
    assert (scan.partitions.total, scan.partitions.selected) == (3, 1)
