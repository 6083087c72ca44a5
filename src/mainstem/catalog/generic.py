"""Generic tables: tables of another format than Iceberg, so that one catalog shows the whole lake.

The catalog knows where such a table is and in which format, and nothing of its inside: its writer keeps its own
log beside the data. They share their names with Iceberg tables and views. A pipeline that carries a log into one says
how far it is by the properties `mainstem.position.<log>`, which count as the marks of an Iceberg table's snapshot do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from mainstem.catalog.errors import CommitFailed, NoSuchGenericTable
from mainstem.catalog.locations import Locations
from mainstem.catalog.locks import TableLocks
from mainstem.catalog.metadata.fence import check_fence
from mainstem.catalog.names import Namespace, TableIdent, check_ident
from mainstem.catalog.stores.store import Kind, Pointer, Store, Swap
from mainstem.catalog.views import refuse_taken
from mainstem.model import Invalid
from mainstem.tables.marks import positions_of

FORMAT_LENGTH_MAX = 64
# The version of the table that a position is of: what an Iceberg table's snapshot is.
VERSION_KEY = "mainstem.version"
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class GenericTable:
    """What the catalog knows of a table of another format."""

    name: str
    format: str
    base_location: str
    doc: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


class _Details(msgspec.Struct, frozen=True):
    format: str
    doc: str | None = None
    properties: dict[str, str] = {}


class GenericTables:
    """All generic tables of one warehouse. Every method blocks and may be called from any thread."""

    def __init__(
        self,
        *,
        store: Store,
        locations: Locations,
        locks: TableLocks,
        new_id: Callable[[], str],
        announce: Callable[[TableIdent, Pointer], None],
    ) -> None:
        self._store = store
        self._locations = locations
        self._locks = locks
        self._new_id = new_id
        self._announce = announce

    def list(self, namespace: Namespace) -> list[TableIdent]:
        """The generic tables of a namespace."""
        return [ident for ident, _ in self._store.entries(namespace, Kind.GENERIC)]

    def every(self) -> Sequence[tuple[TableIdent, GenericTable]]:
        """The generic tables of all namespaces."""
        return [(ident, described(ident, pointer)) for ident, pointer in self._store.entries(None, Kind.GENERIC)]

    def load(self, ident: TableIdent) -> GenericTable:
        """What is known of a table."""
        return described(ident, self._existing(ident))

    def create(self, namespace: Namespace, table: GenericTable) -> GenericTable:
        """Enter a table that exists, or will. Its files are its writer's business."""
        ident = check_ident(namespace, table.name)
        if not table.base_location:
            raise Invalid("a generic table is somewhere. expected=base-location got=none")
        if not 0 < len(table.format) <= FORMAT_LENGTH_MAX:
            raise Invalid(f"format is not one. expected=1 to {FORMAT_LENGTH_MAX} characters got={len(table.format)}")
        with self._locks.hold([ident]):
            self._store.namespace_properties(ident.namespace)
            refuse_taken(self._store, ident, Kind.GENERIC)
            location = self._locations.check(table.base_location, ident)
            located = replace(table, format=table.format.lower(), base_location=location)
            pointer = self._pointer(located)
            if not self._store.swap([Swap(ident, None, pointer, takes_location=True)]):
                refuse_taken(self._store, ident, Kind.GENERIC)
                raise CommitFailed(f"Table was created and dropped meanwhile: {ident}")
            self._announce(ident, pointer)
        return located

    def update(self, ident: TableIdent, properties: dict[str, str]) -> GenericTable:
        """Set properties. A position that would go backwards is refused, as an Iceberg table's would be."""
        with self._locks.hold([ident]):
            for _ in range(ATTEMPTS_MAX):
                base = self._existing(ident)
                before = described(ident, base)
                after = replace(before, properties=before.properties | properties)
                pointer = self._pointer(after)
                check_fence(base.marks, pointer.marks, [{"action": "set-properties", "updates": properties}])
                if self._store.swap([Swap(ident, base.metadata_location, pointer)]):
                    self._announce(ident, pointer)
                    return after
        raise CommitFailed(f"Commit failed: lost the race {ATTEMPTS_MAX} times: {ident}")

    def drop(self, ident: TableIdent) -> None:
        """Forget a table; its files stay."""
        with self._locks.hold([ident]):
            self._existing(ident)
            self._store.drop(ident, Kind.GENERIC)

    def _existing(self, ident: TableIdent) -> Pointer:
        pointer = self._store.entry(ident)
        if pointer is None or pointer.kind is not Kind.GENERIC:
            raise NoSuchGenericTable(ident)
        return pointer

    def _pointer(self, table: GenericTable) -> Pointer:
        details = _Details(table.format, table.doc, table.properties)
        return Pointer(
            # Nothing is at this place: it is what changes with each version, for the swap to compare.
            f"{table.base_location}#{self._new_id()}",
            table.base_location,
            _number(table.properties.get(VERSION_KEY)),
            positions_of(table.properties),
            Kind.GENERIC,
            msgspec.json.encode(details).decode(),
        )


def described(ident: TableIdent, pointer: Pointer) -> GenericTable:
    """What is known of the table that a pointer names."""
    details = msgspec.json.decode(pointer.details, type=_Details)
    return GenericTable(ident.name, details.format, pointer.location, details.doc, details.properties)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
