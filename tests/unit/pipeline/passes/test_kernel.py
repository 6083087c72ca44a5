"""A task by itself: record batches in, files and their descriptions out, read back with Arrow. No Spark runs here."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from mainstem.model import UNNAMED, Lineage, LogId, LogPosition, Span, TableName
from mainstem.pipeline.passes.kernel import hash_keys, run_task
from mainstem.pipeline.passes.plan import (
    CHANGE,
    DESCRIPTIONS,
    OLD_ROW,
    TOMBSTONE,
    IcebergTarget,
    Part,
    PartitionField,
    PassPlan,
    TableTask,
)
from mainstem.pipeline.plan.evidence import ROWS_SCHEMA
from mainstem.pipeline.plan.writer import Written, sorted_by_table
from mainstem.runtime import durable
from mainstem.tables.evolution import Column
from mainstem.tables.layout import DEAD_LETTER_COLUMNS, HISTORY_COLUMNS, STATE_COLUMNS
from mainstem.tables.parquet import writer_options
from mainstem.tables.since import Since
from mainstem.tables.types import LONG, STRING, ColumnType, Kind

SCHEMA = to_arrow_schema(ROWS_SCHEMA)
ORDERS = TableName("shop", "orders")
COLUMNS = (Column("n", LONG, Kind.INT), Column("t", STRING, Kind.STRING))


class Rig:
    """The rows of a task, in the order in which they are added, and the plan for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.position = 0

    def change(self, key: str, columns: dict[str, Any] | None, table: TableName = ORDERS, **more: Any) -> None:
        self.position += 1
        row = {
            "position": self.position, "hlc": self.position, "namespace": table.namespace, "table": table.table,
            "op": "delete" if columns is None else "update", "key": key, "source": "s",
            "columns": None if columns is None else json.dumps(columns), "batch_sequence": 1, "sequence": self.position,
            "arrival_ms": 1_700_000_000_000, "source_time_ms": 1_600_000_000_000, "evidence": CHANGE,
        }  # fmt: skip
        self.rows.append(row | more)

    def part(self, name: str, after: int = 0, *partition: PartitionField, **more: Any) -> Part:
        columns: dict[str, Any] = {
            "state": [*((column.stored, column.type) for column in more.pop("columns", COLUMNS)), *STATE_COLUMNS],
            "history": HISTORY_COLUMNS,
            "dead_letters": DEAD_LETTER_COLUMNS,
        }
        fields = tuple((column, kind, number) for number, (column, kind) in enumerate(columns[name], 1))
        place = IcebergTarget(str(self.folder / name), fields, 0, partition, writer_options({}))
        return Part(place, LogPosition(after), **more)

    def task(self, **more: Any) -> TableTask:
        known: dict[str, Any] = {"state": self.part("state"), "history": self.part("history"), "columns": COLUMNS}
        known["last"] = LogPosition(self.position)
        seen = {"n": frozenset(["int", "null"]), "t": frozenset(["string", "null"])}
        return TableTask(ORDERS, **{**known, "seen": seen, **more})

    def run(self, *tasks: TableTask, batch_rows: int = 3) -> dict[TableName, Written]:
        """As Spark brings them: in small batches."""
        table = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        plan = PassPlan({task.table: task for task in tasks}, {}, 0)
        batches = list(run_task(plan, iter(table.to_batches(max_chunksize=batch_rows))))
        return sorted_by_table(pa.Table.from_batches(batches, DESCRIPTIONS))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def rows_of(files: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in files:
        rows = pq.ParquetFile(json.loads(file.description)["file-path"]).read().to_pylist()
        assert len(rows) == file.rows == json.loads(file.description)["record-count"]
        found += rows
    return sorted(found, key=lambda row: row["_position"])


def values(written: Written) -> dict[str, tuple[Any, ...]]:
    rows = rows_of(written.state)
    assert len({row["_key"] for row in rows}) == len(rows), "a key stands twice"
    return {row["_key"]: (row["n"], row["t"]) for row in rows}


def hashed(*keys: str) -> set[bytes]:
    return {hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys}


def split(data: bytes) -> set[bytes]:
    return {data[at : at + 16] for at in range(0, len(data), 16)}


def test_no_rows_no_descriptions() -> None:
    assert list(run_task(PassPlan({}, {}, 0), iter([]))) == []


def test_files_last_before_the_driver_hears_of_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    sync = durable.sync

    def noted(path: Any) -> None:
        sync(path)
        synced.add(str(path))

    monkeypatch.setattr(durable, "sync", noted)
    rig.change("a", {"n": 1})
    rig.change("b", {"n": "x"}, error="no")
    plan = PassPlan({ORDERS: rig.task(dead_letters=rig.part("dead_letters"))}, {}, 0)
    rows = pa.Table.from_pylist(rig.rows, schema=SCHEMA)
    described = next(run_task(plan, iter(rows.to_batches())))
    written = [Path(json.loads(text)["file-path"]) for text in described["file"].to_pylist() if text is not None]
    assert len(written) == 3
    assert {str(path) for path in written} | {str(path.parent) for path in written} <= synced


def test_a_table_that_is_not_ours_takes_nothing_and_every_change_is_a_dead_letter(rig: Rig) -> None:
    rig.change("a", {"n": 1})
    rig.change("b", {"n": 2}, error="its own reason")
    task = rig.task(state=None, history=None, refusal="not ours", dead_letters=rig.part("dead_letters", 0))
    written = rig.run(task)[ORDERS]
    assert not written.state and not written.history
    found = rows_of(written.dead_letters)
    assert [(row["_key"], row["_reason"]) for row in found] == [("a", "not ours"), ("b", "its own reason")]


def test_the_last_row_of_each_key_and_all_of_the_history(rig: Rig) -> None:
    rig.change("a", {"n": 1, "t": "x"})
    rig.change("b", {"n": 2, "t": None})
    rig.change("a", {"n": 3, "t": "y"})
    rig.change("c", {"n": 4, "t": "z"})
    rig.change("c", None)
    rig.change("d", None)
    written = rig.run(rig.task())[ORDERS]
    assert values(written) == {"a": (3, "y"), "b": (2, None)}
    assert [row["_position"] for row in rows_of(written.history)] == [1, 2, 3, 4, 5, 6]
    assert [row["_op"] for row in rows_of(written.history)] == ["update"] * 4 + ["delete"] * 2
    assert written.read == 6 and not written.homeless
    # What an index needs: every key that is in the file, in its order, and every key that is not any more.
    (file,) = written.state
    stored = pq.ParquetFile(json.loads(file.description)["file-path"]).read()["_key"].to_pylist()
    assert file.hashes == hash_keys([key.encode() for key in stored])
    assert split(written.gone) == hashed("c", "d")


def test_rows_of_several_tables_and_of_tables_that_are_not_planned(rig: Rig) -> None:
    other, strange = TableName("shop", "other"), TableName("sho", "porders")
    for number in range(10):
        rig.change(str(number), {"n": number, "t": "x"}, [ORDERS, other, strange][number % 3])
    whole = rig.task()
    elsewhere = TableTask(other, LogPosition(rig.position), history=rig.part("history"))
    found = rig.run(whole, elsewhere)
    assert found.keys() == {ORDERS, other}
    assert sorted(values(found[ORDERS])) == ["0", "3", "6", "9"]
    assert [row["_key"] for row in rows_of(found[other].history)] == ["1", "4", "7"]
    assert not found[other].state and (found[ORDERS].read, found[other].read) == (4, 3)


def test_what_a_part_has_already_and_what_is_the_next_pass_s_is_passed_over(rig: Rig) -> None:
    for number in range(1, 7):
        rig.change(f"k{number}", {"n": number, "t": "x"})
    task = rig.task(last=LogPosition(5), state=rig.part("state", 1), history=rig.part("history", 3))
    written = rig.run(task)[ORDERS]
    assert sorted(values(written)) == ["k2", "k3", "k4", "k5"]
    assert [row["_position"] for row in rows_of(written.history)] == [4, 5]
    assert written.read == 4


def test_rows_of_linked_segments_are_not_written_again(rig: Rig) -> None:
    for number in range(1, 7):
        rig.change(f"k{number}", {"n": number, "t": "x"})
    linked = ((LogPosition(2), LogPosition(3)), (LogPosition(5), LogPosition(6)))
    written = rig.run(rig.task(history=rig.part("history", linked=linked)))[ORDERS]
    assert [row["_position"] for row in rows_of(written.history)] == [1, 4]
    assert len(values(written)) == 6


def test_refused_rows_are_dead_letters_and_nothing_else(rig: Rig) -> None:
    columns = (Column("n", ColumnType("int")), Column("t", STRING, Kind.STRING))
    rig.change("a", {"n": 1, "t": "x"})
    rig.change("b", {"n": "no", "t": "x"})
    rig.change("c", {"n": 3, "t": "x"}, error="the sealer's reason")
    rig.change("d", {"n": 4, "t": "x", "late": 1})
    rig.change("b", None)
    task = rig.task(columns=columns, refused={"late": "no room"}, state=rig.part("state", columns=columns))
    # There is no table for them yet: it is counted how many there are.
    assert rig.run(task)[ORDERS].homeless == 3
    again = rig.task(
        columns=columns, refused={"late": "no room"}, state=rig.part("state", columns=columns),
        dead_letters=rig.part("dead_letters"),
    )  # fmt: skip
    written = rig.run(again)[ORDERS]
    assert values(written) == {"a": (1, "x")}
    assert [row["_key"] for row in rows_of(written.history)] == ["a", "b"]
    assert [(row["_key"], row["_reason"].partition(":")[0]) for row in rows_of(written.dead_letters)] == [
        ("b", "n"), ("c", "the sealer's reason"), ("d", "no room"),
    ]  # fmt: skip
    # Dead letters that the table has are not written again.
    once_more = rig.task(
        columns=columns, refused={"late": "no room"}, state=rig.part("state", columns=columns),
        dead_letters=rig.part("dead_letters", 3),
    )  # fmt: skip
    assert [row["_key"] for row in rows_of(rig.run(once_more)[ORDERS].dead_letters)] == ["d"]


def test_partial_and_late_rows_are_merged_with_what_the_table_has(rig: Rig) -> None:
    old: dict[str, Any] = {"evidence": OLD_ROW, "op": "read", "position": 0}
    rig.change("a", {"n": 1, "t": "old"}, **old, hlc=5)
    rig.change("b", {"n": 2, "t": "old"}, **old, hlc=5, clocks='{"n":[9,"s"],"t":[5,"s"]}')
    rig.change("c", None, evidence=TOMBSTONE, position=0, hlc=50)
    rig.position = 0
    rig.change("a", {"n": 10}, hlc=20)
    rig.change("b", {"n": 20, "t": "new"}, hlc=7)
    rig.change("c", {"n": 30}, hlc=40)
    rig.change("d", {"t": "alone"}, hlc=3)
    written = rig.run(rig.task(merges=True))[ORDERS]
    assert values(written) == {"a": (10, "old"), "b": (2, "new"), "d": (None, "alone")}
    clocks = {row["_key"]: json.loads(row["_clocks"] or "null") for row in rows_of(written.state)}
    assert clocks == {
        "a": {"n": [20, "s"], "t": [5, "s"]},
        "b": {"n": [9, "s"], "t": [7, "s"]},
        "d": {"t": [3, "s"]},
    }
    # Evidence is no change: it is not counted, and no row of the history.
    assert written.read == 4 and len(rows_of(written.history)) == 4
    assert split(written.gone) == hashed("c")


def test_an_old_row_lacks_a_column_that_came_after_it(rig: Rig) -> None:
    rig.change("a", {"n": 1, "t": None}, evidence=OLD_ROW, op="read", position=4, hlc=5)
    rig.change("b", {"n": 1, "t": None}, evidence=OLD_ROW, op="read", position=9, hlc=5)
    rig.position = 10
    for key in ("a", "b"):
        rig.change(key, {"t": "earlier"}, hlc=2)
    written = rig.run(rig.task(merges=True, since=Since({"t": LogPosition(7)}), last=LogPosition(12)))[ORDERS]
    # The one had a null in it, written at 5; the other had no such column.
    assert values(written) == {"a": (1, "earlier"), "b": (1, None)}


def test_positions_of_another_log_do_not_say_which_columns_a_row_lacks(rig: Rig) -> None:
    """The log was lost, and the new one began at 1 again: positions 4 and 900 are of the one before."""
    for key, hlc in (("old", 5), ("newer", 25)):
        rig.change(key, {"n": 1, "t": None}, evidence=OLD_ROW, op="read", position=900, hlc=hlc)
    rig.position = 10
    for key in ("old", "newer"):
        rig.change(key, {"t": "earlier"}, hlc=2)
    # Written late, with a clock from before the column came: it says itself that it has the column.
    rig.change("late", {"n": 5, "t": None}, hlc=15)
    rig.change("new", {"n": 5, "t": None}, hlc=30)
    since = Since(clocks={"t": 20})
    written = rig.run(rig.task(merges=True, since=since, last=LogPosition(14)))[ORDERS]
    assert values(written) == {"old": (1, "earlier"), "newer": (1, None), "late": (5, None), "new": (5, None)}
    clocks = {row["_key"]: row["_clocks"] for row in rows_of(written.state)}
    assert json.loads(clocks["late"]) == {"n": [15, "s"], "t": [15, "s"]}
    assert clocks["new"] is None and clocks["newer"] is None
    rig.rows = []
    rig.change("late", {"n": 5, "t": None}, evidence=OLD_ROW, op="read", position=3, hlc=15, clocks=clocks["late"])
    rig.position = 20
    rig.change("late", {"t": "older"}, hlc=14)
    again = rig.run(rig.task(merges=True, since=since, last=LogPosition(21)))[ORDERS]
    assert values(again) == {"late": (5, None)}


def test_a_history_says_of_which_log_its_positions_are(rig: Rig) -> None:
    for number in range(6):
        rig.change(f"k{number}", {"n": number, "t": "x"} if number else {"n": "no"})
    spans = (Span(UNNAMED, LogPosition(1)), Span(LogId("a"), LogPosition(2)), Span(LogId("b"), LogPosition(5)))
    task = rig.task(lineage=Lineage(spans), dead_letters=rig.part("dead_letters"), columns=(Column("n", LONG, None),))
    written = rig.run(replace(task, state=None))[ORDERS]
    assert [row["_log"] for row in rows_of(written.history)] == ["a", "a", "a", "b", "b"]
    assert [row["_log"] for row in rows_of(written.dead_letters)] == [""]


def test_each_partition_has_its_file_and_its_hashes(rig: Rig) -> None:
    for number in range(12):
        rig.change(f"k{number}", {"n": number % 3, "t": "x"})
    part = rig.part("state", 0, PartitionField("n", "n", "identity"))
    written = rig.run(rig.task(state=part))[ORDERS]
    assert len(written.state) == 3
    for file in written.state:
        stored = pq.ParquetFile(json.loads(file.description)["file-path"]).read()
        assert len(set(stored["n"].to_pylist())) == 1
        assert file.hashes == hash_keys([key.encode() for key in stored["_key"].to_pylist()])


def test_a_task_that_runs_twice_writes_other_files_with_the_same_rows(rig: Rig) -> None:
    """Spark may do that: a slow task, or a lost executor. Only one of both is committed."""
    for number in range(5):
        rig.change(f"k{number}", {"n": number, "t": "x"})
    first, second = (rig.run(rig.task())[ORDERS] for _ in range(2))
    assert rows_of(first.state) == rows_of(second.state) and rows_of(first.history) == rows_of(second.history)
    assert not {file.description for file in first.files} & {file.description for file in second.files}


def test_times_that_no_calendar_has_are_nulls_in_the_history(rig: Rig) -> None:
    rig.change("a", {"n": 1, "t": "x"}, source_time_ms=10**18)
    rig.change("b", {"n": 1, "t": "x"}, source_time_ms=None)
    first, second = rows_of(rig.run(rig.task())[ORDERS].history)
    assert (first["_source_time"], second["_source_time"]) == (None, None)
    assert first["_time"].isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_table_that_has_seen_nothing_but_deletes(rig: Rig) -> None:
    rig.change("a", None)
    written = rig.run(rig.task(columns=(), state=rig.part("state", columns=())))[ORDERS]
    assert not written.state and len(rows_of(written.history)) == 1
