"""Answers that are there before they are asked for: sent by the socket itself, without a task and without a thread.

What stands before a door (the limits, the gate) passes the question on as it passes requests on, so that nothing is
answered here that would have been refused there. None at any of them means: go the ordinary way, which finds out why.
"""

from collections.abc import Callable
from typing import NamedTuple

from litestar.types import HTTPScope

Headers = tuple[tuple[bytes, bytes], ...]


class AtHand(NamedTuple):
    """A whole answer. Names of headers are in lower case, and one of them says how long the body is."""

    status: int
    headers: Headers
    body: bytes


# Must answer at once: it runs on the event loop, between the bytes of a request and those of its answer.
FindAtHand = Callable[[HTTPScope], AtHand | None]


def nothing_at_hand(_: HTTPScope) -> AtHand | None:
    """Of an application that has to think about everything."""
    return None
