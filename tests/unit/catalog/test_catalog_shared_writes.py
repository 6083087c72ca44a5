"""Writers that share a transaction of SQLite: each is told what became of its own part, and only what is durable."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from mainstem.catalog import NoSuchNamespace, SqliteStore, TableIdent
from mainstem.catalog.stores.shared_writes import TURNS_MAX, Turn
from mainstem.catalog.stores.sql import Connection, Violated
from mainstem.catalog.stores.store import CURRENT_MARK, Mark, Pointer, Swap
from mainstem.model import OutcomeUnknown, Overloaded

WAIT_S_MAX = 200.0
Call = Callable[[], Any]


class Watched(SqliteStore):
    """A store that tells how many shared each of its transactions."""

    def __init__(self, path: Path) -> None:
        self.shared: list[int] = []
        super().__init__(path)

    def _carry_out(self, turns: list[Turn]) -> None:
        self.shared.append(len(turns))
        super()._carry_out(turns)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "catalog.db")
    made.create_namespace(("ns",), {})
    made.shared.clear()
    yield made
    made.close()


def together(store: SqliteStore, calls: list[Call]) -> list[Future[Any]]:
    """Make calls that come, in this order, while another writer has the store: so they share the next transaction."""
    is_free = threading.Event()
    has_begun = threading.Event()

    def hold(_: Connection) -> None:
        has_begun.set()
        is_free.wait(WAIT_S_MAX)

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        threads.submit(store._transact, hold)
        assert has_begun.wait(WAIT_S_MAX)
        futures = []
        for count, call in enumerate(calls, start=1):
            futures.append(threads.submit(copy_context().run, call))
            until_s = time.monotonic() + WAIT_S_MAX
            while len(store._writes._waiting) < count:
                assert time.monotonic() < until_s
                threading.Event().wait(0.001)
        is_free.set()
    return futures


def ident(name: str) -> TableIdent:
    return TableIdent(("ns",), name)


def pointer(version: str) -> Pointer:
    return Pointer(version, "/w", None, {})


def create(store: SqliteStore, name: str) -> Call:
    return lambda: store.swap([Swap(ident(name), None, pointer("/1"))])


def marked(call: Call, key: str) -> Call:
    def run() -> Any:
        CURRENT_MARK.set(Mark(key, "request", 200, b"", 1000))
        return call()

    return run


def test_who_waited_shares_the_next_transaction(store: Watched) -> None:
    done = together(store, [create(store, f"t{number}") for number in range(5)])
    assert [future.result() for future in done] == [True] * 5
    # Whoever held the store, then all that came meanwhile.
    assert store.shared == [1, 5]
    assert create(store, "alone")()
    assert store.shared == [1, 5, 1]


def test_there_is_a_bound(store: Watched) -> None:
    done = together(store, [create(store, f"t{number}") for number in range(TURNS_MAX + 1)])
    assert all(future.result() for future in done)
    assert store.shared == [1, TURNS_MAX, 1]


def test_what_is_refused_undoes_nothing_of_the_others(store: Watched) -> None:
    assert create(store, "old")()
    store.remember(Mark("used", "request", 200, b"", 1000))
    stale = Swap(ident("old"), "/other", pointer("/2"))
    nowhere = Swap(TableIdent(("missing",), "t"), None, pointer("/1"))
    store.shared.clear()
    done = together(
        store,
        [
            create(store, "first"),
            # The first half of it would succeed.
            lambda: store.swap([Swap(ident("half"), None, pointer("/1")), stale]),
            lambda: store.swap([nowhere]),
            # The key was used meanwhile: neither the table nor the mark of this one may stay.
            marked(create(store, "marked"), "used"),
            # Refused for what another one of them has just done.
            create(store, "first"),
            marked(create(store, "last"), "new"),
        ],
    )
    assert store.shared == [1, 6]
    assert done[0].result() is True
    assert done[1].result() is False
    with pytest.raises(NoSuchNamespace):
        done[2].result()
    assert done[3].result() is False
    assert done[4].result() is False
    assert done[5].result() is True
    found = {name.name: at.metadata_location for name, at in store.entries(("ns",), pointer("/1").kind)}
    assert found == {"old": "/1", "first": "/1", "last": "/1"}
    assert store.mark("new") is not None


def test_nothing_is_written_where_all_are_refused(store: Watched) -> None:
    done = together(store, [lambda: store.drop(ident("none"), pointer("/1").kind)] * 2)
    assert [type(future.exception()).__name__ for future in done] == ["NoSuchTable"] * 2
    assert create(store, "after")()


def fail_at_the_end(connection: Connection) -> None:
    """Statements that succeed, and a transaction that cannot be committed."""
    connection.execute("PRAGMA defer_foreign_keys=ON")
    connection.execute(
        "INSERT INTO tables (namespace, name, metadata_location, location) VALUES ('missing', 't', '', '')"
    )


def test_an_unknown_outcome_is_told_to_all(store: Watched) -> None:
    done = together(
        store,
        [create(store, "one"), lambda: store._transact(fail_at_the_end), create(store, "two"), create(store, "one")],
    )
    for future in done:
        with pytest.raises(OutcomeUnknown, match="could not confirm"):
            future.result()
    # The store goes on, and shows what is so.
    assert store.entries(("ns",), pointer("/1").kind) == []
    assert create(store, "one")()


def fill(connection: Connection) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    connection.execute("INSERT INTO namespaces VALUES ('large', ?)", ("x" * 1_000_000,))


def test_a_full_disk_is_told_as_such(store: Watched) -> None:
    done = together(store, [create(store, "one"), lambda: store._transact(fill), create(store, "two")])
    assert isinstance(done[1].exception(), Overloaded)
    found = {name.name for name, _ in store.entries(("ns",), pointer("/1").kind)}
    assert found == {name for name, future in zip(("one", "full", "two"), done, strict=True) if not future.exception()}


def test_a_constraint_is_told_to_whoever_broke_it(store: Watched) -> None:
    def twice(connection: Connection) -> None:
        connection.execute("INSERT INTO namespaces VALUES ('ns', '{}')")

    done = together(store, [lambda: store._transact(twice), create(store, "one")])
    assert isinstance(done[0].exception(), Violated)
    assert done[1].result() is True


class Failing(SqliteStore):
    """A store in which something unheard-of happens to writers that share a transaction."""

    def _carry_out(self, turns: list[Turn]) -> None:
        if len(turns) > 1:
            raise MemoryError
        super()._carry_out(turns)


def test_nobody_waits_forever_for_a_leader_that_failed(tmp_path: Path) -> None:
    store = Failing(tmp_path / "catalog.db")
    store.create_namespace(("ns",), {})
    done = together(store, [create(store, f"t{number}") for number in range(3)])
    assert [type(future.exception()) for future in done] == [MemoryError, OutcomeUnknown, OutcomeUnknown]
    assert create(store, "after")()
    store.close()


def _die(path: Path, is_committed: bool) -> None:
    class Dying(SqliteStore):
        def _carry_out(self, turns: list[Turn]) -> None:
            super()._carry_out(turns)
            if len(turns) > 1:
                os._exit(9)

    store = Dying(path)
    calls = [marked(create(store, f"t{number}"), f"key{number}") for number in range(4)]
    if not is_committed:
        calls.append(lambda: store._transact(lambda _: os._exit(9)))
    together(store, calls)


@pytest.mark.parametrize("is_committed", [False, True])
def test_killed_before_or_after_the_commit(store: Watched, tmp_path: Path, is_committed: bool) -> None:
    process = multiprocessing.get_context("forkserver").Process(
        target=_die, args=(tmp_path / "catalog.db", is_committed)
    )
    process.start()
    process.join(WAIT_S_MAX)
    assert process.exitcode == 9
    # All of it or nothing, and each effect with its key.
    expected = {f"t{number}" for number in range(4)} if is_committed else set()
    assert {name.name for name, _ in store.entries(("ns",), pointer("/1").kind)} == expected
    assert [store.mark(f"key{number}") is not None for number in range(4)] == [is_committed] * 4
