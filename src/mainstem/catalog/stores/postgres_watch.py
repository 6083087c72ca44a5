"""What other gateways write to the database, told by PostgreSQL itself (LISTEN and NOTIFY).

A notification is part of the transaction that it tells of: it comes if and when that commits. One that is missed,
because the connection broke or a pooler in between keeps it, is made up for: after each connect, and every `RESYNC_S`,
the answer is that anything may have changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mainstem.catalog.names import TableIdent
from mainstem.model import Overloaded
from mainstem.runtime.clock import Clock, SystemClock

CHANNEL = "mainstem_catalog"
RESYNC_S = 30.0
# PostgreSQL takes less than 8000 bytes. Names that are longer together are told as "anything".
PAYLOAD_BYTES_MAX = 7900
_SEPARATOR = "\x1e"
_LEVELS = "\x1f"


def payload(writer: str, idents: Sequence[TableIdent]) -> str:
    """A notification: who wrote, and to which names; only who, where the names do not fit."""
    parts = [writer]
    for ident in idents:
        parts += [_LEVELS.join(ident.namespace), ident.name]
    text = _SEPARATOR.join(parts)
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX else writer


def parse(text: str, reader: str) -> list[TableIdent] | None:
    """The names in a notification, none where the reader itself wrote it. None: any name."""
    writer, *names = text.split(_SEPARATOR)
    if writer == reader:
        return []
    if not names or len(names) % 2:
        return None
    pairs = zip(names[::2], names[1::2], strict=True)
    return [TableIdent(tuple(namespace.split(_LEVELS)), name) for namespace, name in pairs]


class PostgresWatch:
    """A connection that listens. For one thread at a time."""

    def __init__(
        self, connect: Callable[[], Any], reader: str, broken: type[Exception], clock: Clock | None = None
    ) -> None:
        """`connect` gives a connection of psycopg, `broken` is what that raises when it is no more."""
        self._connect = connect
        self._broken = broken
        self._reader = reader
        self._clock = clock or SystemClock()
        self._connection: Any = None
        self._resync_s = 0.0

    def wait(self, timeout_s: float) -> list[TableIdent] | None:
        """The names that others wrote to, as soon as there is one; none when the time is over. None: any name."""
        if self._connection is None:
            connection = self._connect()
            connection.execute(f"LISTEN {CHANNEL}")
            self._connection = connection
            return self._anything()
        try:
            # To the end, which comes with the packet that brings the first one: what is not taken now is lost.
            told = [parse(n.payload, self._reader) for n in self._connection.notifies(timeout=timeout_s, stop_after=1)]
        except self._broken as error:
            self.close()
            raise Overloaded(f"catalog store cannot be watched. got={error}", retry_after_s=1.0) from error
        names: set[TableIdent] = set()
        for some in told:
            if some is None:
                return self._anything()
            names.update(some)
        return self._anything() if self._clock.monotonic_s() >= self._resync_s else sorted(names)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _anything(self) -> list[TableIdent] | None:
        self._resync_s = self._clock.monotonic_s() + RESYNC_S
        return None
