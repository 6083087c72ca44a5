"""Dotted paths: which values of a document a path reaches.

Owns MongoDB's rules for walking through arrays: a name reaches into every document of an array, a number also names an
element, scalars inside an array are passed over, and an array at the end of a path stands for its elements and itself.
"""

from typing import Any

from bson.dbref import DBRef

from mainstem.documents.values import DEPTH_MAX, MISSING, is_document
from mainstem.model.errors import Invalid

PATH_LENGTH_MAX = 4_096

Path = tuple[str, ...]


# A value that a path reached, and the index in the outermost array that was walked through on the way.
Reached = tuple[Any, int | None]


def parse_path(text: str) -> Path:
    """Split a dotted path. Bounded, because each part may cost a level of recursion."""
    if not isinstance(text, str):
        raise Invalid(f"a field's name is text. got={type(text).__name__}", reason="bad_path")
    if len(text) > PATH_LENGTH_MAX:
        raise Invalid(f"path is too long. expected=at most {PATH_LENGTH_MAX} got={len(text)}", reason="bad_path")
    if "\x00" in text:
        raise Invalid("path has a null character", reason="bad_path")
    parts = tuple(text.split("."))
    if len(parts) > DEPTH_MAX:
        raise Invalid(f"path is too deep. expected=at most {DEPTH_MAX} parts got={len(parts)}", reason="bad_path")
    return parts


def is_index(part: str) -> bool:
    """Whether a part of a path can name an element of an array: digits, and no leading zero."""
    return part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")


def reach(root: Any, path: Path, *, spread: bool) -> list[Reached]:
    """Every value that the path reaches. With `spread`, an array at the end also yields its elements, before itself.

    A document that lacks the path yields MISSING once; an array without documents on the way yields nothing at all.
    `root` is a document, or an array whose indexes serve as names (an element that `$elemMatch` looks into).
    """
    if not path:
        return [(root, None)]
    found: list[Reached] = []
    _into_document(root, path, 0, spread, None, found)
    return found


def _into_document(node: Any, path: Path, at: int, spread: bool, offset: int | None, found: list[Reached]) -> None:
    end = len(path)
    while True:
        node = child(node, path[at])
        at += 1
        if isinstance(node, list | tuple):
            _into_array(node, path, at, spread, offset, found)
            return
        if at == end:
            found.append((node, offset))
            return
        if not is_document(node):
            if not isinstance(node, DBRef):
                found.append((MISSING, offset))
                return
            node = node.as_doc()


def _into_array(array: Any, path: Path, at: int, spread: bool, offset: int | None, found: list[Reached]) -> None:
    if at == len(path):
        if spread:
            found.extend((element, index if offset is None else offset) for index, element in enumerate(array))
        found.append((array, offset))
        return
    for index, element in enumerate(array):
        if is_document(element):
            _into_document(element, path, at, spread, index if offset is None else offset, found)
    part = path[at]
    if is_index(part) and int(part) < len(array):
        # An index is not a walk through the array, so it leaves no offset behind.
        _at_index(array[int(part)], path, at + 1, spread, offset, found)


def _at_index(element: Any, path: Path, at: int, spread: bool, offset: int | None, found: list[Reached]) -> None:
    if at == len(path):
        # The named element itself: it is not spread, even where it is an array.
        found.append((element, offset))
    elif is_document(element):
        _into_document(element, path, at, spread, offset, found)
    elif isinstance(element, list | tuple):
        _into_array(element, path, at, spread, offset, found)


def child(node: Any, name: str) -> Any:
    """The direct child of a document, or of an array taken as a document whose names are its indexes."""
    if is_document(node):
        return node.get(name, MISSING)
    if isinstance(node, list | tuple) and is_index(name) and int(name) < len(node):
        return node[int(name)]
    return MISSING
