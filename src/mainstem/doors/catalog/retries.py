"""Requests that are sent twice: an `Idempotency-Key` makes the second one an echo of the first.

The key is written by the same transaction that has the request's effect, so a crash can never leave an effect without
its key. The echo tells the table as it is now. Only failures that would come again are echoed; after any other the
request simply runs.
"""

import hashlib
import threading
import uuid
from collections.abc import Callable

from mainstem.catalog import Catalog
from mainstem.catalog.stores.store import CURRENT_MARK, Mark
from mainstem.doors.catalog.answers import Answer, Asked, failure
from mainstem.doors.catalog.operations import OPERATIONS
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Call, Operation

HEADER = "idempotency-key"
STRIPES = 64
_TERMINAL = frozenset({400, 404, 406, 409, 422})
_locks = [threading.Lock() for _ in range(STRIPES)]

# How an operation that succeeded is told again: by which other operation, or with no body.
_ECHOES: dict[Operation, Operation | None] = {
    Operation.CREATE_NAMESPACE: Operation.LOAD_NAMESPACE,
    Operation.UPDATE_NAMESPACE: Operation.UPDATE_NAMESPACE,
    Operation.DROP_NAMESPACE: None,
    Operation.CREATE_TABLE: Operation.LOAD_TABLE,
    Operation.REGISTER_TABLE: Operation.LOAD_TABLE,
    Operation.COMMIT_TABLE: Operation.LOAD_TABLE,
    Operation.DROP_TABLE: None,
    Operation.RENAME_TABLE: None,
    Operation.COMMIT_TRANSACTION: None,
    Operation.CREATE_VIEW: Operation.LOAD_VIEW,
    Operation.REGISTER_VIEW: Operation.LOAD_VIEW,
    Operation.COMMIT_VIEW: Operation.LOAD_VIEW,
    Operation.DROP_VIEW: None,
    Operation.RENAME_VIEW: None,
    Operation.CREATE_GENERIC_TABLE: Operation.LOAD_GENERIC_TABLE,
    Operation.UPDATE_GENERIC_TABLE: Operation.LOAD_GENERIC_TABLE,
    Operation.DROP_GENERIC_TABLE: None,
}


def once(catalog: Catalog, asked: Asked, run: Callable[[], Answer]) -> Answer:
    """Run a request, unless its key says that it ran before."""
    key = asked.headers.get(HEADER)
    if key is None or asked.call.operation not in _ECHOES:
        return run()
    try:
        key = str(uuid.UUID(key))
    except ValueError:
        return failure("Invalid Idempotency-Key: expected a UUID", "BadRequestException", 400)
    request = _fingerprint(asked)
    with _locks[hash(key) % STRIPES]:
        known = catalog.mark(key)
        if known is not None:
            return _echo(catalog, asked, known, request)
        mark = Mark(key, request, 200, b"", catalog.now_ms())
        token = CURRENT_MARK.set(mark)
        try:
            answer = run()
        finally:
            CURRENT_MARK.reset(token)
        # Another gateway may have been given the same request, and won.
        known = catalog.mark(key)
        if known is not None:
            return answer if answer.status < 300 else _echo(catalog, asked, known, request)
        if answer.status in _TERMINAL:
            catalog.remember(Mark(key, request, answer.status, answer.body, mark.time_ms))
        return answer


def _fingerprint(asked: Asked) -> str:
    call = asked.call
    text = repr((call.operation.value, call.namespace, call.name, hashlib.sha256(asked.body).hexdigest()))
    return hashlib.sha256(text.encode()).hexdigest()


def _echo(catalog: Catalog, asked: Asked, mark: Mark, request: str) -> Answer:
    if mark.request != request:
        return failure("Invalid Idempotency-Key: it was used for another request", "BadRequestException", 400)
    if mark.status != 200:
        return Answer(mark.status, mark.body)
    told_by = _ECHOES[asked.call.operation]
    if told_by is None:
        return Answer(204)
    if told_by is Operation.UPDATE_NAMESPACE:
        body = wire.decode(asked.body, wire.UpdateNamespaceRequest)
        told = {"updated": list(body.updates or {}), "removed": body.removals or [], "missing": []}
        return Answer(200, wire.encode(told))
    name, namespace = asked.call.name, asked.call.namespace
    if told_by is Operation.LOAD_NAMESPACE:
        namespace = tuple(wire.decode(asked.body, wire.CreateNamespaceRequest).namespace)
    elif not name:
        name = wire.decode(asked.body, wire.Named).name
    return OPERATIONS[told_by](catalog, asked._replace(call=Call(told_by, namespace, name), query={}))
