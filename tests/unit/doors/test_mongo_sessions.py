"""The table of a transaction's states, how transactions end that nobody commits, and the bounds of cursors."""

import itertools
from pathlib import Path
from typing import Any, NoReturn

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from mainstem.doors.mongo.cursors import Cursors
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.doors.mongo.sessions import _STEPS, TRANSACTION_S_MAX, TxnEvent, TxnState
from tests.unit.doors.mongo_world import World, opened

LSID = {"id": Binary(bytes(range(16)), 4)}
COMMIT = {"commitTransaction": 1, "$db": "admin"}


def test_every_pair_of_state_and_event_has_an_answer() -> None:
    assert set(_STEPS) == set(itertools.product(TxnState, TxnEvent))


async def step(world: World, body: dict[str, Any], *, starts: bool = False) -> dict[str, Any]:
    """A command of the one transaction."""
    more = {"startTransaction": True} if starts else {}
    return await world.run({**body, "lsid": LSID, "txnNumber": Int64(1), "autocommit": False, **more})


async def begin(world: World) -> None:
    await world.run({"insert": "c", "documents": [{"_id": 0}]})
    assert (await step(world, {"insert": "c", "documents": [{"_id": 1}]}, starts=True))["n"] == 1


async def check_gone(world: World) -> None:
    """The transaction holds nothing, wrote nothing, and says so to whoever goes on with it."""
    assert (await world.run({"insert": "c", "documents": [{"_id": 1, "by": "other"}]}))["n"] == 1
    for body in ({"insert": "c", "documents": [{"_id": 2}]}, COMMIT):
        reply = await step(world, body)
        assert (reply["code"], reply["errorLabels"]) == (251, ["TransientTransactionError"])
    assert await world.documents_of("c") == [{"_id": 0}, {"_id": 1, "by": "other"}]


async def test_a_transaction_that_takes_too_long_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await begin(world)
        world.door.sessions.expire()
        (session,) = world.door.sessions._sessions.values()
        assert session.transaction is not None and session.transaction.state is TxnState.OPEN
        session.transaction.began_s -= TRANSACTION_S_MAX + 1
        world.door.sessions.expire()
        await check_gone(world)


@pytest.mark.parametrize("command", ["endSessions", "killSessions"])
async def test_a_transaction_ends_with_its_session(tmp_path: Path, command: str) -> None:
    async with opened(tmp_path) as world:
        await begin(world)
        cursor = (await world.run({"find": "c", "batchSize": 0, "lsid": LSID}))["cursor"]["id"]
        assert (await world.run({command: [LSID]}))["ok"] == 1
        assert (await world.run({"getMore": cursor, "collection": "c"}))["code"] == 43
        await check_gone(world)


async def test_a_commit_of_unknown_outcome_says_so_and_is_told_when_asked_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await begin(world)
        log, record = world.log, world.log._record

        def fail(*_: Any) -> NoReturn:
            # The batch is durable by now.
            log._record = record
            raise MemoryError

        log._record = fail
        reply = await step(world, COMMIT)
        assert (reply["ok"], reply["code"]) == (0.0, 91)
        assert set(reply["errorLabels"]) == {"UnknownTransactionCommitResult", "RetryableWriteError"}
        assert (await step(world, COMMIT))["ok"] == 1.0
        assert await world.documents_of("c") == [{"_id": 0}, {"_id": 1}]


def test_cursors_are_bounded_in_number() -> None:
    cursors = Cursors(cursors_max=3)
    kept = [cursors.make("db.a", iter(())) for _ in range(3)]
    for cursor in kept:
        cursors.keep(cursor)
    with pytest.raises(CommandFailed, match="too many open cursors"):
        cursors.keep(cursors.make("db.a", iter(())))
    # One that nobody has asked for lately makes room.
    kept[0].used_s -= 10
    cursors.keep(cursors.make("db.a", iter(())))
    assert len(cursors) == 3
    with pytest.raises(CommandFailed, match="not found"):
        cursors.get(kept[0].id)


def test_a_cursor_that_nobody_asks_for_ends() -> None:
    closed = []
    cursors = Cursors(idle_s=5)
    cursor = cursors.make("db.a", iter(()))
    cursor.close = lambda: closed.append(cursor.id)
    cursors.keep(cursor)
    cursors.expire()
    assert len(cursors) == 1
    cursor.used_s -= 6
    cursors.expire()
    assert (len(cursors), closed) == (0, [cursor.id])
