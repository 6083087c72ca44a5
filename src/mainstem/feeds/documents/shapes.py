"""Which types the fields of a collection's documents have had, ever: whether a column says the same as they do.

A shape is the names and Python types of a document's top-level fields. Most documents of a collection share one, so
looking at them costs next to nothing. Types are only ever added: of a document that is gone they stay, which makes some
question be answered from the documents that a column could have answered, and none wrongly.
"""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.objectid import ObjectId

Shape = tuple[tuple[str, ...], tuple[type, ...]]
# By database and collection.
Shapes = dict[tuple[str, str], set[Shape]]
# Fields of a collection whose types are kept; of one with more, nothing is known.
FIELDS_MAX = 900
# Says of a collection, in place of a field, that nothing is known of it.
UNKNOWN = ""


class NotFinite(float):
    """Stands for doubles that a column does not hold: infinity, and NaN."""


_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    Int64: "long",
    float: "double",
    NotFinite: "double that is not finite",
    str: "string",
    ObjectId: "objectId",
    dt.datetime: "date",
    DatetimeMS: "date",
    dict: "object",
    list: "array",
}


def shape_of(values: Mapping[str, Any]) -> Shape:
    """The shape of one document."""
    kinds = tuple(map(type, values.values()))
    if float in kinds and not all(map(math.isfinite, [each for each in values.values() if type(each) is float])):
        kinds = tuple(
            NotFinite if type(each) is float and not math.isfinite(each) else type(each) for each in values.values()
        )
    return tuple(values), kinds


class FieldTypes:
    """The types of one collection's fields. `add` says what is new, for the store to keep."""

    def __init__(self, known: Iterable[tuple[str, str]] = ()) -> None:
        self._shapes: set[Shape] = set()
        # Grows with every type that is new.
        self.version = 0
        self.types: dict[str, set[str]] = {}
        for field, kind in known:
            self.types.setdefault(field, set()).add(kind)

    @property
    def is_known(self) -> bool:
        """Whether every document's fields are accounted for."""
        return UNKNOWN not in self.types

    def add(self, shapes: Iterable[Shape]) -> list[tuple[str, str]]:
        """Take note of shapes; the fields and types that were not there before."""
        fresh: list[tuple[str, str]] = []
        for shape in shapes:
            if shape in self._shapes or not self.is_known:
                continue
            if len(self._shapes) >= FIELDS_MAX:
                self._shapes.clear()
            self._shapes.add(shape)
            for field, kind in zip(*shape, strict=True):
                fresh += self._note(field, _NAMES.get(kind, "other"))
        return fresh

    def lose(self) -> list[tuple[str, str]]:
        """From now on nothing is known: documents came whose columns are not made of them."""
        return self._note(UNKNOWN, "unknown") if self.is_known else []

    def _note(self, field: str, kind: str) -> list[tuple[str, str]]:
        known = self.types.get(field)
        if known is None:
            if len(self.types) >= FIELDS_MAX:
                field, kind = UNKNOWN, "unknown"
            known = self.types.setdefault(field, set())
        if kind in known:
            return []
        known.add(kind)
        self.version += 1
        return [(field, kind)]
