"""Metadata files as documents: naming, reading, writing, and keeping the recent ones at hand.

A metadata file never changes once written, so what is cached can never be stale.
"""

import gzip
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from mainstem.catalog.files import Files
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import check_document, normalized
from mainstem.model import Invalid

CACHE_BYTES_MAX = 32 * 1024 * 1024
# Metadata files of one transaction that are written at a time.
WRITTEN_AT_ONCE = 16
# The oldest entries of these lists go, new ones come at the end, and all between stay as they are.
GROWING = ("snapshots", "snapshot-log", "metadata-log")

Buffer = bytes | memoryview
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_VERSION = re.compile(r"(?:^|/)v?(\d+)[-.][^/]*$")


@dataclass(frozen=True, slots=True)
class Stored:
    """A document and the very bytes that are its file, so that it is encoded once and sent many times.

    `spans` says where in the bytes the lists stand that grow with a table: the next version copies them from here
    and encodes only what it adds. None: the bytes are not of our making.
    """

    document: Document
    raw: bytes
    spans: dict[str, tuple[int, int]] | None = None


class _Outline(msgspec.Struct, gc=False):
    """What makes bytes a metadata file, in a form that skips over all the rest of it."""

    format_version: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="format-version")
    location: str


def _decode(raw: bytes, location: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise Invalid(f"metadata is not JSON. expected=a metadata file got={error} at {location}") from error


def prepare_table(document: object, place: str) -> Document:
    """A table's document as the rest of the catalog expects it."""
    return normalized(check_document(document, place))


class Documents:
    """Reads and writes metadata files, with a bounded cache of the most recently used."""

    def __init__(
        self,
        files: Files,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        prepare: Callable[[object, str], Document] = prepare_table,
    ) -> None:
        self._files = files
        self._prepare = prepare
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[str, Stored] = OrderedDict()
        self._cache_bytes = 0
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        """How much is at hand, counted in bytes of the files."""
        return self._cache_bytes

    def read(self, location: str) -> Stored:
        """The document at a location. Raises `NotFound` where there is none, or no longer."""
        if (stored := self._cached(location)) is not None:
            return stored
        raw = self._files.read(location)
        stored = Stored(self._prepare(_decode(raw, location, object), location), raw)
        self._keep(location, stored)
        return stored

    def read_raw(self, location: str) -> bytes:
        """The bytes of a document, looked through and not read: most loads pass them on. Raises as `read` does."""
        if (stored := self._cached(location)) is not None:
            return stored.raw
        raw = self._files.read(location)
        _decode(raw, location, _Outline)
        return raw

    def _cached(self, location: str) -> Stored | None:
        with self._lock:
            if (stored := self._cache.get(location)) is not None:
                self._cache.move_to_end(location)
        if stored is not None:
            # A table whose metadata went away is broken for every other engine: say so now, not after a restart.
            self._files.check_present(location)
        return stored

    def write(self, location: str, document: Document, base: Stored | None = None) -> Stored:
        """Write a document to a new file; durable when this returns. It is cached by `keep`, once it is committed.

        `base` is the version that the document was made from.
        """
        stored = self.encoded(document, base)
        self._write_new(location, stored)
        return stored

    def write_all(self, wanted: Mapping[K, tuple[str, Document, Stored | None]]) -> dict[K, Stored]:
        """Write documents (location, document, base): what `write` does to one. Raises once no write is under way.

        The files of a large transaction are written side by side: nearly all of that time is waiting for the store.
        """
        encoded = {key: self.encoded(document, base) for key, (_, document, base) in wanted.items()}
        if len(wanted) <= 1:
            for key, (location, _, _) in wanted.items():
                self._write_new(location, encoded[key])
            return encoded
        with ThreadPoolExecutor(WRITTEN_AT_ONCE, "metadata") as threads:
            list(threads.map(lambda key: self._write_new(wanted[key][0], encoded[key]), wanted))
        return encoded

    def _write_new(self, location: str, stored: Stored) -> None:
        zipped = location.endswith(".gz.metadata.json")
        self._files.write_new(location, gzip.compress(stored.raw) if zipped else stored.raw)

    def encoded(self, document: Document, base: Stored | None = None) -> Stored:
        """A document with its bytes, in no file yet."""
        raw, spans = encode_document(document, base)
        return Stored(self._prepare(document, "a new document"), raw, spans)

    def keep(self, location: str, stored: Stored) -> None:
        """Have a committed document at hand for the next reader."""
        self._keep(location, stored)

    def _keep(self, location: str, stored: Stored) -> None:
        with self._lock:
            if (old := self._cache.pop(location, None)) is not None:
                self._cache_bytes -= len(old.raw)
            self._cache[location] = stored
            self._cache_bytes += len(stored.raw)
            while self._cache_bytes > self._cache_bytes_max and self._cache:
                _, oldest = self._cache.popitem(last=False)
                self._cache_bytes -= len(oldest.raw)


def encode_document(document: Document, base: Stored | None) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The bytes of a document, and where its growing lists stand in them."""
    rest = msgspec.json.encode({key: value for key, value in document.items() if key not in GROWING})
    # Without its closing brace: the lists that grow stand at the end, each of them after a comma and its name.
    parts: list[Buffer] = [memoryview(rest)[:-1]]
    spans: dict[str, tuple[int, int]] = {}
    size = len(rest) - 1
    for key in (growing for growing in GROWING if growing in document):
        lead = b',"%s":' % key.encode()
        encoded = _encode_grown(key, document[key], base)
        start = size + len(lead)
        size = start + sum(len(part) for part in encoded)
        spans[key] = (start, size)
        parts += [lead, *encoded]
    # Joined once: a long-lived table's document is megabytes.
    return b"".join([*parts, b"}"]), spans


def _encode_grown(key: str, entries: list[Document], base: Stored | None) -> list[Buffer]:
    span = base.spans.get(key) if base is not None and base.spans is not None else None
    if base is not None and span is not None and entries:
        old = base.document[key]
        # Entries that were kept are the very same objects, which makes these comparisons cheap.
        gone = next((place for place, entry in enumerate(old) if entry is entries[0]), None)
        kept = 0 if gone is None else len(old) - gone
        if kept and entries[:kept] == old[gone:]:
            # As long as the list of those that are gone, for the comma that follows them is in place of its end.
            start = span[0] + (len(msgspec.json.encode(old[:gone])) if gone else 1)
            added = msgspec.json.encode(entries[kept:])
            comma = b"," if len(entries) > kept else b""
            return [b"[", memoryview(base.raw)[start : span[1] - 1], comma, added[1:]]
    return [msgspec.json.encode(entries)]


def next_location(document: Document, previous: str | None, unique: str) -> str:
    """The name of a table's next metadata file: a number that grows, and an id of its own."""
    properties = document["properties"]
    folder = properties.get("write.metadata.path") or f"{document['location']}/metadata"
    suffix = ".gz.metadata.json" if properties.get("write.metadata.compression-codec") == "gzip" else ".metadata.json"
    found = _VERSION.search(previous) if previous else None
    version = int(found.group(1)) + 1 if found else 0
    return f"{folder.rstrip('/')}/{version:05d}-{unique}{suffix}"
