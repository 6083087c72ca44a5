"""The coordinator against the gateway in memory: what it does with every kind of answer."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from mainstem.client.sync import (
    ClockDrift,
    CursorExpired,
    LocalDB,
    LocalTransport,
    LocalWrite,
    MemoryGateway,
    Op,
    Phase,
    SyncCoordinator,
    SyncThread,
    Table,
    Unreachable,
)
from mainstem.model import Denied, Invalid, MainstemError, Overloaded
from mainstem.runtime.clock import ManualClock
from mainstem.wire.sync import RowDelta, SyncPull, SyncPush, SyncResponse

TABLES = [Table("todos", {"title": "text", "done": "boolean", "rank": "integer"})]

T = TypeVar("T")


class Timing:
    """Sleeps are noted, and end when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(7)
        self.slept: list[float] = []
        self.asleep = asyncio.Event()
        self._awake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.asleep.set()
        await self._awake.wait()
        self._awake.clear()

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    async def next_round(self) -> None:
        """Let the pause end, and wait for the next one."""
        self.asleep.clear()
        self._awake.set()
        await self.asleep.wait()


class Flaky(LocalTransport):
    """A way to the gateway that fails as it is told: `faults` are raised one by one, None lets a call through."""

    def __init__(self, gateway: MemoryGateway, *faults: MainstemError | None) -> None:
        super().__init__(gateway)
        self.faults: Iterator[MainstemError | None] = iter(faults)
        self.pushes: list[int] = []

    async def push(self, push: SyncPush) -> SyncResponse:
        self.pushes.append(len(push.deltas))
        self._fail()
        return await super().push(push)

    async def pull(self, pull: SyncPull) -> SyncResponse:
        self._fail()
        return await super().pull(pull)

    def _fail(self) -> None:
        fault = next(self.faults, None)
        if fault is not None:
            raise fault


class Replica:
    """A database and its coordinator."""

    def __init__(self, gateway: MemoryGateway, name: str, transport: Any = None, **options: Any) -> None:
        self.timing = Timing()
        self.db = LocalDB.open(":memory:", tables=TABLES, client_id=name, clock=self.timing.clock)
        self.sync = SyncCoordinator(self.db, transport or LocalTransport(gateway), timing=self.timing, **options)
        self.tracker = self.sync.tracker

    def values(self, row_id: str) -> dict[str, Any] | None:
        row = self.db.get("todos", row_id)
        return row.values if row else None

    def pending(self) -> int:
        return self.db.state().pending


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gateway(clock: ManualClock) -> MemoryGateway:
    return MemoryGateway(clock=clock)


async def test_columns_of_two_clients_meet_in_one_row(gateway: MemoryGateway) -> None:
    ada, bob = Replica(gateway, "ada"), Replica(gateway, "bob")
    ada.tracker.insert("todos", "r1", {"title": "Buy milk", "done": False})
    await ada.sync.sync_once()
    await bob.sync.sync_once()
    ada.tracker.update("todos", "r1", {"title": "Buy bread"})
    bob.tracker.update("todos", "r1", {"done": True})
    for replica in (ada, bob, ada):
        await replica.sync.sync_once()
    for replica in (ada, bob):
        assert replica.values("r1") == {"title": "Buy bread", "done": True}
        assert replica.db.query("SELECT title, done FROM todos") == [{"title": "Buy bread", "done": 1}]
        assert replica.pending() == 0
        assert replica.sync.status.phase is Phase.IDLE


async def test_a_merge_is_told_with_what_was_taken_and_what_was_kept(gateway: MemoryGateway) -> None:
    ada, bob = Replica(gateway, "ada"), Replica(gateway, "bob")
    ada.tracker.insert("todos", "r1", {"title": "1", "done": False, "rank": 1})
    await ada.sync.sync_once()
    await bob.sync.sync_once()
    told: list[Any] = []
    ada.sync.merged.connect(told.append)
    bob.tracker.update("todos", "r1", {"title": "bob's", "rank": 2})
    ada.timing.clock.advance(1)
    ada.tracker.update("todos", "r1", {"title": "ada's"})
    await bob.sync.sync_once()
    await ada.sync.sync_once()
    row = ada.db.get("todos", "r1")
    assert row is not None
    assert row.values == {"title": "ada's", "done": False, "rank": 2}
    assert row.merged is not None
    assert (row.merged.by, row.merged.took, row.merged.kept) == ("bob", ("rank",), ("title",))
    assert [(event.table, event.row_id) for event in told] == [("todos", "r1")]
    ada.db.dismiss_merged("todos", "r1")
    assert ada.db.get("todos", "r1").merged is None  # type: ignore[union-attr]


async def test_a_lost_reply_counts_once(gateway: MemoryGateway) -> None:
    class LosesReplies(LocalTransport):
        lost = 0

        async def push(self, push: SyncPush) -> SyncResponse:
            response = await super().push(push)
            if self.lost == 0:
                self.lost += 1
                raise Unreachable("the reply was lost")
            return response

    ada = Replica(gateway, "ada", LosesReplies(gateway))
    ada.tracker.insert("todos", "r1", {"title": "once"})
    with pytest.raises(Unreachable):
        await ada.sync.sync_once()
    assert ada.pending() == 1
    status = ada.sync.status
    assert (str(status.phase), status.online, status.error) == ("stopped", False, "Unreachable: the reply was lost")
    await ada.sync.sync_once()
    assert ada.pending() == 0
    assert ada.sync.status.error is None
    assert len(gateway.deltas) == 1


# Refusals.


@pytest.mark.parametrize("named", [True, False])
async def test_what_is_refused_for_good_is_put_aside_and_the_rest_goes_on(clock: ManualClock, named: bool) -> None:
    mended = False

    def accept(delta: RowDelta) -> None:
        if not mended and any(each.value == b'"bad"' for each in delta.columns):
            raise Invalid("no such title", reason="schema_mismatch")

    class Unnamed(LocalTransport):
        async def push(self, push: SyncPush) -> SyncResponse:
            try:
                return await super().push(push)
            except Invalid as error:
                raise Invalid(str(error), reason=error.reason) from None

    gateway = MemoryGateway(clock=clock, accept=accept)
    ada = Replica(gateway, "ada", LocalTransport(gateway) if named else Unnamed(gateway), push_max=8)
    told: list[Any] = []
    ada.sync.dead_letter.connect(told.append)
    for number in range(11):
        ada.tracker.insert("todos", f"r{number}", {"title": "bad" if number == 6 else "good"})
    await ada.sync.sync_once()
    assert {delta.row_id for delta in gateway.deltas} == {f"r{number}" for number in range(11)} - {"r6"}
    (letter,) = ada.db.dead_letters()
    assert (letter.delta.row_id, letter.reason) == ("r6", "schema_mismatch")
    assert [event.delta.row_id for event in told] == ["r6"]
    status = ada.sync.status
    assert (status.pending, status.dead_letters) == (0, 1)
    # The row keeps the edit here, and the app may try again.
    assert ada.values("r6") == {"title": "bad"}
    mended = True
    assert ada.db.retry_dead_letter(letter.id)
    await ada.sync.sync_once()
    assert ada.db.dead_letters() == []
    assert ("todos", "r6") in gateway.rows


async def test_a_discarded_dead_letter_gives_the_servers_row_back(clock: ManualClock) -> None:
    gateway = MemoryGateway(clock=clock)
    ada = Replica(gateway, "ada")
    ada.tracker.insert("todos", "r1", {"title": "the server's", "rank": 1})
    await ada.sync.sync_once()
    gateway._accept = lambda delta: (_ for _ in ()).throw(Invalid("no", reason="schema_mismatch"))
    ada.tracker.update("todos", "r1", {"title": "mine"})
    await ada.sync.sync_once()
    (letter,) = ada.db.dead_letters()
    assert ada.values("r1") == {"title": "mine", "rank": 1}
    assert ada.db.discard_dead_letter(letter.id)
    assert not ada.db.discard_dead_letter(letter.id)
    await ada.sync.sync_once()
    assert ada.values("r1") == {"title": "the server's", "rank": 1}
    assert ada.db.query("SELECT title FROM todos") == [{"title": "the server's"}]


async def test_a_clock_that_runs_ahead_is_stamped_again(gateway: MemoryGateway, clock: ManualClock) -> None:
    ada, bob = Replica(gateway, "ada"), Replica(gateway, "bob")
    ada.timing.clock.advance(3_600)
    ada.tracker.insert("todos", "r1", {"title": "from the future"})
    ada.tracker.update("todos", "r1", {"title": "and after it"})
    ahead = [delta.hlc for delta in ada.db.queued(5)]
    await ada.sync.sync_once()
    assert ada.pending() == 0
    assert [delta.hlc < ahead[0] for delta in gateway.deltas] == [True, True]
    # What is written next is on the server's time at once, and a write of another client comes after it.
    ada.tracker.update("todos", "r1", {"rank": 1})
    await ada.sync.sync_once()
    clock.advance(1)
    bob.timing.clock.advance(1)
    await bob.sync.sync_once()
    bob.tracker.update("todos", "r1", {"title": "bob's, later"})
    await bob.sync.sync_once()
    await ada.sync.sync_once()
    assert ada.values("r1") == bob.values("r1") == {"title": "bob's, later", "rank": 1}


async def test_a_clock_drift_that_names_no_clock_is_retried(gateway: MemoryGateway) -> None:
    ada = Replica(gateway, "ada", Flaky(gateway, ClockDrift("ahead")))
    ada.tracker.insert("todos", "r1", {"title": "x"})
    with pytest.raises(ClockDrift):
        await ada.sync.sync_once()
    assert ada.pending() == 1


# Trying again.


async def test_tries_double_from_one_second_to_thirty(gateway: MemoryGateway) -> None:
    down = [Unreachable("down")] * 8
    ada = Replica(gateway, "ada", Flaky(gateway, *down, Overloaded("busy", retry_after_s=77.0), Denied("token")))
    ada.tracker.insert("todos", "r1", {"title": "x"})
    ada.sync.start_auto_sync()
    await ada.timing.asleep.wait()
    for _ in range(9):
        await ada.timing.next_round()
    slept = ada.timing.slept
    assert all(1.0 <= delay_s <= 30.0 for delay_s in slept[:8])
    assert slept[0] == 1.0
    assert max(slept[4:8]) > 8.0
    assert slept[8] == 77.0
    assert ada.sync.status.phase is Phase.RETRYING
    assert ada.sync.status.error == "Denied: token"
    assert ada.sync.status.online
    assert ada.pending() == 1
    await ada.timing.next_round()
    status = ada.sync.status
    assert status.phase is Phase.IDLE
    assert ada.timing.slept[-1] == 60.0
    assert len(gateway.deltas) == 1
    await ada.sync.stop()
    assert str(ada.sync.status.phase) == "stopped"


async def test_a_write_ends_the_pause_but_not_while_the_server_is_down(gateway: MemoryGateway) -> None:
    flaky = Flaky(gateway)
    ada = Replica(gateway, "ada", flaky)
    ada.sync.start_auto_sync()
    await ada.timing.asleep.wait()
    ada.timing.asleep.clear()
    ada.tracker.insert("todos", "r1", {"title": "x"})
    await ada.timing.asleep.wait()
    assert flaky.pushes == [1]
    flaky.faults = iter([Unreachable("down")])
    ada.timing.asleep.clear()
    ada.tracker.insert("todos", "r2", {"title": "x"})
    await ada.timing.asleep.wait()
    assert ada.sync.status.phase is Phase.RETRYING
    ada.tracker.insert("todos", "r3", {"title": "x"})
    for _ in range(20):
        await asyncio.sleep(0)
    assert flaky.pushes == [1, 1]
    ada.timing.asleep.clear()
    ada.sync.hurry()
    await ada.timing.asleep.wait()
    assert flaky.pushes == [1, 1, 2]
    await ada.sync.close()


async def test_broadcasts_arrive_without_a_pull(gateway: MemoryGateway) -> None:
    ada, bob = Replica(gateway, "ada"), Replica(gateway, "bob")
    bob.sync.start_auto_sync()
    await bob.timing.asleep.wait()
    ada.tracker.insert("todos", "r1", {"title": "news"})
    heard = asyncio.Event()
    bob.db.changed.connect(lambda _: heard.set())
    await ada.sync.push()
    await asyncio.wait_for(heard.wait(), 60)
    assert bob.values("r1") == {"title": "news"}
    assert bob.db.state().cursor == gateway.newest
    await bob.sync.stop()


# Checkpoints and cursors.


async def test_a_checkpoint_that_breaks_off_is_begun_again_and_moves_no_cursor(gateway: MemoryGateway) -> None:
    writer = Replica(gateway, "writer", push_max=5_000)
    writer.tracker.batch([LocalWrite(Op.INSERT, "todos", f"r{number}", {"rank": number}) for number in range(2_500)])
    await writer.sync.sync_once()

    class BreaksOff(LocalTransport):
        left = 2

        async def checkpoint(self, client_id: str) -> AsyncIterator[SyncResponse] | None:
            pieces = await super().checkpoint(client_id)
            assert pieces is not None
            return self._some(pieces)

        async def _some(self, pieces: AsyncIterator[SyncResponse]) -> AsyncIterator[SyncResponse]:
            self.left -= 1
            count = 0
            async for piece in pieces:
                if self.left == 1 and count == 2:
                    raise Unreachable("broke off")
                if self.left == 0 and not piece.has_more:
                    return
                yield piece
                count += 1

    ada = Replica(gateway, "ada", BreaksOff(gateway))
    progress: list[Any] = []
    ada.sync.progress.connect(progress.append)
    with pytest.raises(Unreachable, match="broke off"):
        await ada.sync.sync_once()
    assert ada.db.state().cursor == 0
    with pytest.raises(Unreachable, match="last piece"):
        await ada.sync.sync_once()
    assert ada.db.state().cursor == 0
    await ada.sync.sync_once()
    assert ada.db.query("SELECT count(*) AS n, sum(rank) AS s FROM todos") == [{"n": 2_500, "s": 2_499 * 1_250}]
    assert (progress[-1].rows, progress[-1].done) == (2_500, True)


async def test_an_expired_cursor_begins_again_and_keeps_own_edits(clock: ManualClock) -> None:
    first, second = MemoryGateway(clock=clock), MemoryGateway(clock=clock)
    ada = Replica(first, "ada")
    other = Replica(first, "other")
    other.tracker.insert("todos", "gone", {"title": "only on the first server"})
    await other.sync.sync_once()
    ada.tracker.insert("todos", "mine", {"title": "mine"})
    await ada.sync.sync_once()
    ada.tracker.update("todos", "mine", {"rank": 5})
    # The server lost its disk and was set up anew with something else.
    third = Replica(second, "third")
    clock.advance(1)
    third.tracker.insert("todos", "new", {"title": "of the second server"})
    await third.sync.sync_once()

    old_cursor = ada.db.state().cursor

    class Moved(LocalTransport):
        async def pull(self, pull: SyncPull) -> SyncResponse:
            if pull.since_hlc == old_cursor:
                raise CursorExpired("not from here")
            return await super().pull(pull)

    ada.sync = SyncCoordinator(ada.db, Moved(second), timing=ada.timing)
    await ada.sync.sync_once()
    assert ada.values("gone") is None
    assert ada.values("new") == {"title": "of the second server"}
    # The edit that waited went to the new server; the settled part of the row is the old server's.
    assert ada.values("mine") is not None
    assert ada.db.state().cursor == second.newest


async def test_a_server_that_expires_every_cursor_is_not_asked_without_end(gateway: MemoryGateway) -> None:
    class Forgetful(LocalTransport):
        async def pull(self, pull: SyncPull) -> SyncResponse:
            raise CursorExpired("always")

    ada = Replica(gateway, "ada", Forgetful(gateway))
    ada.tracker.insert("todos", "r1", {"title": "x"})
    with pytest.raises(Unreachable, match="moved under every page"):
        await ada.sync.sync_once()


async def test_a_page_that_does_not_follow_is_not_applied(gateway: MemoryGateway) -> None:
    ada = Replica(gateway, "ada")
    other = Replica(gateway, "other")
    other.tracker.insert("todos", "r1", {"title": "x"})
    await other.sync.sync_once()
    page = gateway.pull(SyncPull(since_hlc=0, max_deltas=10))
    assert not ada.db.apply_page(SyncResponse(deltas=page.deltas, server_hlc=9, since_hlc=5), settles=False)
    assert ada.values("r1") is None
    assert ada.db.apply_page(page, settles=False)
    assert not ada.db.apply_page(page, settles=False)


async def test_a_row_that_leaves_the_view_is_forgotten_except_for_own_edits(gateway: MemoryGateway) -> None:
    ada = Replica(gateway, "ada")
    other = Replica(gateway, "other")
    for row_id in ("r1", "r2"):
        other.tracker.insert("todos", row_id, {"title": "theirs", "rank": 1})
    await other.sync.sync_once()
    await ada.sync.sync_once()
    ada.tracker.update("todos", "r2", {"title": "mine"})
    cursor = ada.db.state().cursor
    evictions = [RowDelta(op=Op.EVICT, table="todos", row_id=row_id) for row_id in ("r1", "r2")]
    assert ada.db.apply_page(SyncResponse(deltas=evictions, server_hlc=cursor + 1, since_hlc=cursor), settles=False)
    assert ada.values("r1") is None
    assert ("todos", "r1") not in ada.db.row_keys()
    assert ada.values("r2") == {"title": "mine"}
    assert ada.db.query("SELECT _key, title, rank FROM todos") == [{"_key": "r2", "title": "mine", "rank": None}]
    # It comes back with the stamps it always had, even those older than what was forgotten.
    again = [delta for delta in gateway.deltas if delta.row_id == "r1"]
    assert ada.db.apply_page(SyncResponse(deltas=again, server_hlc=cursor + 2, since_hlc=cursor + 1), settles=False)
    assert ada.values("r1") == {"title": "theirs", "rank": 1}


async def test_rows_that_a_checkpoint_does_not_have_are_gone_except_unsettled_ones(gateway: MemoryGateway) -> None:
    ada = Replica(gateway, "ada")
    ada.db.apply_page(
        SyncResponse(deltas=[RowDelta(op=Op.DELETE, table="todos", row_id="old", hlc=5, client_id="x")], server_hlc=3),
        settles=True,
    )
    ada.db.reset_cursor()
    ada.tracker.insert("todos", "mine", {"title": "waits"})
    other = Replica(gateway, "other")
    other.tracker.insert("todos", "theirs", {"title": "there"})
    await other.sync.sync_once()
    await ada.sync.pull()
    assert ada.db.row_keys() == {("todos", "mine"), ("todos", "theirs")}


def test_a_program_without_a_loop_syncs_in_a_thread() -> None:
    gateway = MemoryGateway()
    with LocalDB.open(":memory:", tables=TABLES) as db, SyncThread(db, lambda: LocalTransport(gateway)) as sync:
        sync.tracker.insert("todos", "r1", {"title": "x"})
        sync.sync_once()
        assert len(gateway.deltas) == 1
        sync.start_auto_sync()
        with db.live("SELECT count(*) AS n FROM todos") as query:
            query.poll()
            sync.tracker.insert("todos", "r2", {"title": "y"})
            assert query.poll() == [{"n": 2}]
        waits = 0
        while sync.status.pending or len(gateway.deltas) < 2:
            waits += 1
            with suppress(MainstemError):
                sync.sync_once()
            assert waits < 1_000
        sync.stop()
        assert sync.status.phase is Phase.STOPPED
