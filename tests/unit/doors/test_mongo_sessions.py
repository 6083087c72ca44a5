"""The table of a transaction's states, and the bounds of cursors."""

import itertools

import pytest

from mainstem.doors.mongo.cursors import Cursors
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.doors.mongo.sessions import _STEPS, TxnEvent, TxnState


def test_every_pair_of_state_and_event_has_an_answer() -> None:
    assert set(_STEPS) == set(itertools.product(TxnState, TxnEvent))


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
