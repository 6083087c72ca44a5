"""Which data files have the columns of a table just as the table states them.

DuckDB can be told a schema to fit every file to, and must be where files differ: a column came later, or a type was
widened. Where all files are alike it reads them several times faster without. Data files never change, so what is
known of one stays true.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstem.formats.delta.schema import Field, duckdb_type

if TYPE_CHECKING:
    import duckdb

KNOWN_MAX = 100_000
# So many footers are looked into for one query; with more, reading them takes longer than it spares.
ASKED_MAX = 256
_LOOK = (
    "SELECT file_name, name, type, type_length, num_children, converted_type, scale, precision,"
    " CAST(logical_type AS VARCHAR) FROM parquet_schema(?)"
)
VARIANT = "VARIANT"
_NAMES = {"TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE"}
Shape = tuple[tuple[object, ...], ...]


class Shapes:
    """The shapes of the files that were looked at. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: dict[str, Shape] = {}
        # Which columns of a file are Variants by its own word.
        self._variants: dict[str, frozenset[str]] = {}
        # What DuckDB makes of a shape.
        self._types: dict[Shape, dict[str, str]] = {}

    def are_as_stated(self, cursor: "duckdb.DuckDBPyConnection", uris: Sequence[str], fields: Sequence[Field]) -> bool:
        """Whether every file has these columns, with these types."""
        with self._lock:
            unknown = [uri for uri in uris if uri not in self._shapes]
            if len(unknown) > ASKED_MAX:
                return False
            if unknown:
                self._look(cursor, unknown)
            shapes = {self._shapes[uri] for uri in uris}
            return len(shapes) == 1 and all(
                self._types[shape].get(field.physical) == _stated(field) for shape in shapes for field in fields
            )

    def says_variant(self, cursor: "duckdb.DuckDBPyConnection", uri: str, fields: Sequence[Field]) -> bool:
        """Whether a file itself says that one of these columns is a Variant: newer writers do, and may shred it."""
        with self._lock:
            if uri not in self._variants:
                if len(self._variants) > KNOWN_MAX:
                    self._variants.clear()
                described = cursor.execute("DESCRIBE SELECT * FROM read_parquet(?)", [uri]).fetchall()
                self._variants[uri] = frozenset(name for name, type_, *_ in described if type_ == VARIANT)
            return any(field.physical in self._variants[uri] for field in fields)

    def _look(self, cursor: "duckdb.DuckDBPyConnection", uris: list[str]) -> None:
        found: dict[str, list[tuple[object, ...]]] = {uri: [] for uri in uris}
        for uri, *column in cursor.execute(_LOOK, [uris]).fetchall():
            found[uri].append(tuple(column))
        if len(self._shapes) > KNOWN_MAX:
            self._shapes.clear()
            self._types.clear()
        for uri, columns in found.items():
            # The root of the schema has no part in it: every writer calls it by another name.
            shape = self._shapes[uri] = tuple(columns[1:])
            if shape not in self._types:
                described = cursor.execute("DESCRIBE SELECT * FROM read_parquet(?)", [uri]).fetchall()
                self._types[shape] = {name: type_ for name, type_, *_ in described}


def _stated(field: Field) -> str:
    name = duckdb_type(field.type)
    return _NAMES.get(name, name)
