"""A store that shows what is in an Iceberg REST catalog of somebody else's: tables are committed to there, not here.

The pipeline and engines commit to that catalog. Here its tables are looked at every so often, so that everything in the
gateway that asks the catalog (flush, lag, queries, the console, maintenance) goes on as with a catalog that several
gateways share. What is seen is as old as the last look, and always whole: a table's snapshot and its marks are of one
metadata file. Tables in Delta, which such a catalog does not know, are listed in the data folder's own.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mainstem.catalog.metadata.boundaries import check_document
from mainstem.catalog.metadata.fence import covered_marks
from mainstem.catalog.names import Namespace, TableIdent
from mainstem.catalog.stores.remote_client import RemoteClient, RemoteTable
from mainstem.catalog.stores.store import Kind, Mark, Pointer, Store, Swap
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model import Corrupt, Denied, MainstemError, NotFound, Overloaded

_logger = logging.getLogger(__name__)

LOADED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """A table as it was seen last."""

    pointer: Pointer
    etag: RemoteTable


class RemoteStore:
    """See `Store`. `local` keeps what the other catalog has no place for."""

    def __init__(self, client: RemoteClient, local: Store, uri: str, poll_s: float) -> None:
        self._client = client
        self._local = local
        self._uri = uri
        self._poll_s = poll_s
        self._tables: dict[TableIdent, _Known] = {}
        self._namespaces: frozenset[Namespace] = frozenset()
        self._threads = ThreadPoolExecutor(LOADED_AT_ONCE, "catalog-look")
        # Tables that could not be read, so that each is told of once.
        self._unreadable: set[TableIdent] = set()
        self._looking = threading.Lock()
        self._has_looked = False
        # Before anything is accepted: the log has to know how far the tables are.
        self.look()

    def look(self) -> list[TableIdent]:
        """See what is there now; returns the tables that changed. Raises Overloaded or Denied, and forgets nothing."""
        with self._looking:
            namespaces = frozenset(self._client.namespaces())
            listed = self._threads.map(self._client.tables, sorted(namespaces))
            idents = [ident for found in listed for ident in found]
            seen = dict(zip(idents, self._threads.map(self._load, idents), strict=True))
            before = self._tables
            self._tables = {ident: known for ident, known in seen.items() if known is not None}
            self._namespaces = namespaces
            self._has_looked = True
            after = self._tables
            return [
                ident
                for ident in sorted({*before, *after})
                if before.get(ident) is None
                or after.get(ident) is None
                or before[ident].pointer.metadata_location != after[ident].pointer.metadata_location
            ]

    def _load(self, ident: TableIdent) -> _Known | None:
        known = self._tables.get(ident)
        try:
            found = self._client.load(ident, None if known is None else known.etag)
        except (Denied, Corrupt, Overloaded) as error:
            if isinstance(error, Overloaded) and not self._has_looked:
                # The start must not take a table that it cannot see for one that is not there.
                raise
            # One table that we may not see, or that the catalog cannot show, keeps none of the others from view.
            self._tell_of(ident, error)
            return known
        if found is None or (known is not None and found is known.etag):
            return None if found is None else known
        try:
            check_document(found.document, found.location)
            folder = str(found.document["location"]).rstrip("/")
            pointer = Pointer(
                found.location, folder, current_snapshot_id(found.document), covered_marks(found.document)
            )
        except (MainstemError, KeyError, TypeError, ValueError) as error:
            self._tell_of(ident, error)
            return None
        self._unreadable.discard(ident)
        # Only what is needed to ask again: documents may be large, and are read by their locations.
        return _Known(pointer, RemoteTable(found.location, {}, found.etag))

    def _tell_of(self, ident: TableIdent, error: Exception) -> None:
        if ident not in self._unreadable:
            _logger.warning("a table of the catalog cannot be read: %s", error, extra={"table": str(ident)})
        self._unreadable.add(ident)

    @property
    def is_embedded(self) -> bool:
        return False

    def namespaces(self, parent: Namespace) -> list[Namespace]:
        below = {
            each[: len(parent) + 1] for each in self._namespaces if each[: len(parent)] == parent and each != parent
        }
        return sorted(below | set(self._local.namespaces(parent)) if self._is_local(parent) else below)

    def _is_local(self, namespace: Namespace) -> bool:
        try:
            return not namespace or self._local.namespace_properties(namespace) is not None
        except NotFound:
            return False

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        return {} if namespace in self._namespaces else self._local.namespace_properties(namespace)

    def create_namespace(self, namespace: Namespace, properties: dict[str, str]) -> None:
        # For tables in Delta: the pipeline makes its others where the tables are.
        self._local.create_namespace(namespace, properties)

    def update_namespace(
        self, namespace: Namespace, removals: Sequence[str], updates: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        raise self._refusal(".".join(namespace))

    def drop_namespace(self, namespace: Namespace) -> None:
        raise self._refusal(".".join(namespace))

    def entries(self, namespace: Namespace | None, kind: Kind) -> list[tuple[TableIdent, Pointer]]:
        if kind is not Kind.TABLE:
            return [] if kind is Kind.VIEW else self._local.entries(namespace, kind)
        if namespace is not None and namespace not in self._namespaces:
            return self._local.entries(namespace, kind)
        return sorted(
            (ident, known.pointer) for ident, known in self._tables.items() if namespace in (None, ident.namespace)
        )

    def entry(self, ident: TableIdent) -> Pointer | None:
        known = self._tables.get(ident)
        if known is not None:
            return known.pointer
        found = self._local.entry(ident)
        return found if found is not None and found.kind is Kind.GENERIC else None

    def swap(self, swaps: Sequence[Swap]) -> bool:
        for swap in swaps:
            if swap.pointer.kind is not Kind.GENERIC:
                raise self._refusal(str(swap.ident))
        return self._local.swap(swaps)

    def rename(self, source: TableIdent, destination: TableIdent, kind: Kind) -> None:
        raise self._refusal(str(source))

    def drop(self, ident: TableIdent, kind: Kind) -> Pointer:
        if kind is Kind.GENERIC:
            return self._local.drop(ident, kind)
        raise self._refusal(str(ident))

    def overlapping(self, place: str, besides: TableIdent) -> list[tuple[TableIdent, str]]:
        return self._local.overlapping(place, besides)

    def mark(self, key: str) -> Mark | None:
        return self._local.mark(key)

    def remember(self, mark: Mark) -> None:
        self._local.remember(mark)

    def watch(self) -> "RemoteWatch":
        return RemoteWatch(self, self._poll_s)

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()
        self._local.close()

    def _refusal(self, name: str) -> Denied:
        return Denied(f"the tables are in a catalog of yours: change them there. got={name} catalog={self._uri}")


class RemoteWatch:
    """Looks every so often. For one thread at a time."""

    def __init__(self, store: RemoteStore, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._waiting = threading.Event()

    def wait(self, timeout_s: float) -> list[TableIdent] | None:
        """See `Watch`."""
        self._waiting.wait(min(self._poll_s, timeout_s))
        try:
            return self._store.look()
        except Denied as error:
            raise Overloaded(str(error), retry_after_s=1.0) from error

    def close(self) -> None:
        """Nothing is missed: the next look compares with the last."""
