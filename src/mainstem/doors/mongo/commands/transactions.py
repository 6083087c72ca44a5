"""commitTransaction, abortTransaction, and the ends of sessions."""

from typing import Any

from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.errors import CommandFailed, failure
from mainstem.doors.mongo.sessions import session_id
from mainstem.model.errors import MainstemError, OutcomeUnknown


@command("commitTransaction", "recoveryToken", in_transaction=True)
async def commit_transaction(call: Call) -> Reply:
    """Write everything that the transaction wrote, as one batch."""
    if call.session is None or call.body.get("autocommit") is not False:
        raise CommandFailed(125, "commitTransaction must be run within a transaction")
    if call.transaction is None:
        # It was committed before; the answer was lost.
        return {}
    try:
        await call.transaction.commit()
    except OutcomeUnknown as error:
        raise CommandFailed(91, str(error), labels=("UnknownTransactionCommitResult", "RetryableWriteError")) from error
    except MainstemError as error:
        failed = failure(error)
        failed.labels = ("TransientTransactionError",)
        raise failed from error
    return {}


@command("abortTransaction", "recoveryToken", in_transaction=True)
async def abort_transaction(call: Call) -> Reply:
    """Write nothing of it."""
    if call.transaction is None:
        raise CommandFailed(125, "abortTransaction must be run within a transaction")
    call.transaction.abort()
    return {}


@command("startSession", role=None)
async def start_session(call: Call) -> Reply:
    """A new session."""
    import uuid

    from bson.binary import Binary

    return {"id": {"id": Binary(uuid.uuid4().bytes, 4)}, "timeoutMinutes": 30}


def _ended(call: Call, sessions: Any) -> Reply:
    for each in sessions or ():
        found = session_id({"lsid": each}, call.principal.sub)
        if found is not None:
            call.door.sessions.end(found)
            call.door.cursors.kill_session(found)
    return {}


@command("endSessions")
async def end_sessions(call: Call) -> Reply:
    """The client is done with these."""
    return _ended(call, call.body["endSessions"])


@command("killSessions")
async def kill_sessions(call: Call) -> Reply:
    """End these, whatever of the caller's uses them."""
    return _ended(call, call.body["killSessions"])


@command("refreshSessions")
async def refresh_sessions(call: Call) -> Reply:
    """These are still in use."""
    for each in call.body["refreshSessions"] or ():
        found = session_id({"lsid": each}, call.principal.sub)
        if found is not None:
            call.door.sessions.get(found)
    return {}
