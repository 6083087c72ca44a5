"""The door: connections, the way from a request to its handler, and what every reply carries."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from mainstem.admission import Principal, Role
from mainstem.admission.users import Users
from mainstem.doors.mongo.calls import COMMANDS, Call
from mainstem.doors.mongo.connection import Connection
from mainstem.doors.mongo.cursors import Cursors
from mainstem.doors.mongo.errors import CommandFailed, failure
from mainstem.doors.mongo.sessions import Sessions, TxnEvent, session_id
from mainstem.feeds.documents.service import Documents
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.mongo.frames import Request, encode_document

logger = logging.getLogger(__name__)

SET_NAME = "mainstem"
HOUSEKEEPING_S = 1.0
_NO_HASH = Binary(bytes(20), 0)
_FINALS = {"commitTransaction": TxnEvent.COMMIT, "abortTransaction": TxnEvent.ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoSettings:
    """How the door behaves."""

    connections_max: int = 10_000
    # The address that clients are told to connect to; where it is empty, the one that they came to.
    advertise: str = ""
    ttl_interval_s: float = 60.0


class MongoDoor:
    """MongoDB's protocol in front of the documents."""

    def __init__(self, documents: Documents, users: Users, clock: Clock, settings: MongoSettings) -> None:
        from mainstem.doors.mongo import families

        families.load()
        self.documents = documents
        self.users = users
        self.clock = clock
        self.settings = settings
        self.cursors = Cursors()
        self.sessions = Sessions(documents, clock)
        self.connections: set[Connection] = set()
        self.connections_made = 0
        self.counts: dict[str, int] = {}
        self.started_s = clock.monotonic_s()
        self._server: asyncio.Server | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        self.port = 0
        self._tail = (-1, b"")

    @property
    def asks_for_login(self) -> bool:
        """Whether a client must log in."""
        return self.users.is_on

    # Life

    async def listen(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> int:
        """Take connections. The port, which may have been picked."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.connection, sock=listener, ssl=tls, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])
        # Not in a task group: it lives until `close`, which awaits it.
        self._housekeeping = asyncio.create_task(self._keep_house())
        return self.port

    async def close(self) -> None:
        """Take no more connections, answer what is under way, and end the rest."""
        if self._server is not None:
            self._server.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
        self.sessions.close()
        self.cursors.close()
        for connection in list(self.connections):
            connection.close()

    def connection(self) -> Connection:
        """The door's end of a connection."""
        self.connections_made += 1
        return Connection(self, self.connections_made)

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for a connection."""
        if len(self.connections) >= self.settings.connections_max:
            return False
        self.connections.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    async def _keep_house(self) -> None:
        from mainstem.doors.mongo.ttl import delete_expired

        next_ttl_s = self.clock.monotonic_s() + self.settings.ttl_interval_s
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            try:
                self.cursors.expire()
                self.sessions.expire()
                if self.clock.monotonic_s() >= next_ttl_s:
                    next_ttl_s = self.clock.monotonic_s() + self.settings.ttl_interval_s
                    await delete_expired(self.documents)
            # The task's edge: what could not be done now is done next time.
            except Exception:
                logger.exception("the Mongo door could not keep house")

    # Answering

    async def answer(self, connection: Connection, request: Request) -> tuple[dict[str, Any] | bytes, bool]:
        """The reply to a request, and whether there may be another one (an exhaust cursor)."""
        body: Mapping[str, Any] = request.body
        if request.legacy and "$query" in body:
            body = body["$query"]
        name = next(iter(body), "")
        try:
            if request.error is not None:
                raise request.error
            reply = await self._run(connection, request, name, body)
        except MainstemError as error:
            failed = failure(error)
            document = failed.document()
            if failed.code == 189 and "lsid" in body and body.get("autocommit") is False:
                document["errorLabels"] = ["TransientTransactionError"]
            return self._with_times(document), False
        # The edge of one command: a fault of ours is told, and the connection lives.
        except Exception as error:
            logger.exception("a Mongo command failed", extra={"command": name})
            return self._with_times(CommandFailed(1, f"{type(error).__name__}: {error}"[:500]).document()), False
        again = name in ("getMore", "hello") and request.exhaust_allowed and _goes_on(reply)
        return reply if isinstance(reply, bytes) else self._with_times(reply), again

    async def _run(
        self, connection: Connection, request: Request, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any] | bytes:
        command = COMMANDS.get(name)
        if command is None:
            raise CommandFailed(59, f"no such command: '{name}'")
        database = request.database or body.get("$db")
        if not isinstance(database, str) or not database:
            raise CommandFailed(40571, "OP_MSG requests require a $db argument")
        if connection.users_version != self.users.version:
            connection.look_up()
        principal = connection.principal
        if command.role is not None:
            if principal is None:
                raise CommandFailed(13, f"command {name} requires authentication")
            if not principal.has(command.role):
                raise CommandFailed(13, f"not authorized on {database} to execute command {name}")
            if command.role is Role.ADMIN and not principal.is_unbounded:
                # What asks for an admin concerns the whole server: everybody's connections, users, log.
                raise CommandFailed(13, f"not authorized on {database} to execute command {name}")
        if command.admin_only and database != "admin":
            raise CommandFailed(13, f"{name} may only be run against the admin database.")
        call = Call(self, connection, request, command, body, database, principal or _NOBODY)
        call.check()
        self.counts[name] = self.counts.get(name, 0) + 1
        await self.documents.fresh()
        call.session = session_id(body, call.principal.sub)
        try:
            return await self._in_session(call)
        finally:
            for unit in call.units:
                unit.give_up()

    async def _in_session(self, call: Call) -> dict[str, Any] | bytes:
        body, command = call.body, call.command
        number = body.get("txnNumber")
        if number is None or call.session is None:
            return await command.run(call)
        session = self.sessions.get(call.session)
        async with self.sessions.turn(session):
            try:
                if body.get("autocommit") is False:
                    return await self._in_transaction(call, int(number))
                return await command.run(call)
            finally:
                # Also where the client is gone: its retry must find what became of this one.
                for unit in [*call.units, *([] if call.transaction is None else [call.transaction.unit])]:
                    await unit.settled()

    async def _in_transaction(self, call: Call, number: int) -> dict[str, Any] | bytes:
        assert call.session is not None
        session = self.sessions.get(call.session)
        event = _FINALS.get(call.name)
        if event is None:
            if not call.command.in_transaction:
                raise CommandFailed(263, f"Cannot run '{call.name}' in a multi-document transaction.")
            event = TxnEvent.START if call.body.get("startTransaction") else TxnEvent.STATEMENT
        transaction = self.sessions.step(session, number, event)
        call.transaction = transaction
        try:
            return await call.command.run(call)
        except MainstemError as error:
            # As in MongoDB, a statement that fails ends its transaction.
            if transaction is not None and event is not TxnEvent.COMMIT:
                transaction.abort()
            failed = failure(error)
            if failed.code in (112, 189) and event is not TxnEvent.COMMIT:
                failed.labels = ("TransientTransactionError",)
            raise failed from error

    def times(self) -> dict[str, Any]:
        """What every reply carries of the server's clock."""
        now = timestamp_of(self.documents.hlc)
        return {
            "$clusterTime": {"clusterTime": now, "signature": {"hash": _NO_HASH, "keyId": Int64(0)}},
            "operationTime": now,
        }

    def _with_times(self, reply: dict[str, Any]) -> dict[str, Any]:
        if "ok" not in reply:
            reply["ok"] = 1.0
        return {**reply, **self.times()}

    def tail(self) -> bytes:
        """The end of a reply that is put together from bytes. Made anew only when the clock has moved."""
        hlc = self.documents.hlc
        if self._tail[0] != hlc:
            self._tail = (hlc, encode_document({"ok": 1.0, **self.times()})[4:-1])
        return self._tail[1]


_NOBODY = Principal(sub="", role=Role.CLIENT, is_authenticated=False)


def timestamp_of(hlc: int) -> Timestamp:
    """A clock value as MongoDB writes times: seconds, and a counter. One to one, and in the same order."""
    wall_ms, counter = hlc >> 16, hlc & 0xFFFF
    return Timestamp(wall_ms // 1000, ((wall_ms % 1000) << 16) | counter)


def hlc_of(timestamp: Timestamp) -> int:
    """The clock value of such a time; one that somebody made up has its seconds at least."""
    milliseconds, counter = timestamp.inc >> 16, timestamp.inc & 0xFFFF
    if milliseconds >= 1000:
        milliseconds = 999
    return ((timestamp.time * 1000 + milliseconds) << 16) | counter


def _goes_on(reply: dict[str, Any] | bytes) -> bool:
    if isinstance(reply, bytes):
        # A cursor that is at its end has the id 0.
        place = reply.find(b"\x12id\x00")
        return reply[place + 4 : place + 12] != bytes(8)
    return "cursor" not in reply or reply["cursor"].get("id") != 0
