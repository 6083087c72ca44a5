"""The table of states is total, and says what it must."""

import itertools

import pytest

from mainstem.doors.cdc.states import TRANSITIONS, Action, Event, State, step


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_has_a_meaning_in_every_state(state: State, event: Event) -> None:
    following, action = step(state, event)
    assert isinstance(following, State)
    assert isinstance(action, Action)


def test_there_is_nothing_else_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(set(row) == set(Event) for row in TRANSITIONS.values())


def test_batches_are_taken_only_while_open() -> None:
    assert [state for state in State if step(state, Event.BATCH)[1] is Action.TAKE] == [State.OPEN]


def test_nothing_leads_out_of_closed_and_everyone_can_go() -> None:
    assert all(step(State.CLOSED, event) == (State.CLOSED, Action.NOTHING) for event in Event)
    assert all(step(state, Event.GONE)[0] is State.CLOSED for state in State)
