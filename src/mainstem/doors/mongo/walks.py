"""Finds that hold no document between two batches: what they are about, and where they are."""

from collections.abc import Callable, Iterator

from mainstem.documents import Node
from mainstem.doors.mongo.errors import CommandFailed
from mainstem.feeds.documents.access import Access
from mainstem.feeds.documents.reading import Position, View
from mainstem.feeds.documents.spilling import Found
from mainstem.feeds.documents.state import Collection, State


class Walk:
    """A find in the order of its access. An open cursor of one costs about a kilobyte, whatever it reads."""

    __slots__ = ("_access", "_at", "_before", "_collection", "_is_of", "_left", "_node", "_sent", "_skip", "_state")

    def __init__(
        self,
        state: State,
        collection: Collection,
        node: Node,
        access: Access,
        sent: Callable[[Found], bytes],
        *,
        skip: int,
        limit: int | None,
    ) -> None:
        self._state = state
        self._collection = collection
        self._is_of = (collection.number, collection.uuid)
        self._node = node
        self._access = access
        self._sent = sent
        self._skip = skip
        self._left = limit
        self._at: Position | None = None
        self._before: tuple[Position | None, int, int | None] = (None, skip, limit)

    @property
    def ranges(self) -> int:
        """How many ranges it walks through: of each the bounds are kept."""
        return len(self._access.ranges or ())

    def source(self) -> Iterator[bytes | None]:
        """The documents from where it is."""
        self._check()
        if self._left == 0:
            return
        found = View(self._state).query(
            self._collection, self._node, skip=self._skip, limit=self._left, access=self._access, after=self._at
        )
        for each in found:
            if each is None:
                yield None
                continue
            self._before = (self._at, self._skip, self._left)
            self._at, self._skip = Position(each.place, each.key, each.entry), 0
            self._left = None if self._left is None else self._left - 1
            yield self._sent(each)

    def back(self) -> None:
        """The document that it gave last is wanted again."""
        self._at, self._skip, self._left = self._before

    def _check(self) -> None:
        place = (self._collection.database, self._collection.name)
        there = self._state.find(*place)
        # A collection that is made anew may get the number of one that is gone.
        if there is None or (there.number, there.uuid) != self._is_of:
            raise CommandFailed(175, f"collection dropped. UUID of '{self._collection.namespace}' is another one now")
        index = self._access.index
        if index is not None and all(entries.index.number != index.number for entries in there.indexes):
            raise CommandFailed(175, f"index '{index.name}' dropped")
