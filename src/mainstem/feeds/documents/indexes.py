"""Secondary indexes: which entries a document has in one. Pure; `state` keeps the entries, `access` chooses an index.

An entry is the concatenation of the fields' values as ordered bytes, so a store of bytes can look them up and walk them
in order. An array has an entry per element. What a document lacks is null.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mainstem.documents import matcher
from mainstem.documents.paths import Path, parse_path, reach
from mainstem.documents.values import MISSING, is_array
from mainstem.model.errors import Invalid, MainstemError
from mainstem.wire.mongo.ordered import ordered, reversed_order

ENTRIES_MAX = 100_000
FIELDS_MAX = 32
# An empty array has no element to stand for it; it is neither null nor missing.
_EMPTY = b"\x02"


class IndexField(msgspec.Struct, frozen=True):
    """One field of an index."""

    path: Path
    descending: bool = False
    hashed: bool = False

    @property
    def name(self) -> str:
        """The dotted path."""
        return ".".join(self.path)

    def encode(self, value: Any) -> bytes:
        """A value as it stands in the index."""
        encoded = ordered(value)
        if self.hashed:
            return hashlib.blake2b(encoded, digest_size=8).digest()
        return reversed_order(encoded) if self.descending else encoded


class Index(msgspec.Struct, frozen=True):
    """An index as it was declared. `number` names its entries in the store."""

    number: int
    name: str
    fields: tuple[IndexField, ...]
    # As the client sent it, for `listIndexes`.
    document: Mapping[str, Any]
    unique: bool = False
    sparse: bool = False
    partial: Mapping[str, Any] | None = None
    expire_after_s: int | None = None

    @property
    def is_hashed(self) -> bool:
        """Whether only equality can be looked up."""
        return any(field.hashed for field in self.fields)


class Entries:
    """Takes the entries of one index out of documents."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._fields = index.fields
        self._covers: Callable[[Any], bool] | None = None if index.partial is None else matcher(index.partial)

    def of(self, document: Mapping[str, Any]) -> set[bytes]:
        """The document's entries: none where the index does not cover it. Raises Invalid (`parallel_arrays`)."""
        if self._covers is not None and not self._covers(document):
            return set()
        if len(self._fields) == 1:
            values, _ = _values(document, self._fields[0].path)
            if self.index.sparse and values == [MISSING]:
                return set()
            field = self._fields[0]
            return {_encoded(field, value) for value in values}
        return self._compound(document)

    def stored(self, document: Mapping[str, Any] | None) -> set[bytes]:
        """The entries of a document that is there. What the log has is taken in: a row of another door that the index
        would refuse from a Mongo client (arrays side by side, a filter that fails on it) is not in the index."""
        if document is None:
            return set()
        try:
            return self.of(document)
        except MainstemError:
            return set()

    def _compound(self, document: Mapping[str, Any]) -> set[bytes]:
        lists: list[list[bytes]] = []
        arrays: set[str] = set()
        is_missing = True
        count = 1
        for field in self._fields:
            values, through_array = _values(document, field.path)
            is_missing = is_missing and values == [MISSING]
            if through_array:
                arrays.add(field.path[0])
            lists.append([_encoded(field, value) for value in values])
            count *= len(values)
        if len(arrays) > 1:
            raise Invalid(f"cannot index parallel arrays {sorted(arrays)}", reason="parallel_arrays")
        if count > ENTRIES_MAX:
            raise Invalid(f"too many index entries. expected=at most {ENTRIES_MAX} got={count}", reason="too_many_keys")
        if self.index.sparse and is_missing:
            return set()
        return {b"".join(parts) for parts in itertools.product(*lists)}


def _encoded(field: IndexField, value: Any) -> bytes:
    if value is _EMPTY:
        return bytes(byte ^ 0xFF for byte in _EMPTY) if field.descending else _EMPTY
    return field.encode(None if value is MISSING else value)


def _values(document: Mapping[str, Any], path: Path) -> tuple[list[Any], bool]:
    """What stands at a path, arrays by their elements, and whether there was an array on the way."""
    if len(path) == 1:
        value = document.get(path[0], MISSING)
        if not is_array(value):
            return [value], False
        return (list(value), True) if value else ([_EMPTY], True)
    found: list[Any] = []
    through = False
    for value, offset in reach(document, path, spread=True):
        through = through or offset is not None
        if is_array(value):
            through = True
            if not value:
                found.append(_EMPTY)
        else:
            found.append(value)
    return found or [MISSING], through


_OPTIONS = {"v", "key", "name", "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "background"}
_REFUSED = {
    "collation": "collations other than simple are not supported",
    "wildcardProjection": "wildcard indexes are not supported",
    "weights": "text indexes are not supported",
}


def parse_index(document: Mapping[str, Any], number: int) -> Index:
    """Read an index as `createIndexes` has it. Raises Invalid (`bad_index`)."""
    for name, why in _REFUSED.items():
        if name in document and not (name == "collation" and document[name].get("locale") == "simple"):
            raise Invalid(why, reason="bad_index")
    if unknown := sorted(document.keys() - _OPTIONS - _REFUSED.keys()):
        raise Invalid(f"The field '{unknown[0]}' is not valid for an index specification.", reason="bad_index_field")
    keys = document.get("key")
    if not isinstance(keys, Mapping) or not keys:
        raise Invalid("Index keys cannot be empty.", reason="bad_index")
    if len(keys) > FIELDS_MAX:
        raise Invalid(f"Index key pattern too large. expected=at most {FIELDS_MAX} fields", reason="bad_index")
    fields = tuple(_field(path, direction) for path, direction in keys.items())
    name = document.get("name") or "_".join(f"{path}_{_plain(direction)}" for path, direction in keys.items())
    if not isinstance(name, str):
        raise Invalid("The field 'name' must be a string", reason="bad_index")
    if document.get("unique") and any(field.hashed for field in fields):
        raise Invalid("Currently hashed indexes cannot guarantee uniqueness", reason="bad_index")
    partial = document.get("partialFilterExpression")
    if partial is not None:
        matcher(partial)
        if document.get("sparse"):
            raise Invalid('cannot mix "partialFilterExpression" and "sparse" options', reason="bad_index")
    stored = {"v": 2, **{key: value for key, value in document.items() if key not in ("v", "background")}, "name": name}
    return Index(
        number,
        name,
        fields,
        stored,
        bool(document.get("unique")),
        bool(document.get("sparse")),
        partial,
        _expiry(document.get("expireAfterSeconds"), fields),
    )


def _field(path: str, direction: Any) -> IndexField:
    if "$" in path:
        raise Invalid("wildcard indexes are not supported", reason="bad_index")
    if direction == "hashed":
        return IndexField(parse_path(path), hashed=True)
    if isinstance(direction, str):
        raise Invalid(f"Unknown index plugin '{direction}'", reason="bad_index")
    if isinstance(direction, bool) or not isinstance(direction, int | float) or direction == 0:
        raise Invalid("an index's direction is a number other than 0, or 'hashed'", reason="bad_index")
    return IndexField(parse_path(path), descending=direction < 0)


def _expiry(expires: Any, fields: tuple[IndexField, ...]) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires < 0:
        raise Invalid("TTL index 'expireAfterSeconds' option must be a number from 0 up", reason="bad_index")
    if len(fields) > 1:
        raise Invalid("TTL indexes are single-field indexes, compound indexes do not support TTL", reason="bad_index")
    return int(expires)


def _plain(direction: Any) -> str:
    if isinstance(direction, float) and direction.is_integer():
        return str(int(direction))
    return str(direction)
