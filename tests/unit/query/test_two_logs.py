"""A history that two logs wrote: only what is of our log counts as ours, also where the rows do not say it yet."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.app.sync.history import LakeHistory
from mainstem.model import UNNAMED, Lineage, LogId, LogPosition, Span, TableName
from mainstem.query.engine import QueryEngine
from mainstem.tables.marks import position_mark
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

OURS, LOST = LogId("ours"), LogId("lost")
NAME = TableName("twologs", "notes")
EVERYTHING = LogPosition(1_000)
COLUMNS = {
    "_position": pa.int64(),
    "_hlc": pa.int64(),
    "_op": pa.string(),
    "_key": pa.string(),
    "_columns": pa.string(),
    "_before": pa.string(),
    "_source": pa.string(),
    "_sequence": pa.int64(),
    "_id": pa.string(),
    "_log": pa.string(),
}


def rows(log: LogId | None, positions: range) -> pa.Table:
    """Changes of a log; None: from before rows said of which they are."""
    found = [
        {"_position": at, "_hlc": at, "_op": "insert", "_key": f"{log}-{at}", "_columns": '{"a":1}',
         "_source": "ada", "_id": f"{log}-{at}", "_log": log}
        for at in positions
    ]  # fmt: skip
    return pa.Table.from_pylist(found, schema=pa.schema(list(COLUMNS.items())))


@pytest.fixture
def lake(catalog: FolderCatalog) -> Iterator[FolderLake]:
    yield FolderLake(catalog)
    for name in [name for name in catalog.locations if name[0] == NAME.namespace]:
        del catalog.locations[name]


def history_of(
    lake: FolderLake, engine: QueryEngine, *parts: pa.Table, lineage: Lineage, has_log: bool = True,
    unlogged: str | None = None, **marks: int,
) -> LakeHistory:  # fmt: skip
    schema = parts[0].schema if has_log else parts[0].drop_columns("_log").schema
    properties = {} if unlogged is None else {"mainstem.unlogged": unlogged}
    lake.catalog.create_table((NAME.namespace, NAME.table), schema=schema)
    table = lake.catalog.create_table((NAME.namespace, NAME.history.table), schema=schema, properties=properties)
    told = {position_mark(LogId("" if log == "unnamed" else log)): str(position) for log, position in marks.items()}
    for part in parts:
        table.append(part if has_log else part.drop_columns("_log"), snapshot_properties=told)
    return LakeHistory(lake, engine, lambda: lineage)


def spans(*found: tuple[LogId, int]) -> Lineage:
    return Lineage(tuple(Span(log, LogPosition(first)) for log, first in found))


async def keys(history: LakeHistory, after: int = 0, limit: int = 3) -> list[str]:
    """All pages of the namespace; the same as a topic of the table reads."""
    found, at = list[str](), LogPosition(after)
    while page := await history.page(NAME.namespace, after=at, through=EVERYTHING, limit=limit):
        found += [each.key for each in page]
        at = LogPosition(page[-1].position)
    told, at = list[str](), LogPosition(after)
    while changes := await history.of_table(NAME, after=at, through=EVERYTHING, limit=limit):
        told += [each.key for each in changes]
        at = LogPosition(changes[-1].position)
    assert found == told
    return found


async def others(history: LakeHistory) -> list[str]:
    return [change.key async for page in history.others(NAME.namespace) for change in page]


async def test_a_pull_has_our_rows_and_no_others(lake: FolderLake, engine: QueryEngine) -> None:
    """The log was lost at 8, and the new one is at 5: pages of both at once would lose rows at their borders."""
    parts = rows(LOST, range(1, 9)), rows(OURS, range(1, 6))
    history = history_of(lake, engine, *parts, lineage=spans((OURS, 1)), ours=5, lost=8)
    assert await keys(history) == [f"ours-{at}" for at in range(1, 6)]
    assert await keys(history, after=2) == ["ours-3", "ours-4", "ours-5"]
    assert await history.has_others(NAME.namespace)
    assert sorted(await others(history)) == [f"lost-{at}" for at in range(1, 9)]
    # The same delta counts once for ever, whichever log brought it.
    ids = [each.delta_id async for page in history.identified(LogPosition(3)) for each in page]
    assert sorted(ids) == sorted([f"lost-{at}" for at in range(1, 9)] + [f"ours-{at}" for at in range(1, 4)])
    (told,) = (await history.histories(NAME.namespace)).values()
    assert told.held == {OURS: 5, LOST: 8} and told.unlogged == {}


async def test_what_a_restored_log_lost_is_not_its_own(lake: FolderLake, engine: QueryEngine) -> None:
    lineage = spans((LOST, 1), (OURS, 4))
    parts = rows(LOST, range(1, 9)), rows(OURS, range(4, 7))
    history = history_of(lake, engine, *parts, lineage=lineage, ours=6, lost=8)
    assert await keys(history) == ["lost-1", "lost-2", "lost-3", "ours-4", "ours-5", "ours-6"]
    assert sorted(await others(history)) == [f"lost-{at}" for at in range(4, 9)]
    # A client that stands before the loss would never hear of those: it begins again.
    assert await history.lost_since(NAME.namespace, LogPosition(2))
    assert not await history.lost_since(NAME.namespace, LogPosition(5))


async def test_rows_that_do_not_say_their_log_are_ours_as_far_as_we_were(lake: FolderLake, engine: QueryEngine) -> None:
    parts = rows(None, range(1, 9)), rows(OURS, range(1, 4))
    lost = history_of(lake, engine, *parts, lineage=spans((OURS, 1)), unlogged='{"lost": 8}', ours=3, lost=8)
    assert await keys(lost) == ["ours-1", "ours-2", "ours-3"]
    assert sorted(await others(lost)) == [f"None-{at}" for at in range(1, 9)]
    same = LakeHistory(lake, engine, lambda: spans((LOST, 1), (OURS, 9)))
    assert await keys(same) == [f"None-{at}" for at in range(1, 9)]


async def test_rows_of_two_lost_logs_at_the_same_positions_are_all_told(lake: FolderLake, engine: QueryEngine) -> None:
    """Neither says of which log it is: where pages end, the one would stand for the other."""
    earlier = rows(None, range(1, 9))
    later = earlier.set_column(1, "_hlc", pa.array(range(101, 109))).set_column(
        3, "_key", pa.array([f"later-{at}" for at in range(1, 9)])
    )
    history_of(lake, engine, earlier, later, lineage=spans((OURS, 1)), unlogged='{"lost": 8, "first": 8}', lost=8)
    history = LakeHistory(lake, engine, lambda: spans((OURS, 1)), page_rows=3)
    wanted = [f"{name}-{at}" for name in ("None", "later") for at in range(1, 9)]
    assert sorted(await others(history)) == sorted(wanted)


async def test_a_table_of_before_logs_had_names_is_read_as_ever(lake: FolderLake, engine: QueryEngine) -> None:
    part = rows(None, range(1, 9))
    lineage = spans((UNNAMED, 1), (OURS, 9))
    history = history_of(lake, engine, part, lineage=lineage, has_log=False, unnamed=8)
    assert await keys(history) == [f"None-{at}" for at in range(1, 9)]
    assert not await history.has_others(NAME.namespace) and await others(history) == []
    lost = LakeHistory(lake, engine, lambda: spans((OURS, 1)))
    assert await keys(lost) == [] and len(await others(lost)) == 8


FORGED: dict[str, dict[str, pa.Array | None]] = {
    "no ids": {"_id": None},
    "ids that are numbers": {"_id": pa.array([1])},
    "ids that are lists": {"_id": pa.array([["x"]])},
    "clocks that are texts": {"_hlc": pa.array(["soon"])},
    "no clocks": {"_hlc": pa.array([None], pa.int64())},
    "clocks that are decimals": {"_hlc": pa.array([Decimal("1e30")])},
    "sources that are bytes": {"_source": pa.array([b"\xff"])},
    "positions that are texts": {"_position": pa.array(["x"])},
    "logs that are numbers": {"_log": pa.array([5])},
}


def remove_data(location: str) -> None:
    for file in Path(location).rglob("*.parquet"):
        file.unlink()


async def test_a_table_that_is_only_called_a_history_stops_nobody(lake: FolderLake, engine: QueryEngine) -> None:
    """Whoever may write a namespace may make one: a start that reads the deltas of all tables goes on without it."""
    history = history_of(lake, engine, rows(OURS, range(1, 4)), lineage=spans((OURS, 1)), ours=3)
    for number, columns in enumerate(FORGED.values()):
        forged = rows(OURS, range(1, 2))
        for column, values in columns.items():
            forged = forged.drop_columns(column)
            forged = forged if values is None else forged.append_column(column, values)
        name = (NAME.namespace, f"a{number}_history")
        table = lake.catalog.create_table(name, schema=forged.schema)
        table.append(forged, snapshot_properties={position_mark(LOST): "9"})
    odd = {"mainstem.unlogged": "nothing"}
    lake.catalog.create_table((NAME.namespace, "odd_history"), schema=forged.schema, properties=odd)
    gone = lake.catalog.create_table((NAME.namespace, "gone_history"), schema=rows(OURS, range(1)).schema)
    gone.append(rows(OURS, range(1, 2)))
    remove_data(gone.location())
    found = [each async for page in history.identified(EVERYTHING) for each in page]
    assert {f"ours-{at}" for at in range(1, 4)} <= {each.delta_id for each in found}
    assert {(type(each.client), type(each.delta_id), type(each.hlc)) for each in found} == {(str, str, int)}
