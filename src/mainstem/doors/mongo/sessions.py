"""Sessions and transactions: who may retry what, and what is written together.

    none ──startTransaction──▶ open ──commitTransaction──▶ committed ──▶ none
                                 │ ──abortTransaction, error, time──▶ aborted ──▶ none

A transaction reads one snapshot of the store with its own writes over it, holds the documents that it writes, and is
one batch of the log when it commits. Every (state, event) pair is in `_STEPS`.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mainstem.doors.mongo.errors import CommandFailed
from mainstem.feeds.documents.reading import View
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.writing import Retry, Unit
from mainstem.runtime.clock import Clock

SESSIONS_MAX = 100_000
SESSION_IDLE_S = 30 * 60.0
TRANSACTION_S_MAX = 60.0
TRANSACTIONS_MAX = 500


class TxnState(Enum):
    """How far a transaction is."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class TxnEvent(Enum):
    """What a client may ask of it."""

    START = "start"
    STATEMENT = "statement"
    COMMIT = "commit"
    ABORT = "abort"


# What each event does in each state: go on, answer as before, or the code of the refusal.
_STEPS: dict[tuple[TxnState, TxnEvent], str | int] = {
    (TxnState.OPEN, TxnEvent.START): 117,
    (TxnState.OPEN, TxnEvent.STATEMENT): "go",
    (TxnState.OPEN, TxnEvent.COMMIT): "go",
    (TxnState.OPEN, TxnEvent.ABORT): "go",
    (TxnState.COMMITTED, TxnEvent.START): 225,
    (TxnState.COMMITTED, TxnEvent.STATEMENT): 256,
    (TxnState.COMMITTED, TxnEvent.COMMIT): "same",
    (TxnState.COMMITTED, TxnEvent.ABORT): 256,
    (TxnState.ABORTED, TxnEvent.START): 225,
    (TxnState.ABORTED, TxnEvent.STATEMENT): 251,
    (TxnState.ABORTED, TxnEvent.COMMIT): 251,
    (TxnState.ABORTED, TxnEvent.ABORT): 251,
}


class Transaction:
    """One transaction of one session."""

    def __init__(self, documents: Documents, session: bytes, number: int, now_s: float) -> None:
        self.number = number
        self.state = TxnState.OPEN
        self.began_s = now_s
        self._documents = documents
        self._db: sqlite3.Connection | None = documents.state.snapshot()
        self.snapshot_hlc = documents.hlc
        self.unit = Unit(documents.writer, retry=Retry(session, number), snapshot_hlc=self.snapshot_hlc)
        self.unit.view = View(documents.state, self._db, self.unit.draft.overlay)

    async def commit(self) -> None:
        """Write everything, or nothing."""
        self.unit.draft.answers = {-1: b""} if self.unit.draft.operations else {}
        self._close()
        try:
            await self.unit.flush()
        except BaseException:
            self.state = TxnState.ABORTED
            raise
        self.state = TxnState.COMMITTED

    def abort(self) -> None:
        """Write nothing."""
        if self.state is TxnState.OPEN:
            self.state = TxnState.ABORTED
            self.unit.give_up()
        self._close()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


@dataclass(slots=True)
class Session:
    """What is known of one session."""

    id: bytes
    number: int = -1
    used_s: float = 0.0
    transaction: Transaction | None = None
    # One command of a session at a time: a retry waits for what it is a retry of.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions:
    """All sessions of the door."""

    def __init__(self, documents: Documents, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: bytes) -> Session:
        """A session, which begins with its first command."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                oldest = next(iter(self._sessions.values()))
                if oldest.transaction is not None and oldest.transaction.state is TxnState.OPEN:
                    raise CommandFailed(261, f"too many sessions. expected=at most {SESSIONS_MAX}")
                del self._sessions[oldest.id]
            session = Session(session_id)
        session.used_s = self._clock.monotonic_s()
        self._sessions[session_id] = session
        return session

    def end(self, session_id: bytes) -> None:
        """A client is done with it."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.transaction is not None:
            session.transaction.abort()

    def expire(self) -> None:
        """End transactions that take too long, and forget sessions that are not used."""
        now_s = self._clock.monotonic_s()
        for session in list(self._sessions.values()):
            transaction = session.transaction
            if transaction is not None and now_s - transaction.began_s > TRANSACTION_S_MAX:
                transaction.abort()
            if now_s - session.used_s > SESSION_IDLE_S:
                self.end(session.id)

    def close(self) -> None:
        """End all of them."""
        for session_id in list(self._sessions):
            self.end(session_id)

    @asynccontextmanager
    async def turn(self, session: Session) -> AsyncIterator[None]:
        """One command of the session at a time."""
        async with session.turn:
            yield

    def step(self, session: Session, number: int, event: TxnEvent) -> Transaction | None:
        """The transaction that a command belongs to. None where it was committed before, and is to be answered so."""
        if number < session.number:
            raise CommandFailed(
                225, f"Cannot continue transaction {number}: a newer one, {session.number}, has begun on this session"
            )
        transaction = session.transaction
        if transaction is not None and transaction.number == number:
            step = _STEPS[transaction.state, event]
            if isinstance(step, int):
                if event is TxnEvent.COMMIT and self._documents.state.answered(session.id, number):
                    # Its client went away while it was written, or the outcome could not be told then.
                    return None
                raise _refusal(step, number, transaction.state)
            return transaction if step == "go" else None
        if event is TxnEvent.COMMIT and self._documents.state.answered(session.id, number):
            # It was committed before this server started, or by a command whose answer was lost.
            return None
        if event is not TxnEvent.START:
            raise _refusal(251, number, TxnState.ABORTED)
        return self._begin(session, number)

    def _begin(self, session: Session, number: int) -> Transaction:
        if session.transaction is not None:
            session.transaction.abort()
        open_count = sum(
            each.transaction is not None and each.transaction.state is TxnState.OPEN for each in self._sessions.values()
        )
        if open_count >= TRANSACTIONS_MAX:
            raise CommandFailed(
                246,
                f"too many open transactions. expected=at most {TRANSACTIONS_MAX}",
                labels=("TransientTransactionError",),
            )
        session.number = number
        session.transaction = Transaction(self._documents, session.id, number, self._clock.monotonic_s())
        return session.transaction


def _refusal(code: int, number: int, state: TxnState) -> CommandFailed:
    labels = ("TransientTransactionError",) if code == 251 else ()
    messages = {
        117: f"Transaction {number} is in progress already",
        225: f"Transaction {number} has ended: it is {state.value}",
        256: f"Transaction {number} has been committed.",
        251: f"Given transaction number {number} does not match any in-progress transactions.",
    }
    return CommandFailed(code, messages[code], labels=labels)


def session_id(body: Any, user: str) -> bytes | None:
    """The session that a command names, as one of its user: another user with the same number has another session, and
    neither goes on with the transaction nor ends it."""
    lsid = body.get("lsid")
    if lsid is None:
        return None
    found = lsid.get("id") if isinstance(lsid, dict) else None
    if not isinstance(found, bytes) or len(found) != 16:
        raise CommandFailed(14, "BSON field 'lsid.id' must be a UUID")
    return hashlib.blake2b(bytes(found) + user.encode(), digest_size=16).digest()
