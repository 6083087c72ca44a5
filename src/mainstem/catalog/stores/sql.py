"""The store's statements, in the SQL that SQLite and PostgreSQL share.

A backend brings connections: `_read` lends one, `_transact` runs statements with one inside a transaction that is
durable when it returns. Every check that must not race is either part of a statement (`… WHERE metadata_location = ?`),
a constraint, or made under the namespaces' lock.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from mainstem.catalog.errors import (
    AlreadyExists,
    NamespaceNotEmpty,
    NoSuchGenericTable,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from mainstem.catalog.names import Namespace, TableIdent
from mainstem.catalog.stores.store import Kind, Mark, Pointer, Swap, Watch
from mainstem.model import Invalid, LogId, LogPosition, NotFound
from mainstem.tables.places import folder_place_of, folders_above, spellings

SEPARATOR = "\x1f"
# One above the separator: everything that starts with "ns\x1f" sorts below "ns\x20".
SEPARATOR_AFTER = "\x20"
# How long an answer is replayed. Clients are told half of it, so that no retry comes just too late.
MARK_AGE_MS_MAX = 60 * 60 * 1000

_POINTER = "metadata_location, location, snapshot_id, marks, kind, details"
_decode_marks = msgspec.json.Decoder(dict[LogId, LogPosition]).decode
_NAMES = {Kind.TABLE: "Table", Kind.VIEW: "View", Kind.GENERIC: "Generic table"}


T = TypeVar("T")


class Cursor(Protocol):
    """What a statement gives back."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What the statements need of a connection. Parameters are written as `?`."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...


class Lost(Exception):
    """Ends a transaction that found something else than it expected; nothing of it stays."""


class Violated(Exception):
    """A constraint of the database refused a write: somebody else was faster. Nothing of it stays."""


class SqlStore:
    """Everything of a store but its connections."""

    is_embedded = False

    def _read(self) -> AbstractContextManager[Connection]:
        raise NotImplementedError

    def _transact(self, statements: Callable[[Connection], T], *, is_one_write: bool = False) -> T:
        """Run statements, in whichever thread: all of them are durable when this returns, none where it raises.

        `is_one_write` says that only the last of them writes, so that there is nothing to undo.
        """
        raise NotImplementedError

    def _lock_namespaces(self, connection: Connection) -> None:
        """Let one transaction at a time change namespaces."""

    def _tell_others(self, connection: Connection, idents: Sequence[TableIdent]) -> None:
        """Let the other processes of this store know, if and when the transaction commits."""

    def watch(self) -> Watch | None:
        return None

    def namespaces(self, parent: Namespace) -> list[Namespace]:
        select = "SELECT namespace FROM namespaces"
        with self._read() as connection:
            if parent:
                _properties(connection, parent)
                rows = connection.execute(
                    f"{select} WHERE namespace > ? AND namespace < ? ORDER BY namespace", _below(parent)
                ).fetchall()
            else:
                rows = connection.execute(f"{select} ORDER BY namespace").fetchall()
        found = (_levels(row[0]) for row in rows)
        return [namespace for namespace in found if len(namespace) == len(parent) + 1]

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        with self._read() as connection:
            return _properties(connection, namespace)

    def create_namespace(self, namespace: Namespace, properties: dict[str, str]) -> None:
        def create(connection: Connection) -> None:
            self._lock_namespaces(connection)
            insert = "INSERT INTO namespaces (namespace, properties) VALUES (?, ?) ON CONFLICT DO NOTHING"
            for depth in range(1, len(namespace)):
                connection.execute(insert, (SEPARATOR.join(namespace[:depth]), "{}"))
            done = connection.execute(insert, (SEPARATOR.join(namespace), _text(properties)))
            if done.rowcount == 0:
                raise AlreadyExists(f"Namespace already exists: {'.'.join(namespace)}")

        self._transact(create)

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        def update(connection: Connection) -> tuple[list[str], list[str]]:
            self._lock_namespaces(connection)
            properties = _properties(connection, namespace)
            removed = [key for key in removals if key in properties]
            missing = [key for key in removals if key not in properties]
            kept = {key: value for key, value in properties.items() if key not in removed} | updates
            connection.execute(
                "UPDATE namespaces SET properties = ? WHERE namespace = ?", (_text(kept), SEPARATOR.join(namespace))
            )
            return removed, missing

        return self._transact(update)

    def drop_namespace(self, namespace: Namespace) -> None:
        key = SEPARATOR.join(namespace)
        name = ".".join(namespace)

        def drop(connection: Connection) -> None:
            self._lock_namespaces(connection)
            counted = connection.execute(
                "SELECT kind, count(*) FROM tables WHERE namespace = ? GROUP BY kind ORDER BY kind", (key,)
            ).fetchall()
            below = connection.execute(
                "SELECT count(*) FROM namespaces WHERE namespace > ? AND namespace < ?", _below(namespace)
            ).fetchone()[0]
            inside = [f"{count} {kind}(s)" for kind, count in counted] + ([f"{below} namespace(s)"] * bool(below))
            if inside:
                raise NamespaceNotEmpty(f"Namespace {name} is not empty. Contains {', '.join(inside)}.")
            if connection.execute("DELETE FROM namespaces WHERE namespace = ?", (key,)).rowcount == 0:
                raise NoSuchNamespace(namespace)

        try:
            self._transact(drop)
        except Violated as error:
            raise NamespaceNotEmpty(f"Namespace {name} is not empty. A table was just created in it.") from error

    def entries(self, namespace: Namespace | None, kind: Kind) -> list[tuple[TableIdent, Pointer]]:
        select = f"SELECT namespace, name, {_POINTER} FROM tables WHERE kind = ?"
        with self._read() as connection:
            if namespace is None:
                rows = connection.execute(f"{select} ORDER BY namespace, name", (kind.value,)).fetchall()
            else:
                _properties(connection, namespace)
                parameters = (kind.value, SEPARATOR.join(namespace))
                rows = connection.execute(f"{select} AND namespace = ? ORDER BY name", parameters).fetchall()
        return [(TableIdent(_levels(row[0]), row[1]), _pointer(row[2:])) for row in rows]

    def entry(self, ident: TableIdent) -> Pointer | None:
        with self._read() as connection:
            return _entry(connection, ident)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        # In one order for everybody, so that two transactions never wait for each other in a circle.
        ordered = sorted(swaps, key=lambda swap: swap.ident)

        def swap_all(connection: Connection) -> None:
            if any(swap.takes_location for swap in ordered):
                # Two of them at once would not see each other's.
                self._lock_namespaces(connection)
            for swap in ordered:
                if swap.takes_location:
                    location = swap.pointer.location
                    refuse_overlap(location, _overlapping(connection, folder_place_of(location), swap.ident))
                if not _swap_one(connection, swap):
                    raise Lost
            self._tell_others(connection, [swap.ident for swap in ordered])

        try:
            self._transact(swap_all, is_one_write=len(ordered) == 1)
        except Lost:
            return False
        except Violated:
            # The namespace went away under a table that was being created.
            for swap in ordered:
                self.namespace_properties(swap.ident.namespace)
            return False
        return True

    def rename(self, source: TableIdent, destination: TableIdent, kind: Kind) -> None:
        def move(connection: Connection) -> None:
            found = _entry(connection, source)
            if found is None or found.kind is not kind:
                raise _missing(source, kind)
            _properties(connection, destination.namespace)
            taken = _entry(connection, destination)
            if taken is not None:
                raise _taken(source, destination, kind, taken.kind)
            moved = connection.execute(
                "UPDATE tables SET namespace = ?, name = ? WHERE namespace = ? AND name = ? AND kind = ?",
                (*_key(destination), *_key(source), kind.value),
            )
            if moved.rowcount == 0:
                raise _missing(source, kind)

        try:
            self._transact(move)
        except Violated as error:
            self.namespace_properties(destination.namespace)
            raise _taken(source, destination, kind, kind) from error

    def drop(self, ident: TableIdent, kind: Kind) -> Pointer:
        def delete(connection: Connection) -> Pointer:
            gone = connection.execute(
                f"DELETE FROM tables WHERE namespace = ? AND name = ? AND kind = ? RETURNING {_POINTER}",
                (*_key(ident), kind.value),
            ).fetchall()
            if not gone:
                raise _missing(ident, kind)
            return _pointer(gone[0])

        return self._transact(delete)

    def overlapping(self, place: str, besides: TableIdent) -> list[tuple[TableIdent, str]]:
        with self._read() as connection:
            return _overlapping(connection, place, besides)

    def mark(self, key: str) -> Mark | None:
        with self._read() as connection:
            row = connection.execute(
                "SELECT key, request, status, body, time_ms FROM marks WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else Mark(row[0], row[1], row[2], bytes(row[3]), row[4])

    def remember(self, mark: Mark) -> None:
        self._transact(lambda connection: write_mark(connection, mark, "ON CONFLICT DO NOTHING"))


def write_mark(connection: Connection, mark: Mark, on_conflict: str = "") -> None:
    """Keep a mark, and delete those that are too old to be asked for."""
    connection.execute("DELETE FROM marks WHERE time_ms < ?", (mark.time_ms - MARK_AGE_MS_MAX,))
    connection.execute(
        f"INSERT INTO marks (key, request, status, body, time_ms) VALUES (?, ?, ?, ?, ?) {on_conflict}",
        (mark.key, mark.request, mark.status, mark.body, mark.time_ms),
    )


def _swap_one(connection: Connection, swap: Swap) -> bool:
    to = swap.pointer
    marks = msgspec.json.encode(to.marks).decode()
    values = (to.metadata_location, to.location, to.snapshot_id, marks, to.kind.value, to.details)
    if swap.expected is None:
        _properties(connection, swap.ident.namespace)
        done = connection.execute(
            f"INSERT INTO tables (namespace, name, {_POINTER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (*_key(swap.ident), *values),
        )
    else:
        done = connection.execute(
            "UPDATE tables SET metadata_location = ?, location = ?, snapshot_id = ?, marks = ?, kind = ?, details = ?"
            " WHERE namespace = ? AND name = ? AND metadata_location = ?",
            (*values, *_key(swap.ident), swap.expected),
        )
    return done.rowcount == 1


def _overlapping(connection: Connection, place: str, besides: TableIdent) -> list[tuple[TableIdent, str]]:
    above = [each for folder in (place, *folders_above(place)) for each in spellings(folder)]
    above += [f"{each}/" for each in above]
    below = [f"{each}/" for each in spellings(place)]
    marks = ", ".join("?" * len(above))
    starts = " OR ".join("substr(location, 1, ?) = ?" for _ in below)
    rows = connection.execute(
        f"SELECT namespace, name, location FROM tables WHERE location IN ({marks}) OR {starts}",
        (*above, *(value for each in below for value in (len(each), each))),
    ).fetchall()
    found = [(TableIdent(_levels(row[0]), row[1]), str(row[2])) for row in rows]
    return [(ident, location) for ident, location in found if ident != besides]


def refuse_overlap(location: str, others: Sequence[tuple[TableIdent, str]]) -> None:
    """Refuse a location that is, holds, or lies in the folder of another table or view."""
    if others:
        ident, taken = others[0]
        raise Invalid(f"location is taken. expected=a folder of its own got={location!r:.300}, {ident} is at {taken!r}")


def _missing(ident: TableIdent, kind: Kind) -> NotFound:
    match kind:
        case Kind.TABLE:
            return NoSuchTable(ident)
        case Kind.VIEW:
            return NoSuchView(ident)
        case Kind.GENERIC:
            return NoSuchGenericTable(ident)


def _taken(source: TableIdent, destination: TableIdent, kind: Kind, by: Kind) -> AlreadyExists:
    if kind is by is Kind.TABLE:
        return AlreadyExists(f"Table already exists: {destination}")
    return AlreadyExists(f"Cannot rename {source} to {destination}. {_NAMES[by]} already exists")


def _properties(connection: Connection, namespace: Namespace) -> dict[str, str]:
    row = connection.execute(
        "SELECT properties FROM namespaces WHERE namespace = ?", (SEPARATOR.join(namespace),)
    ).fetchone()
    if row is None:
        raise NoSuchNamespace(namespace)
    return msgspec.json.decode(row[0], type=dict[str, str])


def _entry(connection: Connection, ident: TableIdent) -> Pointer | None:
    select = f"SELECT {_POINTER} FROM tables WHERE namespace = ? AND name = ?"
    row = connection.execute(select, _key(ident)).fetchone()
    return None if row is None else _pointer(row)


def _pointer(row: Sequence[Any]) -> Pointer:
    return Pointer(row[0], row[1], row[2], _decode_marks(row[3]), Kind(row[4]), row[5])


def _below(namespace: Namespace) -> tuple[str, str]:
    key = SEPARATOR.join(namespace)
    return key + SEPARATOR, key + SEPARATOR_AFTER


def _key(ident: TableIdent) -> tuple[str, str]:
    return SEPARATOR.join(ident.namespace), ident.name


def _levels(text: str) -> Namespace:
    return tuple(text.split(SEPARATOR))


def _text(properties: dict[str, str]) -> str:
    return msgspec.json.encode(properties).decode()
