"""The states of a CDC connection, as a table: what each message means in each state. No I/O, no data."""

from enum import Enum, auto


class State(Enum):
    """Where a connection stands."""

    # Messages are taken.
    OPEN = auto()
    # The producer said goodbye: what is under way is answered, then the connection is closed.
    LEAVING = auto()
    # The server stops: what is under way is answered, anything new is refused.
    DRAINING = auto()
    CLOSED = auto()


class Event(Enum):
    """What happens to a connection."""

    CONNECT = auto()
    BATCH = auto()
    HEARTBEAT = auto()
    FLUSH = auto()
    DISCONNECT = auto()
    # A message that could not be read.
    UNREADABLE = auto()
    # One oversized message too many.
    OFFENCE = auto()
    # The server begins to stop.
    DRAIN = auto()
    # The peer is gone.
    GONE = auto()


class Action(Enum):
    """What the session does about it."""

    GREET = auto()
    TAKE = auto()
    TELL = auto()
    FLUSH = auto()
    # Close as the producer asked, once everything is answered.
    LEAVE = auto()
    # Close because the server stops, once everything is answered.
    GO_AWAY = auto()
    # Close because of what the producer sends, once everything is answered.
    EXPEL = auto()
    # Say what is wrong with the message.
    REFUSE = auto()
    # Say that the server stops.
    REFUSE_STOPPING = auto()
    NOTHING = auto()


TRANSITIONS: dict[State, dict[Event, tuple[State, Action]]] = {
    State.OPEN: {
        # A second connect is as good as the first: a producer may resume on a connection that it kept.
        Event.CONNECT: (State.OPEN, Action.GREET),
        # A batch needs no connect before it: the headers or the batch say whose it is.
        Event.BATCH: (State.OPEN, Action.TAKE),
        Event.HEARTBEAT: (State.OPEN, Action.TELL),
        Event.FLUSH: (State.OPEN, Action.FLUSH),
        Event.DISCONNECT: (State.LEAVING, Action.LEAVE),
        Event.UNREADABLE: (State.OPEN, Action.REFUSE),
        Event.OFFENCE: (State.LEAVING, Action.EXPEL),
        Event.DRAIN: (State.DRAINING, Action.GO_AWAY),
        Event.GONE: (State.CLOSED, Action.NOTHING),
    },
    State.LEAVING: {
        Event.CONNECT: (State.LEAVING, Action.NOTHING),
        Event.BATCH: (State.LEAVING, Action.NOTHING),
        Event.HEARTBEAT: (State.LEAVING, Action.NOTHING),
        Event.FLUSH: (State.LEAVING, Action.NOTHING),
        Event.DISCONNECT: (State.LEAVING, Action.NOTHING),
        Event.UNREADABLE: (State.LEAVING, Action.NOTHING),
        Event.OFFENCE: (State.LEAVING, Action.NOTHING),
        Event.DRAIN: (State.LEAVING, Action.NOTHING),
        Event.GONE: (State.CLOSED, Action.NOTHING),
    },
    State.DRAINING: {
        Event.CONNECT: (State.DRAINING, Action.REFUSE_STOPPING),
        Event.BATCH: (State.DRAINING, Action.REFUSE_STOPPING),
        Event.HEARTBEAT: (State.DRAINING, Action.TELL),
        Event.FLUSH: (State.DRAINING, Action.REFUSE_STOPPING),
        Event.DISCONNECT: (State.LEAVING, Action.LEAVE),
        Event.UNREADABLE: (State.DRAINING, Action.REFUSE),
        Event.OFFENCE: (State.LEAVING, Action.EXPEL),
        Event.DRAIN: (State.DRAINING, Action.NOTHING),
        Event.GONE: (State.CLOSED, Action.NOTHING),
    },
    State.CLOSED: {
        Event.CONNECT: (State.CLOSED, Action.NOTHING),
        Event.BATCH: (State.CLOSED, Action.NOTHING),
        Event.HEARTBEAT: (State.CLOSED, Action.NOTHING),
        Event.FLUSH: (State.CLOSED, Action.NOTHING),
        Event.DISCONNECT: (State.CLOSED, Action.NOTHING),
        Event.UNREADABLE: (State.CLOSED, Action.NOTHING),
        Event.OFFENCE: (State.CLOSED, Action.NOTHING),
        Event.DRAIN: (State.CLOSED, Action.NOTHING),
        Event.GONE: (State.CLOSED, Action.NOTHING),
    },
}


def step(state: State, event: Event) -> tuple[State, Action]:
    """The next state, and what to do on the way."""
    return TRANSITIONS[state][event]
