"""Whether DuckDB reads a batch's rows just as Spark does, and how: whole rows of types that JSON itself can tell.

The footers say which JSON types every column came with. Where each of them has but one way to become the column's type
(a whole number a long, text a string), DuckDB's strict reading gives the same value as Spark's, or fails; it never
guesses. Everything else is Spark's: declared types, text that was a number in other rows, Variant, partial rows.
"""

import json
from collections.abc import Mapping, Sequence

from mainstem.pipeline.driver_sql import name_of, text_of
from mainstem.pipeline.lake import Marks
from mainstem.pipeline.segments import TableSlice, clocks_are_ordered
from mainstem.tables.evolution import Column
from mainstem.tables.layout import CLOCKS, HLC, KEY, POSITION, SOURCE, STATE_COLUMNS
from mainstem.tables.types import BOOLEAN, DOUBLE, LONG, STRING, ColumnType, Kind

_NUMBERS = frozenset(["int", "long"])
_PLAIN: Mapping[tuple[ColumnType, Kind], tuple[frozenset[str], str]] = {
    (LONG, Kind.INT): (_NUMBERS, "BIGINT"),
    (LONG, Kind.LONG): (_NUMBERS, "BIGINT"),
    (DOUBLE, Kind.DOUBLE): (frozenset(["int", "double"]), "DOUBLE"),
    (BOOLEAN, Kind.BOOL): (frozenset(["bool"]), "BOOLEAN"),
    (STRING, Kind.STRING): (frozenset(["string"]), "VARCHAR"),
    (STRING, Kind.JSON): (frozenset(["object", "array"]), "JSON"),
    (STRING, Kind.NULL): (frozenset(), "VARCHAR"),
}
_NULL = frozenset(["null"])


def are_plain(columns: Sequence[Column], seen: Mapping[str, frozenset[str]]) -> bool:
    """Whether DuckDB can read rows that have all these columns, with values of the JSON types that were seen."""
    for column in columns:
        plain = None if column.kind is None else _PLAIN.get((column.type, column.kind))
        if plain is None or not seen.get(column.name, _NULL) <= plain[0] | _NULL:
            return False
    # DuckDB takes `id` and `ID` for one name.
    names = [column.stored for column in columns] + [name for name, _ in STATE_COLUMNS]
    return len({name.lower() for name in names}) == len(names) and len({c.name.lower() for c in columns}) == len(
        columns
    )


def are_whole_and_newer(run: TableSlice, columns: Sequence[Column], before: Marks) -> bool:
    """Whether every row is whole and newer than all before: then the last row per key is the new row."""
    whole = run.always >= {column.name for column in columns}
    return whole and run.hlc_min > before.hlc_max and clocks_are_ordered(run)


def typed_rows(changes: str, columns: Sequence[Column]) -> str:
    """Changes (a query for rows of segments that are no deletes) as rows of the state table."""
    types = {column.name: _duck_type(column) for column in columns}
    values = [
        f"CAST(r.{name_of(column.name)} AS VARCHAR) AS {name_of(column.stored)}"
        if types[column.name] == "JSON"
        else f"r.{name_of(column.name)} AS {name_of(column.stored)}"
        for column in columns
    ]
    spec = text_of(json.dumps(types, ensure_ascii=False))
    return (
        f"SELECT {', '.join(values)}, {KEY}, {HLC}, {SOURCE}, {POSITION}, CAST(NULL AS VARCHAR) AS {CLOCKS}"
        f" FROM (SELECT from_json_strict(columns, {spec}) AS r, key AS {KEY}, hlc AS {HLC}, source AS {SOURCE},"
        f" position AS {POSITION} FROM ({changes}))"
    )


def _duck_type(column: Column) -> str:
    assert column.kind is not None
    return _PLAIN[column.type, column.kind][1]
