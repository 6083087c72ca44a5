"""Freshness `latest`: the log's tail over a real Iceberg table is what the merge rule says, to the row."""

import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.model import (
    Change,
    Conflict,
    Hlc,
    Lineage,
    LogId,
    LogPosition,
    NotFound,
    Operation,
    Overloaded,
    Row,
    SourceId,
    Span,
    TableName,
    merge,
)
from mainstem.query.binding import Freshness
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.overlay import clocks_text
from mainstem.query.ports import PendingRow
from mainstem.query.sandbox.processes import Sandboxes
from mainstem.tables.layout import stored_name
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

COLUMNS = {"a": pa.int64(), "b": pa.string(), "c": pa.float64()}
LONGS, TEXTS = ("_hlc", "_position"), ("_key", "_source")
STATE = pa.schema(
    {**COLUMNS, **dict.fromkeys(TEXTS, pa.string()), **dict.fromkeys(LONGS, pa.int64()), "_clocks": pa.string()}
)
HISTORY = pa.schema({**dict.fromkeys((*TEXTS, "_op"), pa.string()), **dict.fromkeys(LONGS, pa.int64())})
KINDS = json.dumps({"a": "int", "b": "string", "c": "double"})


class FakePending:
    """A log that holds these changes, from `first` on."""

    def __init__(self, changes: Sequence[Change], first: int = 1) -> None:
        self.changes = list(changes)
        self.first = first
        self.asked: list[tuple[TableName, int, int]] = []
        self.lineage = Lineage()

    def durable(self) -> LogPosition:
        return LogPosition(max((change.position or 0 for change in self.changes), default=0))

    async def rows(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Mapping[str, PendingRow]:
        self.asked.append((table, after, through))
        if after + 1 < self.first:
            raise Conflict(f"the log begins later. expected={after + 1} got={self.first}")
        by_key: dict[str, list[Change]] = {}
        for change in self.changes:
            assert change.position is not None
            if TableName(change.namespace, change.table) == table and after < change.position <= through:
                by_key.setdefault(change.key, []).append(change)
        if len(by_key) > limit:
            raise Overloaded("too many rows are pending", retry_after_s=1)
        return {
            key: PendingRow(merge(changes), LogPosition(max(change.position or 0 for change in changes)))
            for key, changes in by_key.items()
        }


def change(position: int, key: str, columns: dict[str, Any] | None, **more: Any) -> Change:
    operation = Operation.DELETE if columns is None else Operation.UPDATE
    return Change(
        table=more.pop("table", "orders"),
        key=key,
        operation=operation,
        columns=columns,
        hlc=Hlc(more.pop("hlc", position * 10)),
        source=SourceId(more.pop("source", "s")),
        batch_sequence=1,
        position=LogPosition(position),
    )


def write_tables(catalog: FolderCatalog, changes: Sequence[Change], table: str = "orders") -> None:
    """The state and history tables as the pipeline leaves them once it covers these changes."""
    by_key: dict[str, list[Change]] = {}
    for each in changes:
        by_key.setdefault(each.key, []).append(each)
    rows = []
    for key, group in by_key.items():
        row = merge(group)
        if row.visible:
            rows.append(state_row(key, row, max(each.position or 0 for each in group)))
    summary = {
        "mainstem.position": str(max((each.position or 0 for each in changes), default=0)),
        "mainstem.hlc-max": str(max((each.hlc or 0 for each in changes), default=0)),
    }
    state = catalog.create_table(("default", table), STATE, properties={"mainstem.column-kinds": KINDS})
    state.append(pa.Table.from_pylist(rows, STATE), snapshot_properties=summary)
    history = catalog.create_table(("default", f"{table}_history"), HISTORY)
    told = [
        {"_position": e.position, "_hlc": e.hlc, "_op": str(e.operation), "_key": e.key, "_source": e.source}
        for e in changes
    ]
    history.append(pa.Table.from_pylist(told, HISTORY), snapshot_properties=summary)


def state_row(key: str, row: Row, position: int) -> dict[str, Any]:
    top = max(cell.stamp for cell in row.cells.values())
    own = {"_key": key, "_hlc": top.hlc, "_source": top.source, "_position": position}
    return {**row.values(), **own, "_clocks": clocks_text(row, COLUMNS)}


@pytest.fixture
async def lake(tmp_path: Path, sandboxes: Sandboxes) -> AsyncIterator["Lake"]:
    lake = Lake(FolderCatalog(tmp_path), sandboxes)
    yield lake
    if lake.engine:
        await lake.engine.close()


class Lake:
    """A catalog and an engine over it, with whatever is pending."""

    def __init__(self, catalog: FolderCatalog, sandboxes: Sandboxes) -> None:
        self.catalog = catalog
        self._sandboxes = sandboxes
        self.engine: QueryEngine | None = None

    async def query(
        self, pending: FakePending, sql: str, freshness: Freshness = Freshness.LATEST
    ) -> list[dict[str, Any]]:
        if self.engine is None:
            settings = EngineSettings(folder=f"{self.catalog.folder}/")
            lake = FolderLake(self.catalog)
            self.engine = QueryEngine(lake, settings, pending=pending, sandboxes=self._sandboxes)
        async with self.engine.open(QueryRequest(sql=sql, freshness=freshness)) as running:
            rows = [row async for batch in running.batches() for row in batch.to_pylist()]
            self.stats = running.stats()
            self.types = {column.name: column.type for column in running.columns}
        return rows


async def test_latest_sees_inserts_updates_and_deletes_and_snapshot_does_not(lake: Lake) -> None:
    covered = [change(n, key, {"a": n, "b": "x", "c": 1.0}) for n, key in enumerate("pqr", 1)]
    write_tables(lake.catalog, covered)
    tail = [change(4, "p", {"a": 100}), change(5, "q", None), change(6, "s", {"a": 7, "b": None, "c": 2})]
    pending = FakePending([*covered, *tail])
    sql = "SELECT _key, a, b, c FROM orders ORDER BY _key"
    assert [tuple(row.values()) for row in await lake.query(pending, sql)] == [
        ("p", 100, "x", 1.0),
        ("r", 3, "x", 1.0),
        ("s", 7, None, 2.0),
    ]
    assert [(use.position, use.freshness) for use in lake.stats.snapshots] == [(6, "latest")]
    before = await lake.query(pending, sql, Freshness.SNAPSHOT)
    assert [row["_key"] for row in before] == ["p", "q", "r"]
    assert [(use.position, use.freshness) for use in lake.stats.snapshots] == [(3, "snapshot")]
    # And again: nothing of the overlay is left in the session.
    assert len(await lake.query(pending, sql)) == 3


async def test_another_logs_mark_hides_nothing_of_ours(lake: Lake) -> None:
    """The table has three changes of another log. Ours begins at 1 as well, and none of it is in the table."""
    write_tables(lake.catalog, [change(n, key, {"a": n, "b": "x", "c": 1.0}) for n, key in enumerate("pqr", 1)])
    ours = FakePending([change(n, f"new-{n}", {"a": n}, hlc=10_000 + n) for n in range(1, 4)])
    ours.lineage = Lineage((Span(LogId("aaaa"), LogPosition(1)),))
    found = await lake.query(ours, "SELECT _key FROM orders ORDER BY _key")
    assert [row["_key"] for row in found] == ["new-1", "new-2", "new-3", "p", "q", "r"]
    await lake.query(ours, "SELECT _key FROM orders", Freshness.SNAPSHOT)
    assert [use.position for use in lake.stats.snapshots] == [0]


@pytest.mark.parametrize("seed", range(4))
async def test_random_changes_agree_with_the_merge_rule(lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    changes = [random_change(chance, position) for position in range(1, 801)]
    split = chance.randint(200, 700)
    write_tables(lake.catalog, changes[:split])
    found = await lake.query(FakePending(changes), "SELECT * FROM orders")
    by_key: dict[str, list[Change]] = {}
    for each in changes:
        by_key.setdefault(each.key, []).append(each)
    expected = {key: row for key, group in by_key.items() if (row := merge(group)).visible}
    assert {shown["_key"] for shown in found} == expected.keys()
    for shown in found:
        values = expected[shown["_key"]].values()
        assert {name: shown[name] for name in COLUMNS} == {name: values.get(name) for name in COLUMNS}
        top = max(cell.stamp for cell in expected[shown["_key"]].cells.values())
        assert (shown["_hlc"], shown["_source"]) == top


def random_change(chance: random.Random, position: int) -> Change:
    key = f"k{chance.randrange(120)}"
    # Client clocks run behind and ahead of each other: what comes late is often old.
    more = {"hlc": max(1, position * 10 + chance.randint(-3000, 3000)), "source": chance.choice("xyz")}
    if chance.random() < 0.2:
        return change(position, key, None, **more)
    whole = {"a": chance.randrange(10**6), "b": chance.choice(["u", "v", None]), "c": chance.random()}
    names = list(whole) if chance.random() < 0.4 else chance.sample(list(whole), chance.randint(1, 3))
    return change(position, key, {name: whole[name] for name in names}, **more)


async def test_a_late_change_does_not_bring_back_what_was_deleted_after_it(lake: Lake) -> None:
    covered = [change(1, "p", {"a": 1}, hlc=100), change(2, "p", None, hlc=500)]
    write_tables(lake.catalog, covered)
    late = FakePending([*covered, change(3, "p", {"a": 2}, hlc=300), change(4, "q", {"a": 9}, hlc=301)])
    assert [row["_key"] for row in await lake.query(late, "SELECT * FROM orders")] == ["q"]


@pytest.mark.parametrize("since", [{"mainstem.columns-since": {"c": 1}}, {"mainstem.columns-since-clock": {"c": 100}}])
async def test_columns_added_later_are_absent_in_older_rows(lake: Lake, since: dict[str, Any]) -> None:
    covered = [change(1, "p", {"a": 1, "b": "x", "c": 1.0}, hlc=100)]
    write_tables(lake.catalog, covered)
    table = lake.catalog.load_table(("default", "orders"))
    with table.transaction() as transaction:
        transaction.set_properties({name: json.dumps(value) for name, value in since.items()})
    # Older than the row, but the row never had c.
    pending = FakePending([*covered, change(2, "p", {"a": 5, "c": 7.0}, hlc=50)])
    assert [(row["a"], row["c"]) for row in await lake.query(pending, "SELECT * FROM orders")] == [(1, 7.0)]


@pytest.mark.parametrize(
    ("column", "value", "shown", "kind"),
    [
        ("a", 5, 5, "BIGINT"),
        ("a", 2.5, 2.5, "DOUBLE"),
        ("a", 2**60, 2**60, "BIGINT"),
        ("a", "text", "text", "VARCHAR"),
        ("a", True, "true", "VARCHAR"),
        ("a", 2**70, str(2**70), "VARCHAR"),
        ("b", 5, "5", "VARCHAR"),
        ("b", {"x": [1]}, '{"x":[1]}', "VARCHAR"),
        ("c", 3, 3.0, "DOUBLE"),
        ("new", 3, 3, "BIGINT"),
        ("new", "t", "t", "VARCHAR"),
        ("new", [1, "a"], '[1,"a"]', "VARCHAR"),
        ("new", None, None, "VARCHAR"),
        ("_hlc", "mine", "mine", "VARCHAR"),
        ("_hlc_", "mine", "mine", "VARCHAR"),
    ],
)
async def test_values_that_do_not_fit_widen_the_column(
    lake: Lake, column: str, value: Any, shown: Any, kind: str
) -> None:
    covered = [change(1, "p", {"a": 1, "b": "x", "c": 1.0})]
    write_tables(lake.catalog, covered)
    pending = FakePending([*covered, change(2, "q", {column: value})])
    name = stored_name(column)
    rows = await lake.query(pending, f"SELECT {name} AS it FROM orders WHERE _key = 'q'")
    assert rows == [{"it": shown}]
    assert lake.types == {"it": kind}
    assert len(await lake.query(pending, "SELECT * FROM orders")) == 2


async def test_a_declared_type_takes_what_its_text_means(lake: Lake) -> None:
    schema = STATE.append(pa.field("day", pa.date32())).append(pa.field("price", pa.decimal128(10, 2)))
    lake.catalog.create_table(("default", "orders"), schema)
    pending = FakePending([change(1, "p", {"day": "2024-02-29", "price": "12.50"}), change(2, "q", {"price": 3})])
    rows = await lake.query(pending, "SELECT day, price FROM orders ORDER BY _key")
    assert [(str(row["day"]), str(row["price"])) for row in rows] == [("2024-02-29", "12.50"), ("None", "3.00")]
    pending.changes.append(change(3, "q", {"day": "soon"}))
    assert [row["day"] for row in await lake.query(pending, "SELECT day FROM orders ORDER BY _key")] == [
        "2024-02-29",
        "soon",
    ]
    assert lake.types == {"day": "VARCHAR"}


async def test_a_table_that_only_the_log_knows(lake: Lake) -> None:
    pending = FakePending([change(1, "p", {"n": 1, "t": "x"}), change(2, "q", {"n": 2})])
    rows = await lake.query(pending, "SELECT n, t, _key FROM orders ORDER BY _key")
    assert [tuple(row.values()) for row in rows] == [(1, "x", "p"), (2, None, "q")]
    assert [(use.snapshot_id, use.position) for use in lake.stats.snapshots] == [(None, 2)]
    with pytest.raises(NotFound):
        await lake.query(pending, "SELECT * FROM orders", Freshness.SNAPSHOT)
    with pytest.raises(NotFound):
        await lake.query(pending, "SELECT * FROM nowhere")


async def test_all_tables_of_a_query_are_at_one_position(lake: Lake) -> None:
    first = [change(1, "p", {"a": 1})]
    second = [change(2, "p", {"a": 1}, table="lines")]
    write_tables(lake.catalog, first)
    write_tables(lake.catalog, second, "lines")
    pending = FakePending([*first, *second, change(3, "p", {"a": 9}), change(4, "p", {"a": 9}, table="lines")])
    sql = "SELECT count(*) AS n FROM orders o JOIN lines l ON o.a = l.a AND o._key = l._key"
    assert await lake.query(pending, sql) == [{"n": 1}]
    assert {use.position for use in lake.stats.snapshots} == {4}
    assert {(str(table), after, through) for table, after, through in pending.asked} == {
        ("default.orders", 1, 4),
        ("default.lines", 2, 4),
    }


async def test_history_is_read_at_its_snapshot(lake: Lake) -> None:
    covered = [change(1, "p", {"a": 1})]
    write_tables(lake.catalog, covered)
    pending = FakePending([*covered, change(2, "q", {"a": 2})])
    assert len(await lake.query(pending, "SELECT * FROM orders_history")) == 1
    assert [use.freshness for use in lake.stats.snapshots] == ["snapshot"]


async def test_a_log_that_was_trimmed_past_the_snapshot_makes_the_query_look_again(lake: Lake) -> None:
    covered = [change(1, "p", {"a": 1})]
    write_tables(lake.catalog, covered)
    pending = FakePending([change(5, "q", {"a": 2})], first=5)
    with pytest.raises(Conflict):
        await lake.query(pending, "SELECT * FROM orders")
    assert len(pending.asked) > 1


async def test_a_thousand_pending_rows_over_many_files(lake: Lake) -> None:
    covered = [change(n, f"k{n}", {"a": n, "b": "x", "c": 0.5}) for n in range(1, 3001)]
    write_tables(lake.catalog, covered)
    tail = [change(3000 + n, f"k{n * 2}", {"a": -n} if n % 3 else None) for n in range(1, 1001)]
    pending = FakePending([*covered, *tail])
    (row,) = await lake.query(pending, "SELECT count(*) AS n, sum(a) AS s, count(b) AS b FROM orders")
    deleted = [n for n in range(1, 1001) if n % 3 == 0]
    expected = sum(range(1, 3001)) - sum(n * 2 for n in range(1, 1001)) - sum(n for n in range(1, 1001) if n % 3)
    assert (row["n"], int(row["s"]), row["b"]) == (3000 - len(deleted), expected, 3000 - len(deleted))
