"""Loads of tables that are asked for again and again: the encoded answers, by the request line that they answer.

A metadata file never changes, so an answer is right as long as the store says that the table is still at that file.
This is asked each time; what is spared is to read the request and the document, and to write the answer.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from mainstem.catalog import Catalog, TableIdent
from mainstem.doors.catalog.answers import Answer, whole
from mainstem.doors.http.at_hand import AtHand
from mainstem.wire import iceberg_rest as wire

# Ten thousand tables of a few columns, or a few with long histories.
KEPT_BYTES_MAX = 64 * 1024 * 1024
# One large answer must not push out all the others: at most this part of the room is for one.
ANSWER_SHARE_MAX = 1 / 4
# What an answer costs besides its body.
OVERHEAD_BYTES = 1024


class Line(NamedTuple):
    """All of a request that the answer to a load depends on."""

    raw_path: bytes
    query: bytes
    delegation: bytes


class _Kept(NamedTuple):
    ident: TableIdent
    metadata_location: str
    etag: str
    full: AtHand
    # To a client that has it already.
    unchanged: AtHand


class Loads:
    """The answers to recent loads of one catalog."""

    def __init__(self, catalog: Catalog, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._catalog = catalog
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Line, _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """How much is at hand."""
        return self._bytes

    def find(self, line: Line, if_none_match: bytes = b"") -> AtHand | None:
        """The answer to a load, None where it has to be made. Blocks as long as the store takes to say what is current.

        Raises `NotFound` where the metadata file of the answer went away.
        """
        kept = self._kept.get(line)
        if kept is None or self._catalog.find_metadata(kept.ident) != kept.metadata_location:
            return None
        if if_none_match and wire.is_match(if_none_match.decode("latin-1"), kept.etag):
            return kept.unchanged
        # A table whose metadata went away is broken for every other engine: say so now, not after a restart.
        self._catalog.check_present(kept.metadata_location)
        with self._lock:
            if line in self._kept:
                self._kept.move_to_end(line)
        return kept.full

    def keep(self, line: Line, ident: TableIdent, answer: Answer) -> None:
        """Have the answer to a load at hand for the next one. That to a commit is the same."""
        location, etag = answer.metadata_location, (answer.headers or {}).get("ETag")
        if answer.status != 200 or location is None or etag is None:
            return
        full, unchanged = whole(answer), whole(Answer(304, headers={"ETag": etag}))
        size = _size(full)
        if size > self._bytes_max * ANSWER_SHARE_MAX:
            return
        with self._lock:
            if (old := self._kept.pop(line, None)) is not None:
                self._bytes -= _size(old.full)
            self._kept[line] = _Kept(ident, location, etag, full, unchanged)
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= _size(oldest.full)


def _size(answer: AtHand) -> int:
    return len(answer.body) + OVERHEAD_BYTES
