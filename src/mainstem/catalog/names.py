"""Names as the catalog keeps them, and the folders they become.

A level of a namespace may hold a dot or a slash (Iceberg clients allow both), so a namespace is a tuple here and
becomes the dotted text of `TableName` only towards the rest of the product.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.model import Invalid, TableName

Namespace = tuple[str, ...]

LEVEL_LENGTH_MAX = 255
LEVELS_MAX = 16
FOLDER_LENGTH_MAX = 128

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")
_UNSAFE_IN_FOLDER = re.compile(r"[^A-Za-z0-9_.-]")
# A table's own folder holds these two, so a table of a nested namespace must not be put into them.
_TABLE_FOLDERS = frozenset({"data", "metadata"})


class TableIdent(NamedTuple):
    """Which table: the levels of its namespace, and its name."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))

    @property
    def table_name(self) -> TableName:
        """The same table as the rest of the product names it."""
        return TableName(".".join(self.namespace), self.name)


def ident_of(name: TableName) -> TableIdent:
    """The catalog's form of a product name."""
    return TableIdent(name.levels, name.table)


def check_namespace(levels: Sequence[str]) -> Namespace:
    """Refuse a namespace that could not be stored or addressed."""
    if not levels:
        raise Invalid("namespace is empty. expected=at least one level got=none")
    if len(levels) > LEVELS_MAX:
        raise Invalid(f"namespace is too deep. expected=at most {LEVELS_MAX} levels got={len(levels)}")
    for level in levels:
        _check_part(level, "namespace level")
    return tuple(levels)


def check_ident(namespace: Sequence[str], name: str) -> TableIdent:
    """Refuse a table name that could not be stored or addressed."""
    _check_part(name, "table name")
    return TableIdent(check_namespace(namespace), name)


def _check_part(part: str, what: str) -> None:
    if not part or len(part) > LEVEL_LENGTH_MAX:
        raise Invalid(f"{what} has a wrong length. expected=1 to {LEVEL_LENGTH_MAX} characters got={len(part)}")
    if part in (".", ".."):
        raise Invalid(f"{what} is a way through folders. expected=a name got={part!r}")
    if forbidden := _FORBIDDEN.search(part):
        raise Invalid(f"{what} has a character that is not allowed. got={forbidden.group()!r}")


def folder_of(ident: TableIdent) -> str:
    """The path of a table below the warehouse: the names as they are, where a path and a URL can hold them."""
    return "/".join(_folder(part, depth) for depth, part in enumerate((*ident.namespace, ident.name)))


def namespace_folder_of(namespace: Namespace) -> str:
    """The path of a namespace's tables below the warehouse."""
    return "/".join(_folder(part, depth) for depth, part in enumerate(namespace))


def _folder(part: str, depth: int) -> str:
    safe = _UNSAFE_IN_FOLDER.sub("_", part)[:FOLDER_LENGTH_MAX]
    clashes = depth >= 2 and part in _TABLE_FOLDERS
    if safe == part and part.strip(".") and not clashes:
        return part
    # Two names may look the same once made safe; the digest keeps them apart.
    return f"{safe.strip('.')}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"
