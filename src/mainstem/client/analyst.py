"""Questions to a table's history: time travel by clock, changes between two clocks, who wrote a column.

    analyst = Analyst("http://127.0.0.1:8181")
    analyst.as_of("todos.todos", "2026-11-16T05:00:00Z")
    analyst.changes("todos.todos", after=0, through=clock)
    analyst.blame("todos.todos", key="r1", column="title")

A clock is a hybrid logical clock (an int), a `datetime`, or text of either.
"""

from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
import msgspec

from mainstem.client.closing import Closing
from mainstem.model.errors import Denied, Invalid, NotFound, Overloaded

Clock = int | str | datetime
T = TypeVar("T")


class PastRow(msgspec.Struct, frozen=True):
    """A row as it was, with the clock and source of its latest write then."""

    key: str
    hlc: int
    source: str
    row: dict[str, Any]


class Change(msgspec.Struct, frozen=True):
    """A change as it came: only the columns that were written, None for a delete."""

    hlc: int
    source: str
    op: str
    key: str
    columns: dict[str, Any] | None
    position: int
    id: str | None = None


class Write(msgspec.Struct, frozen=True):
    """A write to a column, or a delete of its row."""

    hlc: int
    source: str
    op: str
    value: Any
    position: int
    id: str | None = None


class Analyst(Closing):
    """Asks a server. Use it as a context manager, or `close` it."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 60.0) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)

    def as_of(self, table: str, clock: Clock, *, key: str | None = None, limit: int = 10_000) -> list[PastRow]:
        """The rows as they were at a clock."""
        more = {} if key is None else {"key": key}
        return self._ask(table, "as-of", "rows", list[PastRow], clock=_text(clock), limit=str(limit), **more)

    def changes(self, table: str, *, after: Clock, through: Clock, limit: int = 10_000) -> list[Change]:
        """The changes with after < clock <= through, in the order of their clocks."""
        return self._ask(
            table, "changes", "changes", list[Change], after=_text(after), through=_text(through), limit=str(limit)
        )

    def blame(self, table: str, *, key: str, column: str, limit: int = 10_000) -> list[Write]:
        """Who wrote a column of a row and when, the newest first; deletes of the row are among them."""
        return self._ask(table, "blame", "writes", list[Write], key=key, column=column, limit=str(limit))

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def _ask(self, table: str, question: str, member: str, kind: type[T], **params: str) -> T:
        try:
            answer = self._http.get(f"/v1/analyst/{table}/{question}", params=params)
        except httpx.HTTPError as error:
            raise Overloaded(
                f"no answer from {self._http.base_url}: {error}", retry_after_s=1.0, reason="unreachable"
            ) from error
        if answer.is_success:
            return msgspec.convert(answer.json()[member], kind, strict=False)
        message = answer.json().get("error", {}).get("message", answer.text)
        match answer.status_code:
            case 401 | 403:
                raise Denied(message)
            case 404:
                raise NotFound(message)
            case 429 | 503:
                raise Overloaded(message, retry_after_s=float(answer.headers.get("Retry-After", "1")))
        raise Invalid(message)


def _text(clock: Clock) -> str:
    if isinstance(clock, datetime):
        return (clock if clock.tzinfo else clock.replace(tzinfo=UTC)).isoformat()
    return str(clock)
