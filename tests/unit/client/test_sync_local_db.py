"""The local database: typed tables, migrations, reads by SQL, live queries, and what a crash leaves."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mainstem.client.sync import AsyncLocalDB, LocalDB, LocalWrite, Op, SyncTracker, Table
from mainstem.model import Corrupt, Invalid, Overloaded
from mainstem.runtime.clock import ManualClock
from mainstem.wire.sync import ColumnDelta, RowDelta, SyncResponse

TODOS = Table("todos", {"title": "text", "done": "boolean", "rank": "real", "tags": "json"}, indexes=["rank"])


def opened(path: Any = ":memory:", *tables: Table, **options: Any) -> tuple[LocalDB, SyncTracker]:
    db = LocalDB.open(path, tables=tables or [TODOS], client_id="ada", clock=ManualClock(), **options)
    return db, SyncTracker(db)


def remote(op: Op, row_id: str, columns: dict[str, bytes], hlc: int, table: str = "todos") -> RowDelta:
    listed = tuple(ColumnDelta(name, value) for name, value in columns.items())
    return RowDelta(op=op, table=table, row_id=row_id, columns=listed, hlc=hlc, client_id="bob", delta_id=f"d{hlc}")


def test_rows_are_read_by_sql_and_as_they_were_written() -> None:
    db, tracker = opened()
    tracker.insert("todos", "r1", {"title": "Buy milk", "done": False, "rank": 2, "tags": ["shop", {"n": 1}]})
    tracker.insert("todos", "r2", {"title": 'Say "hi"', "done": True, "rank": 1.5})
    rows = db.query("SELECT _key, title, done, tags ->> '$[0]' AS tag FROM todos ORDER BY rank")
    assert rows == [
        {"_key": "r2", "title": 'Say "hi"', "done": 1, "tag": None},
        {"_key": "r1", "title": "Buy milk", "done": 0, "tag": "shop"},
    ]
    assert db.query("SELECT title FROM todos WHERE _key = :key", {"key": "r1"}) == [{"title": "Buy milk"}]
    row = db.get("todos", "r1")
    assert row is not None
    assert row.values == {"title": "Buy milk", "done": False, "rank": 2, "tags": ["shop", {"n": 1}]}
    assert row.pending
    plan = db.query("EXPLAIN QUERY PLAN SELECT * FROM todos WHERE rank > 1")
    assert "todos.rank" in plan[0]["detail"]


def test_an_update_sends_only_what_differs_and_a_delete_hides_the_row() -> None:
    db, tracker = opened()
    tracker.insert("todos", "r1", {"title": "Buy milk", "done": False})
    assert tracker.update("todos", "r1", {"title": "Buy milk", "done": True})
    assert not tracker.update("todos", "r1", {"title": "Buy milk", "done": True})
    assert not tracker.update("todos", "nowhere", {"title": "x"})
    assert tracker.delete("todos", "r1")
    assert not tracker.delete("todos", "r1")
    insert, update, delete = db.queued(10)
    assert [(each.column, each.value) for each in update.columns] == [("done", b"true")]
    assert (insert.op, update.op, delete.op) == (Op.INSERT, Op.UPDATE, Op.DELETE)
    assert insert.hlc < update.hlc < delete.hlc
    assert db.query("SELECT * FROM todos") == []
    assert db.get("todos", "r1") is None


def test_null_is_a_value_and_large_integers_keep_their_digits() -> None:
    db, tracker = opened(":memory:", Table("t", {"n": "integer", "x": "text"}))
    tracker.insert("t", "r", {"n": 2**60 + 1, "x": "set"})
    tracker.update("t", "r", {"x": None})
    assert db.query("SELECT n, x FROM t") == [{"n": 2**60 + 1, "x": None}]
    assert db.queued(1)[0].columns[0].value == b"1152921504606846977"
    assert db.queued(2)[1].columns == (ColumnDelta("x", b"null"),)


@pytest.mark.parametrize(
    "columns",
    [
        {"title": 5},
        {"done": 1},
        {"rank": True},
        {"rank": float("nan")},
        {"rank": 10**400},
        {"unknown": 1},
        {"tags": {1: 2}},
        {"tags": {"when": sqlite3}},
        {"tags": "\ud800"},
        {},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_and_moves_nothing(columns: Any) -> None:
    db, tracker = opened()
    with pytest.raises(Invalid):
        tracker.batch(
            [LocalWrite(Op.INSERT, "todos", "fine", {"title": "x"}), LocalWrite(Op.INSERT, "todos", "bad", columns)]
        )
    assert db.query("SELECT * FROM todos") == []
    assert db.queued(10) == []


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    _, tracker = opened()
    value: Any = 1
    for _ in range(65):
        value = [value]
    with pytest.raises(Invalid, match="nested too deep"):
        tracker.insert("todos", "r", {"tags": value})


def test_names_that_cannot_be_are_refused() -> None:
    for name, columns, indexes in (
        ("_mainstem_rows", {"a": "text"}, []),
        ("sqlite_x", {"a": "text"}, []),
        ("t", {"_key": "text"}, []),
        ("t", {"a": "text", "A": "text"}, []),
        ("t", {"a": "varchar"}, []),
        ("t", {"a": "text"}, ["b"]),
        ("", {"a": "text"}, []),
    ):
        with pytest.raises(Invalid):
            Table(name, columns, indexes)
    with pytest.raises(Invalid, match="case"):
        LocalDB.open(":memory:", tables=[Table("t", {}), Table("T", {})])
    strange = Table('ta"ble; DROP', {'co"l': "text", "select": "integer"})
    db, tracker = opened(":memory:", strange)
    tracker.insert('ta"ble; DROP', "r", {'co"l': "x", "select": 1})
    assert db.query('SELECT * FROM "ta""ble; DROP"') == [{"_key": "r", 'co"l': "x", "select": 1}]


def test_migrations_only_add_and_find_what_was_synced_before(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    db, tracker = opened(path, Table("todos", {"title": "text"}))
    tracker.insert("todos", "r1", {"title": "first"})
    page = [
        remote(Op.UPDATE, "r1", {"rank": b"7"}, 1 << 60),
        remote(Op.INSERT, "n1", {"text": b'"note"'}, 1 << 60, "notes"),
    ]
    assert db.apply_page(SyncResponse(deltas=page, server_hlc=9), settles=False)
    db.close()

    db, _ = opened(path, Table("todos", {"title": "text", "rank": "integer"}), Table("notes", {"text": "text"}))
    assert db.query("SELECT * FROM todos") == [{"_key": "r1", "title": "first", "rank": 7}]
    assert db.query("SELECT text FROM notes") == [{"text": "note"}]
    db.close()

    # An older version of the app leaves the newer columns alone, and keeps them current.
    db, tracker = opened(path, Table("todos", {"title": "text"}))
    tracker.update("todos", "r1", {"title": "second", "rank": 8})
    assert db.query("SELECT title, rank FROM todos") == [{"title": "second", "rank": 8}]
    db.close()

    with pytest.raises(Invalid, match="type cannot change"):
        opened(path, Table("todos", {"rank": "text"}))
    db, _ = opened(path, Table("todos", {}))
    assert db.query("SELECT title FROM todos") == [{"title": "second"}]
    db.close()


def test_queries_cannot_write(tmp_path: Path) -> None:
    db, tracker = opened(tmp_path / "app.db")
    tracker.insert("todos", "r1", {"title": "stays"})
    for sql in (
        "DELETE FROM todos",
        "UPDATE todos SET title = 'x'",
        "DROP TABLE todos",
        "SELECT * FROM nothing",
        "BEGIN",
    ):
        try:
            db.query(sql)
        except Invalid as error:
            assert error.reason == "invalid_query"
    assert db.query("SELECT title FROM todos") == [{"title": "stays"}]
    tracker.update("todos", "r1", {"title": "still writable"})


def test_a_full_queue_refuses_writes() -> None:
    db, tracker = opened(queue_max=2)
    tracker.insert("todos", "r1", {"title": "1"})
    tracker.insert("todos", "r2", {"title": "2"})
    with pytest.raises(Overloaded):
        tracker.insert("todos", "r3", {"title": "3"})
    assert db.get("todos", "r3") is None
    db.acknowledge(db.queued(1))
    tracker.insert("todos", "r3", {"title": "3"})


def test_the_client_id_stays_and_changes_only_when_nothing_waits(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    db = LocalDB.open(path)
    name = db.client_id
    db.close()
    db = LocalDB.open(path)
    assert db.client_id == name
    SyncTracker(db).insert("t", "r", {"a": 1})
    db.close()
    with pytest.raises(Invalid, match="edits of another client"):
        LocalDB.open(path, client_id="someone")
    db = LocalDB.open(path)
    db.acknowledge(db.queued(1))
    db.close()
    db = LocalDB.open(path, client_id="someone")
    assert db.client_id == "someone"
    db.close()


def test_clocks_only_grow_even_if_the_wall_clock_goes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    db = LocalDB.open(tmp_path / "app.db", clock=clock)
    SyncTracker(db).insert("t", "r", {"a": 1})
    db.close()
    clock.set_wall(1_000)
    db = LocalDB.open(tmp_path / "app.db", clock=clock)
    SyncTracker(db).insert("t", "r", {"a": 2})
    first, second = db.queued(2)
    assert first.hlc < second.hlc
    assert db.get("t", "r").values == {"a": 2}  # type: ignore[union-attr]
    db.close()


def test_a_file_that_is_no_database_of_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database at all" * 100)
    with pytest.raises(Corrupt, match=r"text\.db"):
        LocalDB.open(tmp_path / "text.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(Corrupt, match="expected=1 got=99"):
        LocalDB.open(tmp_path / "newer.db")


def test_the_golden_database_of_format_1_is_read(tmp_path: Path) -> None:
    """Written by the first version: rows, a tombstone, a waiting delta and a dead letter."""
    path = tmp_path / "golden.db"
    path.write_bytes((Path(__file__).parent / "sync-db-v1.sqlite").read_bytes())
    db, tracker = opened(path)
    assert db.query("SELECT _key, title, done, rank, tags FROM todos ORDER BY _key") == [
        {"_key": "r1", "title": "Buy bread", "done": 1, "rank": 1.5, "tags": '["shop"]'},
        {"_key": "r3", "title": "refused", "done": None, "rank": None, "tags": None},
    ]
    state = db.state()
    assert (state.client_id, state.cursor, state.pending, state.dead) == ("ada", 77, 1, 1)
    assert [letter.reason for letter in db.dead_letters()] == ["schema_mismatch"]
    assert db.get("todos", "r1").merged.by == "bob"  # type: ignore[union-attr]
    assert db.get("todos", "r2") is None
    tracker.insert("todos", "r2", {"title": "back"})
    assert db.query("SELECT count(*) AS n FROM todos") == [{"n": 3}]
    db.close()


# Live queries.


def test_a_live_query_tells_when_its_own_tables_change() -> None:
    db, tracker = opened(":memory:", TODOS, Table("notes", {"text": "text"}))
    with db.live("WITH open AS (SELECT * FROM todos WHERE NOT done) SELECT count(*) AS n FROM open") as query:
        assert query.poll() == [{"n": 0}]
        assert query.poll() is None
        tracker.insert("notes", "n1", {"text": "elsewhere"})
        assert not query.wait(0)
        tracker.insert("todos", "r1", {"title": "x", "done": False})
        assert query.wait(0)
        assert query.poll() == [{"n": 1}]
        # Touched, but with the same answer.
        tracker.update("todos", "r1", {"title": "y"})
        assert query.poll() is None
        db.apply_page(SyncResponse(deltas=[remote(Op.DELETE, "r1", {}, 1 << 61)], server_hlc=5), settles=True)
        assert query.poll() == [{"n": 0}]
    assert list(query) == []


def test_a_watch_hears_of_changes_from_other_threads() -> None:
    db, tracker = opened()
    heard: list[Any] = []
    enough = threading.Event()

    def listen(rows: list[dict[str, Any]]) -> None:
        heard.append([row["title"] for row in rows])
        if len(rows) == 20:
            enough.set()

    watch = db.watch("SELECT title FROM todos ORDER BY _key", listen)

    def write(number: int) -> None:
        for index in range(5):
            tracker.insert("todos", f"{number}-{index}", {"title": "x"})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert enough.wait(60)
    watch.stop()
    tracker.insert("todos", "late", {"title": "x"})
    assert len(heard[-1]) == 20


async def test_the_async_database_follows_and_does_the_same(tmp_path: Path) -> None:
    async with await AsyncLocalDB.open(tmp_path / "app.db", tables=[TODOS], client_id="ada") as db:
        await db.insert("todos", "r1", {"title": "first"})
        async with db.live("SELECT title FROM todos") as changes:
            follow = aiter(changes)
            assert await anext(follow) == [{"title": "first"}]
            writing = asyncio.create_task(db.update("todos", "r1", {"title": "second"}))
            assert await asyncio.wait_for(anext(follow), 60) == [{"title": "second"}]
            assert await writing
        assert (await db.get("todos", "r1")).values == {"title": "second"}  # type: ignore[union-attr]
        assert [row.row_id for row in await db.all("todos")] == ["r1"]
        assert await db.delete("todos", "r1")
        assert await db.query("SELECT * FROM todos") == []
        assert (await db.state()).pending == 3


# Crashes.


_WRITER = """
import sys
from mainstem.client.sync import LocalDB, SyncTracker, Table
db = LocalDB.open(sys.argv[1], tables=[Table("t", {"n": "integer"})])
tracker = SyncTracker(db)
for n in range(1_000_000):
    tracker.insert("t", f"r{n}", {"n": n})
    print(n, flush=True)
"""


def test_a_kill_loses_nothing_that_returned(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = -1
        while last < 50:
            last = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        last = max([last, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    db = LocalDB.open(path, tables=[Table("t", {"n": "integer"})])
    rows = [row["n"] for row in db.query("SELECT n FROM t ORDER BY n")]
    assert rows == list(range(len(rows)))
    assert len(rows) > last
    assert [int(delta.columns[0].value) for delta in db.queued(-1)] == rows
    assert db.state().pending == len(rows)
    db.close()


# The quick way of a first sync.


@pytest.mark.parametrize("value", [b"1", b"18446744073709551616", b'{"a": [1, 2]}', b"null"])
def test_a_first_sync_stores_what_a_merge_would(value: bytes) -> None:
    table = Table("t", {"n": "integer", "x": "text"})
    delta = remote(Op.INSERT, "r1", {"n": value, "undeclared": b' "kept" '}, 1 << 50, "t")
    quick, slow = opened(":memory:", table)[0], opened(":memory:", table)[0]
    quick.apply_checkpoint_piece(SyncResponse(deltas=[delta], server_hlc=3), {("t", "r1")})
    slow.apply_page(SyncResponse(deltas=[delta], server_hlc=3), settles=True)
    assert quick.get("t", "r1") == slow.get("t", "r1")
    assert quick.query("SELECT * FROM t") == slow.query("SELECT * FROM t")


def test_a_piece_with_a_value_that_is_no_json_moves_nothing() -> None:
    db, _ = opened()
    for value in (b"", b"{", b"\xff", b'1,"done":2', b'"\xc3"'):
        good, bad = remote(Op.INSERT, "r1", {"title": b'"x"'}, 1), remote(Op.INSERT, "r2", {"title": value}, 2)
        with pytest.raises(Invalid):
            db.apply_checkpoint_piece(
                SyncResponse(deltas=[good, bad], server_hlc=3), {("todos", "r1"), ("todos", "r2")}
            )
        assert db.all("todos") == []
