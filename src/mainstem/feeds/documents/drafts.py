"""What one command or transaction is about to write: operations, what they hold, and the view that includes them.

A draft holds the documents and unique values that it touches, from the moment it looks at them until its batch is
durable and applied, or given up. So no two writers decide on the same document at once, while writers of different
documents share the log's group commit.
"""

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from mainstem.feeds.documents.reading import Overlay
from mainstem.feeds.documents.shapes import Shapes, shape_of
from mainstem.feeds.documents.state import Collection
from mainstem.wire.mongo.batches import DocumentOperation, Kind

# At so much work or so many bytes a command's batch goes to the log, and the next one begins. A batch is applied in one
# step, which everybody waits for: 1 is a new document of a collection without indexes, 4 to 10 microseconds.
WORK_MAX = 5_000
BYTES_MAX = 16 * 1024 * 1024
OPERATION_OVERHEAD_BYTES = 200


class Busy(Exception):
    """Another draft holds what this one needs."""

    def __init__(self, holder: "Draft") -> None:
        super().__init__("held by another writer")
        self.holder = holder


class Held:
    """Who holds what. Belongs to the event loop."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, Draft] = {}

    def take(self, draft: "Draft", wanted: Iterable[Hashable]) -> None:
        """Hold all of them, or none. Raises Busy."""
        fresh = []
        for each in wanted:
            holder = self._holders.get(each)
            if holder is None:
                fresh.append(each)
            elif holder is not draft:
                raise Busy(holder)
        for each in fresh:
            self._holders[each] = draft
        draft.holds.update(fresh)

    def is_taken(self, wanted: Hashable, draft: "Draft") -> bool:
        """Whether another draft holds it."""
        holder = self._holders.get(wanted)
        return holder is not None and holder is not draft

    def release(self, draft: "Draft") -> None:
        """Let go of everything, and wake those who wait."""
        for each in draft.holds:
            del self._holders[each]
        draft.holds.clear()
        draft.tell()


class Draft:
    """One batch in the making."""

    def __init__(self) -> None:
        self.operations: list[DocumentOperation] = []
        # The ids of the operations' documents as ordered bytes, in the same order.
        self.keys: list[bytes] = []
        self.answers: dict[int, bytes] = {}
        self.overlay: Overlay = {}
        # Collections as they will be, by name.
        self.described: dict[tuple[str, str], dict[str, Any] | None] = {}
        # Unique values that the draft gives to a document, or frees: by collection, index and entry.
        self.unique: dict[tuple[str, str, int, bytes], bytes | None] = {}
        # The shapes of the documents that it writes, by collection (`shapes`).
        self.shapes: Shapes = {}
        self.holds: set[Hashable] = set()
        # Whether its batch is on its way to the log: what it holds is let go when that has an outcome.
        self.is_carried = False
        self.bytes = 0
        self.work = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        """Whether the batch should go to the log before more is added."""
        return self.work >= WORK_MAX or self.bytes >= BYTES_MAX

    def add(
        self, operation: DocumentOperation, key: bytes, values: Mapping[str, Any] | None = None, indexes: int = 0
    ) -> None:
        """One operation more; `values` is its document decoded, `indexes` are how many have to be kept up."""
        self.work += (1 if operation.kind is Kind.INSERT else 2) if not indexes else 2 + 2 * indexes
        self.operations.append(operation)
        self.keys.append(key)
        self.bytes += OPERATION_OVERHEAD_BYTES + len(operation.id)
        for part in (operation.document, operation.description, operation.before):
            self.bytes += len(part) if part is not None else 0
        place = (operation.database, operation.collection)
        self.overlay.setdefault(place, {})[key] = operation.document
        if values is not None:
            self.shapes.setdefault(place, set()).add(shape_of(values))

    def add_inserts(
        self,
        collection: Collection,
        operations: Sequence[DocumentOperation],
        keys: Sequence[bytes],
        values: Iterable[Mapping[str, Any]],
    ) -> None:
        """New documents of one collection, as `add` takes each."""
        place, indexes = (collection.database, collection.name), len(collection.kept)
        self.work += len(operations) * (1 if not indexes else 2 + 2 * indexes)
        self.operations += operations
        self.keys += keys
        documents = [operation.document for operation in operations]
        self.bytes += sum([len(document) for document in documents if document is not None])
        self.bytes += sum([OPERATION_OVERHEAD_BYTES + len(operation.id) for operation in operations])
        self.overlay.setdefault(place, {}).update(zip(keys, documents, strict=True))
        self.shapes.setdefault(place, set()).update(map(shape_of, values))

    def clear(self) -> None:
        """The batch is done with: begin the next one."""
        self.operations, self.keys, self.answers = [], [], {}
        self.overlay.clear()
        self.described, self.unique, self.shapes = {}, {}, {}
        self.bytes = self.work = 0

    async def wait(self) -> None:
        """Until it lets go of what it holds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    def tell(self) -> None:
        """Wake those who wait."""
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if not each.done():
                each.set_result(None)


def document_hold(collection: Collection | tuple[str, str], key: bytes) -> Hashable:
    """What stands for a document among the things that are held."""
    place = collection if isinstance(collection, tuple) else (collection.database, collection.name)
    return (*place, key)
