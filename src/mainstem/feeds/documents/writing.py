"""Writes: decided against the current state, made durable in the log, applied, and only then answered.

A `Unit` is one command, or one transaction. It decides on documents while it holds them (`drafts`), and hands its
batches to `Writer`, which puts them through the gate into the log. What is durable is applied by `service`, in the
log's order, before anybody who waits hears of it.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bson.binary import Binary
from bson.objectid import ObjectId

from mainstem.documents import matcher
from mainstem.feeds.documents.carrying import Writer
from mainstem.feeds.documents.checks import check_name
from mainstem.feeds.documents.drafts import Busy, Draft, document_hold
from mainstem.feeds.documents.errors import DuplicateKey, NotValid, WriteConflict
from mainstem.feeds.documents.indexes import Entries
from mainstem.feeds.documents.reading import View
from mainstem.feeds.documents.spilling import Found
from mainstem.feeds.documents.state import COLLECTIONS, Collection
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.batches import (
    DocumentBatch,
    DocumentOperation,
    Kind,
)
from mainstem.wire.mongo.frames import decode_document, encode_document, id_document
from mainstem.wire.mongo.keys import key_text
from mainstem.wire.mongo.ordered import ordered

TRANSACTION_BYTES_MAX = 40 * 1024 * 1024
T = TypeVar("T")


class Retry(NamedTuple):
    """Which command of which session a unit is, should it be retried."""

    session: bytes
    number: int


class Change(NamedTuple):
    """How one document is to change: the new one, what changed for change streams, and whether it is a new one."""

    document: bytes
    values: dict[str, Any]
    kind: Kind
    description: bytes | None


class Unit:
    """One command's writes, or one transaction's."""

    def __init__(
        self,
        writer: Writer,
        *,
        retry: Retry | None = None,
        view: View | None = None,
        snapshot_hlc: int | None = None,
    ) -> None:
        self.writer = writer
        self.state = writer.state
        self.retry = retry
        self.draft = Draft()
        self.is_transaction = snapshot_hlc is not None
        self._snapshot_hlc = snapshot_hlc
        self.bypasses_validation = False
        self.view = view or View(self.state, overlay=self.draft.overlay)

    # Deciding

    async def attempt(self, action: Callable[[], T]) -> T:
        """Run an action that decides on documents and holds them. Where somebody else holds one, what was decided so
        far goes to the log first, so that no two units wait for each other."""
        while True:
            try:
                return action()
            except Busy as busy:
                if self.is_transaction:
                    raise WriteConflict from None
                await self.flush()
                # It may have let go while this unit was written: no unit would wake a waiter then.
                if busy.holder.holds:
                    await busy.holder.wait()

    async def flush(self) -> None:
        """Make what was decided so far durable."""
        draft = self.draft
        if not draft.operations:
            self.writer.held.release(draft)
            return
        retry = self.retry
        batch = DocumentBatch(
            operations=tuple(draft.operations),
            session=None if retry is None else retry.session,
            number=None if retry is None else retry.number,
            transaction=self.is_transaction,
            answers=draft.answers,
        )
        try:
            await self.writer.carry(draft, batch)
        finally:
            draft.clear()

    async def settled(self) -> None:
        """Wait until what is on its way to the log has an outcome, good or bad."""
        while self.draft.is_carried:
            await self.draft.wait()

    def give_up(self) -> None:
        """Nothing more of it is to be written. What is on its way to the log goes on."""
        if not self.draft.is_carried:
            self.draft.clear()
            self.writer.held.release(self.draft)

    def hold_documents(self, key: bytes, *collections: Collection) -> None:
        """Hold the documents of one id in several collections, or none of them. Raises Busy."""
        self._hold([document_hold(each, key) for each in collections])

    def _hold(self, wanted: Iterable[Any]) -> None:
        self.writer.held.take(self.draft, wanted)

    # Collections

    def find_collection(self, database: str, name: str) -> Collection | None:
        """A collection, as this unit sees it."""
        place = (database, name)
        if place in self.draft.described:
            described = self.draft.described[place]
            if described is None:
                return None
            known = self.state.find(database, name)
            return Collection(known.number if known else 0, database, name, described)
        return self.state.find(database, name)

    def ensure_collection(self, database: str, name: str, options: Mapping[str, Any] | None = None) -> Collection:
        """The collection, made if it is not there. Raises Busy where somebody else is making it."""
        found = self.find_collection(database, name)
        if found is not None:
            return found
        check_name(database, name)
        document = {"_id": name, "options": dict(options or {}), "indexes": [], "uuid": new_uuid(self.writer.new_id())}
        self.describe(database, name, document, event={"create": 1})
        found = self.find_collection(database, name)
        assert found is not None
        return found

    async def hold_collection(self, database: str, name: str) -> None:
        """Keep other commands from describing a collection until this unit is written: a command that changes a
        description reads it first."""
        await self.attempt(lambda: self._hold([("collection", database, name)]))

    def describe(
        self, database: str, name: str, document: Mapping[str, Any], event: Mapping[str, Any] | None = None
    ) -> None:
        """Say what a collection is from now on."""
        self._hold([("collection", database, name)])
        exists = self.find_collection(database, name) is not None
        self.draft.described[database, name] = dict(document)
        self.draft.add(
            DocumentOperation(
                kind=Kind.REPLACE if exists else Kind.INSERT,
                database=database,
                collection=COLLECTIONS,
                key=key_text(name),
                id=encode_document({"_id": name}),
                document=encode_document(document),
                silent=True,
                event=None if event is None else encode_document(event),
            ),
            ordered(name),
        )

    def forget(self, database: str, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Say that a collection is not any more. Its documents must be gone."""
        self._hold([("collection", database, name)])
        self.draft.described[database, name] = None
        self.draft.add(
            DocumentOperation(
                kind=Kind.DELETE,
                database=database,
                collection=COLLECTIONS,
                key=key_text(name),
                id=encode_document({"_id": name}),
                silent=True,
                event=None if event is None else encode_document(event),
            ),
            ordered(name),
        )

    # Documents

    def insert(self, collection: Collection, document: bytes, values: dict[str, Any]) -> None:
        """A new document. Raises DuplicateKey, NotValid, Invalid or Busy; then nothing was decided."""
        identity = values["_id"]
        key = ordered(identity)
        holds: list[Any] = [document_hold(collection, key)]
        self._hold(holds)
        # In a transaction this refuses an id that somebody else took after the snapshot.
        if self._current(collection, key) is not None:
            raise DuplicateKey(collection.namespace, "_id_", {"_id": 1}, {"_id": identity})
        self._check_valid(collection, values)
        unique = self._unique(collection, key, None, values)
        self.draft.unique |= unique
        self._add(_insertion(collection, identity, document), key)

    def insert_free(self, collection: Collection, documents: Sequence[tuple[bytes, dict[str, Any]]]) -> int:
        """Insert new documents from the first one on, up to one that needs a closer look: its id is taken or held, it
        does not fit an index, or there is a validator. How many; that one is `insert`'s."""
        if self.is_transaction or collection.options.get("validator"):
            return 0
        place = (collection.database, collection.name)
        keys = [ordered(values["_id"]) for _, values in documents]
        holds = [(*place, key) for key in keys]
        overlay, seen = self.view.overlay_of(collection), set[bytes]()
        for free, key in enumerate(keys):
            if key in seen or key in overlay or self.writer.held.is_taken(holds[free], self.draft):
                break
            seen.add(key)
        else:
            free = len(keys)
        if free == 0:
            return 0
        # Held before they are looked up: so no other unit takes one until this is written.
        self._hold(holds[:free])
        # One that this unit is making has no number yet, and nothing in it.
        if collection.number and (taken := self.state.taken(collection, keys[:free])):
            free = next(at for at, key in enumerate(keys) if key in taken)
        if collection.kept:
            for at, (_, values) in enumerate(documents[:free]):
                try:
                    unique = self._unique(collection, keys[at], None, values)
                except (DuplicateKey, Invalid, Busy):
                    free = at
                    break
                self.draft.unique |= unique
        chosen = documents[:free]
        operations = [_insertion(collection, values["_id"], document) for document, values in chosen]
        self.draft.add_inserts(collection, operations, keys[:free], [values for _, values in chosen])
        return free

    def change(
        self,
        collection: Collection,
        found: Found,
        passes: Callable[[Any], bool],
        compute: Callable[[dict[str, Any]], Change | None],
    ) -> tuple[dict[str, Any], Change | None] | None:
        """Change one document that was found, if it still matches: its values before, and the change. None where it
        does not match any more."""
        key = found.key
        self._hold([document_hold(collection, key)])
        current = self._current(collection, key)
        if current is None:
            return None
        values = current.decoded()
        if not passes(values):
            return None
        change = compute(values)
        if change is None:
            return values, None
        self._check_valid(collection, change.values)
        self.draft.unique |= self._unique(collection, key, values, change.values)
        self._add(
            DocumentOperation(
                kind=change.kind,
                database=collection.database,
                collection=collection.name,
                key=key_text(values["_id"]),
                id=encode_document({"_id": values["_id"]}),
                document=change.document,
                gone=tuple(name for name in values if name not in change.values),
                description=change.description,
                before=current.document if collection.has_images else None,
            ),
            key,
        )
        return values, change

    def remove(
        self, collection: Collection, found: Found, passes: Callable[[Any], bool], *, silent: bool = False
    ) -> dict[str, Any] | None:
        """Delete one document that was found, if it still matches: its values. None where it does not."""
        key = found.key
        self._hold([document_hold(collection, key)])
        current = self._current(collection, key)
        if current is None:
            return None
        values = current.decoded()
        if not passes(values):
            return None
        self.draft.unique |= self._unique(collection, key, values, None)
        self._add(
            DocumentOperation(
                kind=Kind.DELETE,
                database=collection.database,
                collection=collection.name,
                key=key_text(values["_id"]),
                id=encode_document({"_id": values["_id"]}),
                before=current.document if collection.has_images and not silent else None,
                silent=silent,
            ),
            key,
        )
        return values

    def _add(self, operation: DocumentOperation, key: bytes, values: Mapping[str, Any] | None = None) -> None:
        if values is None and operation.document is not None:
            # Decoded from what is stored: of what was computed, a whole number may not be of the type it is stored as.
            values = decode_document(operation.document)
        collection = self.state.find(operation.database, operation.collection)
        self.draft.add(operation, key, values, 0 if collection is None else len(collection.kept))
        if self.is_transaction and self.draft.bytes > TRANSACTION_BYTES_MAX:
            # One batch of the log, so it must fit one.
            raise Invalid(
                f"Total size of the transaction's operations. expected=at most {TRANSACTION_BYTES_MAX} bytes",
                reason="transaction_too_large",
            )

    def _current(self, collection: Collection, key: bytes) -> Found | None:
        current = self.view.get(collection, key)
        if self._snapshot_hlc is None or key in self.view.overlay_of(collection):
            return current
        newest = self.state.get(collection, key) if collection.number else None
        # By what it is, not by the row's clock: that of a row which another door changed column by column stays.
        if (None if newest is None else newest.document) != (None if current is None else current.document):
            raise WriteConflict
        return current

    def _unique(
        self, collection: Collection, key: bytes, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> dict[tuple[str, str, int, bytes], bytes | None]:
        """Check the unique indexes, hold the values that are taken or freed, and say which."""
        changes: dict[tuple[str, str, int, bytes], bytes | None] = {}
        for entries in collection.kept:
            index = entries.index
            had = entries.stored(before)
            has = entries.of(after) if after is not None else set()
            if not index.unique:
                continue
            place = (collection.database, collection.name, index.number)
            self._hold([(*place, entry) for entry in had ^ has])
            for entry in has - had:
                if any(holder != key for holder in self._holders(collection, entries, entry)):
                    assert after is not None
                    raise DuplicateKey(
                        collection.namespace, index.name, dict(index.document["key"]), shown_values(entries, after)
                    )
                changes[(*place, entry)] = key
            changes |= {(*place, entry): None for entry in had - has}
        return changes

    def _holders(self, collection: Collection, entries: Entries, entry: bytes) -> list[bytes]:
        place = (collection.database, collection.name, entries.index.number, entry)
        if place in self.draft.unique:
            holder = self.draft.unique[place]
            return [] if holder is None else [holder]
        return self.state.holders(collection, entries.index, entry) if collection.number else []

    def _check_valid(self, collection: Collection, values: Mapping[str, Any]) -> None:
        options = collection.options
        validator = None if self.bypasses_validation else options.get("validator")
        if not validator or options.get("validationLevel") == "off" or options.get("validationAction") == "warn":
            return
        if not matcher(validator)(values):
            raise NotValid({"failingDocumentId": values.get("_id")})


def _insertion(collection: Collection, identity: Any, document: bytes) -> DocumentOperation:
    return DocumentOperation(
        kind=Kind.INSERT,
        database=collection.database,
        collection=collection.name,
        key=key_text(identity),
        id=id_document(document, identity),
        document=document,
    )


def shown_values(entries: Entries, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an index's fields, as an error shows them."""
    shown: dict[str, Any] = {}
    for field in entries.index.fields:
        node: Any = values
        for part in field.path:
            node = node.get(part) if isinstance(node, Mapping) else None
        shown[field.name] = node
    return shown


def new_uuid(seed: ObjectId) -> Any:
    """A UUID for a collection."""
    return Binary(uuid.uuid5(uuid.NAMESPACE_OID, str(seed)).bytes, 4)
