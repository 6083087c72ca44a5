"""A command as its handler sees it, and the table of all commands, which is data.

What every command may carry is checked here, once; what only some may, by their row in the table. Nothing that a client
asks for is ignored where that would change the result.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.admission import Principal, Role
from mainstem.documents import Node, parse_filter
from mainstem.documents.expressions import Scope, check_variable, evaluate, parse_expression
from mainstem.documents.values import MISSING, date_of_ms
from mainstem.doors.mongo.errors import CommandFailed, unknown_field, wrong_type
from mainstem.feeds.documents.writing import Retry, Unit
from mainstem.model.names import TableName
from mainstem.wire.mongo.batches import table_of
from mainstem.wire.mongo.frames import Request

if TYPE_CHECKING:
    from mainstem.doors.mongo.connection import Connection
    from mainstem.doors.mongo.server import MongoDoor
    from mainstem.doors.mongo.sessions import Transaction

# What any command may carry.
GENERIC = frozenset(
    {
        "$db",
        "lsid",
        "txnNumber",
        "autocommit",
        "startTransaction",
        "$clusterTime",
        "$readPreference",
        "readConcern",
        "writeConcern",
        "maxTimeMS",
        "comment",
        "apiVersion",
        "apiStrict",
        "apiDeprecationErrors",
        "coordinator",
    }
)

Reply = dict[str, Any] | bytes
Handler = Callable[["Call"], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table of commands."""

    name: str
    run: Handler
    # Its own fields, beside the first one, which has its name.
    fields: frozenset[str]
    # What the caller must be; None for commands that anybody may send, before a login too.
    role: Role | None
    # Whether it may be a part of a transaction, and whether it writes.
    in_transaction: bool = False
    writes: bool = False
    admin_only: bool = False


COMMANDS: dict[str, Command] = {}


def command(
    name: str,
    *fields: str,
    role: Role | None = Role.READER,
    aliases: Iterable[str] = (),
    in_transaction: bool = False,
    writes: bool = False,
    admin_only: bool = False,
) -> Callable[[Handler], Handler]:
    """Enter a handler into the table."""

    def enter(run: Handler) -> Handler:
        for each in (name, *aliases):
            COMMANDS[each] = Command(each, run, frozenset(fields), role, in_transaction, writes, admin_only)
        return run

    return enter


@dataclass(slots=True)
class Call:
    """One command under way."""

    door: "MongoDoor"
    connection: "Connection"
    request: Request
    command: Command
    body: Mapping[str, Any]
    database: str
    principal: Principal
    deadline_s: float | None = None
    transaction: "Transaction | None" = None
    session: bytes | None = None
    # What it writes outside of a transaction: given up when the command ends, however it ends.
    units: list[Unit] = field(default_factory=list)
    _scope: Scope | None = None

    @property
    def name(self) -> str:
        """The command's name."""
        return self.command.name

    def unit(self, retry: Retry | None = None) -> Unit:
        """Where the command writes to: its transaction, or a batch of its own."""
        if self.transaction is not None:
            return self.transaction.unit
        unit = Unit(self.door.documents.writer, retry=retry)
        self.units.append(unit)
        return unit

    def check(self) -> None:
        """Refuse what the command does not have."""
        for name in self.body:
            if name not in self.command.fields and name not in GENERIC and name != self.command.name:
                raise unknown_field(self.command.name, name)
        for name in self.request.sequences:
            if name not in self.command.fields:
                raise unknown_field(self.command.name, name)
        max_time_ms = self.body.get("maxTimeMS")
        if max_time_ms is not None:
            if isinstance(max_time_ms, bool) or not isinstance(max_time_ms, int | float) or max_time_ms < 0:
                raise wrong_type(self.name, "maxTimeMS", max_time_ms, "a number from 0 up")
            if max_time_ms and self.name != "getMore":
                self.deadline_s = time.monotonic() + max_time_ms / 1000
        self._check_concerns()

    def _check_concerns(self) -> None:
        concern = self.body.get("writeConcern")
        if concern is not None:
            if not isinstance(concern, Mapping):
                raise wrong_type(self.name, "writeConcern", concern, "object")
            self._check_fields("writeConcern", concern, {"w", "j", "fsync", "wtimeout", "provenance"})
            w = concern.get("w", 1)
            if isinstance(w, str) and w != "majority":
                raise CommandFailed(79, f'No write concern mode named "{w}" found in replica set configuration')
            if isinstance(w, int) and w > 1:
                raise CommandFailed(100, "Not enough data-bearing nodes")
        reads = self.document("readConcern")
        # What is acknowledged is seen at once, so that what came `afterClusterTime` is there.
        self._check_fields("readConcern", reads, {"level", "afterClusterTime", "provenance"})
        level = reads.get("level", "local")
        if level not in ("local", "available", "majority", "linearizable", "snapshot"):
            raise CommandFailed(9, f"Enumeration value '{level}' for field 'readConcern.level' is not a valid value.")
        if level == "snapshot" and self.body.get("autocommit") is not False:
            # Its cursors, and the reads after it, would have to stay at one time.
            raise CommandFailed(72, "the read concern 'snapshot' is supported within transactions only")
        version = self.body.get("apiVersion", "1")
        if version != "1":
            raise CommandFailed(322, f"API version must be '1', got={version!r}")

    def _check_fields(self, name: str, document: Mapping[str, Any], known: set[str]) -> None:
        for each in document:
            if each not in known:
                raise unknown_field(name, each)

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is text."""
        value = self.body.get(name, default)
        if not isinstance(value, str):
            raise wrong_type(self.name, name, value, "string")
        return value

    def document(self, name: str) -> Mapping[str, Any]:
        """A field that is a document; an empty one where it is missing."""
        value = self.body.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong_type(self.name, name, value, "object")
        return value

    def scope(self) -> Scope:
        """The variables of the command's expressions: the time, and what `let` defines. Constants, worked out once."""
        if self._scope is None:
            self._scope = {"NOW": date_of_ms(self.door.clock.now_ms())}
            values = {check_variable(name): parse_expression(value) for name, value in self.document("let").items()}
            found = {name: evaluate(value, {}, self._scope) for name, value in values.items()}
            self._scope |= {name: None if value is MISSING else value for name, value in found.items()}
        return self._scope

    def filter(self, name: str) -> Node:
        """A field that is a filter, with the command's variables in it."""
        return self.parsed(self.document(name))

    def parsed(self, filter: Mapping[str, Any]) -> Node:
        """A filter with the command's variables in it."""
        return parse_filter(filter, scope=self.scope())

    def number(self, name: str, default: int | None = None) -> int | None:
        """A field that is a whole number."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise wrong_type(self.name, name, value, "int")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.body.get(name, default)
        if not isinstance(value, bool | int | float):
            raise wrong_type(self.name, name, value, "bool")
        return bool(value)

    def collection(self) -> str:
        """The collection that the command's first field names."""
        name = self.body.get(self.name)
        if not isinstance(name, str):
            raise CommandFailed(73, f"collection name has invalid type {type(name).__name__}")
        if not name:
            raise CommandFailed(73, f"Invalid namespace specified '{self.database}.'")
        return name

    def may_read(self, collection: str) -> None:
        """Refuse what the caller may not see."""
        if not self.principal.may_read(table_of(self.database, collection)):
            raise self._unauthorized()

    def may_write(self, collection: str) -> None:
        """Refuse what the caller may not change."""
        if not self.principal.may_write(table_of(self.database, collection)):
            raise self._unauthorized()

    def sees(self, table: TableName) -> bool:
        """Whether a table exists for the caller."""
        return self.principal.may_read(table)

    def _unauthorized(self) -> CommandFailed:
        return CommandFailed(13, f"not authorized on {self.database} to execute command {self.name}")

    def documents(self, name: str) -> list[Any]:
        """The documents of a section, or of the field of that name: bytes, or decoded."""
        if name in self.request.sequences:
            return list(self.request.sequences[name])
        value = self.body.get(name)
        if not isinstance(value, list):
            if value is None:
                raise CommandFailed(40414, f"BSON field '{self.name}.{name}' is missing but a required field")
            raise wrong_type(self.name, name, value, "array")
        return value
