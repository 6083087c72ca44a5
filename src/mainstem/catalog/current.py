"""What is current: each table's pointer and metadata, and who hears when they change."""

import logging
from collections.abc import Callable

from mainstem.catalog.errors import NoSuchTable
from mainstem.catalog.files import Files
from mainstem.catalog.generic import described
from mainstem.catalog.metadata.documents import Documents, Stored
from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.store import Kind, Pointer, Store
from mainstem.catalog.values import Committed
from mainstem.model import Corrupt, Invalid

_logger = logging.getLogger(__name__)


class Current:
    """Pointers from the store, documents by them. Every method blocks and may be called from any thread."""

    def __init__(self, store: Store, files: Files, documents: Documents) -> None:
        self._store = store
        self._files = files
        self._documents = documents
        self._listeners: list[Callable[[Committed], None]] = []

    def on_commit(self, listener: Callable[[Committed], None]) -> None:
        """Call `listener` after each commit is durable."""
        self._listeners.append(listener)

    def find(self, ident: TableIdent) -> Pointer | None:
        """Where a table is; None where there is none of that name."""
        pointer = self._store.entry(ident)
        return pointer if pointer is not None and pointer.kind is Kind.TABLE else None

    def existing(self, ident: TableIdent) -> Pointer:
        """The same. Raises NoSuchTable."""
        pointer = self.find(ident)
        if pointer is None:
            raise self._no_such_table(ident)
        return pointer

    def _no_such_table(self, ident: TableIdent) -> NoSuchTable:
        """Says so where there is a table after all, which this protocol cannot show."""
        other = self._store.entry(ident)
        if other is None or other.kind is not Kind.GENERIC:
            return NoSuchTable(ident)
        known = described(ident, other)
        return NoSuchTable(ident, f". There is a {known.format} table of that name, at {known.base_location}")

    def stored(self, pointer: Pointer) -> Stored:
        """The metadata that a pointer names."""
        try:
            return self._documents.read(pointer.metadata_location)
        except Invalid as error:
            raise corrupt(pointer, error) from error

    def hint(self, pointer: Pointer) -> None:
        """Tell engines that read the folder without the catalog which version is current."""
        try:
            self._files.write_hint(pointer.location, pointer.metadata_location)
        except (OSError, Invalid) as error:
            # The commit is durable; readers of the folder see an older version until the next one.
            _logger.warning("the hint of a table's version was not written: %s", error)

    def announce(self, ident: TableIdent, pointer: Pointer) -> None:
        """Tell the listeners of a commit."""
        committed = Committed(ident.table_name, pointer.snapshot_id, pointer.marks, pointer.metadata_location)
        for listener in self._listeners:
            try:
                listener(committed)
            except Exception:
                # The commit is durable; a listener's trouble must not tell the client otherwise.
                _logger.exception("a listener failed after a commit", extra={"table": str(ident)})


def corrupt(pointer: Pointer, error: Invalid) -> Corrupt:
    """The error of metadata that cannot be read."""
    return Corrupt(f"table metadata cannot be read. got={error}", place=pointer.metadata_location)
