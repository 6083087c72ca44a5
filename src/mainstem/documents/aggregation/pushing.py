"""Which stages at a pipeline's start SQL can answer on typed columns, with exactly the answer of the stages.

Owns the conditions for that, and nothing of any engine but DuckDB's syntax. A column qualifies where every document
holds one type at that field, or nothing: then a NULL is a missing field, and a result's type is known without looking.
Sums of doubles are the one thing that may differ in the last digit, for SQL adds them up in another order: `rounds`.
"""

# ruff: noqa: PLR0911 - each condition that does not hold returns.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mainstem.documents.aggregation.rows import count_of
from mainstem.documents.columns import Column, Kind
from mainstem.documents.errors import Refused
from mainstem.documents.expressions.numbers import whole_result
from mainstem.documents.filters.ast import And, Exists, Field, Node, Not, OfType, Or
from mainstem.documents.filters.duckdb_dialect import DUCKDB
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.filters.sql import SqlFilter, to_duckdb
from mainstem.documents.projection import parse_projection
from mainstem.documents.values import INT64_MAX, is_document, is_number, number_of

KINDS = {
    "int": Kind.INTEGER,
    "long": Kind.INTEGER,
    "double": Kind.DOUBLE,
    "string": Kind.STRING,
    "bool": Kind.BOOLEAN,
    "date": Kind.TIMESTAMP_TZ,
    "objectId": Kind.OBJECT_ID,
}
Row = Sequence[Any]


class TypedTable(msgspec.Struct, frozen=True):
    """What is known of a table: for each field the types that its documents hold there (`int`, `null`, …), all of them.

    A field that is not named is in no document. `columns` are the columns that hold them.
    """

    types: Mapping[str, frozenset[str]]
    columns: Mapping[str, Column]

    def only_type(self, name: str) -> str | None:
        """The one type of a field, where the column holds it as it is; None otherwise."""
        types = self.types.get(name, frozenset())
        kind = next(iter(types)) if len(types) == 1 else None
        column = self.columns.get(name)
        return kind if kind in KINDS and column is not None and column.kind is KINDS[kind] else None


class Pushed(msgspec.Struct, frozen=True):
    """What SQL answers: the first `stages` stages. Without a group, rows are whole documents, or `fields` of them."""

    stages: int
    where: SqlFilter
    order_by: str = ""
    limit: int | None = None
    offset: int = 0
    fields: tuple[str, ...] | None = None
    group: "PushedGroup | None" = None

    def sql(self, relation: str, selection: str = "*") -> tuple[str, tuple[Any, ...]]:
        """The query and its parameters. `relation` and, without a group, `selection` are the caller's SQL."""
        chosen = ", ".join(self.group.selection) if self.group is not None else selection
        text = f"SELECT {chosen} FROM {relation} WHERE {self.where.text}"
        if self.group is not None and self.group.keys:
            text += f" GROUP BY {', '.join(self.group.keys)}"
        if self.group is not None and not self.group.keys:
            # A group by nothing has no documents where there are none.
            text += " HAVING count(*) > 0"
        text += f" ORDER BY {self.order_by}" if self.order_by else ""
        text += f" LIMIT {self.limit}" if self.limit is not None else ""
        return text + (f" OFFSET {self.offset}" if self.offset else ""), self.where.parameters


class PushedGroup(msgspec.Struct, frozen=True):
    """A `$group` as a selection; `document` makes its document of a row. `rounds`: a sum of doubles is among it."""

    keys: tuple[str, ...]
    selection: tuple[str, ...]
    parts: tuple[tuple[str, int, Callable[[Row], Any]], ...]
    key: Callable[[Row], Any]
    rounds: bool
    # Of `$count` the answer has no `_id`.
    has_key: bool = True

    def document(self, row: Row) -> dict[str, Any]:
        """The document that a row of the answer stands for."""
        made = {name: make(row[at:]) for name, at, make in self.parts}
        return {"_id": self.key(row), **made} if self.has_key else made


def push_down(stages: Sequence[Mapping[str, Any]], table: TypedTable) -> Pushed:
    """The longest start of a pipeline that SQL answers; of no stage where it answers none."""
    pushed = Pushed(0, SqlFilter("TRUE", (), True))
    for stage in stages:
        if not is_document(stage) or len(stage) != 1:
            break
        name, operand = next(iter(stage.items()))
        step = _STEPS.get(name)
        try:
            further = None if step is None or pushed.group is not None else step(pushed, operand, table)
        except Refused:
            # What is wrong with a stage is said by who runs it.
            further = None
        if further is None:
            break
        pushed = msgspec.structs.replace(further, stages=pushed.stages + 1)
    return pushed


def _match(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    if pushed.order_by or pushed.limit is not None or pushed.offset or pushed.fields is not None:
        return None
    node = parse_filter(operand)
    if not _is_typed(node, table):
        return None
    condition = to_duckdb(node, table.columns)
    if not condition.exact:
        return None
    text = f"({pushed.where.text}) AND ({condition.text})"
    both = SqlFilter(text, pushed.where.parameters + condition.parameters, True)
    return msgspec.structs.replace(pushed, where=both)


def _is_typed(node: Node, table: TypedTable) -> bool:
    match node:
        case And(children) | Or(children):
            return all(_is_typed(child, table) for child in children)
        case Not(child):
            return _is_typed(child, table)
        case Field(path, test):
            if len(path) != 1:
                return False
            # Null and missing are one NULL in a column: only what asks for presence or type tells them apart.
            types = table.types.get(path[0], frozenset()) - {"null"}
            told_apart = isinstance(test, Exists | OfType) and "null" in table.types.get(path[0], ())
            kind = next(iter(types), "int")
            column = table.columns.get(path[0])
            fits = not types or (column is not None and column.kind is KINDS.get(kind))
            # An integer column does not say whether its numbers were ints or longs.
            widths = isinstance(test, OfType) and kind in ("int", "long")
            return len(types) <= 1 and fits and not told_apart and not widths
        case _:
            return False


def _limit(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    count = count_of(operand, "$limit", 15958, 1)
    return msgspec.structs.replace(pushed, limit=count if pushed.limit is None else min(pushed.limit, count))


def _skip(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    count = count_of(operand, "$skip", 5107200, 0)
    limit = None if pushed.limit is None else max(pushed.limit - count, 0)
    return msgspec.structs.replace(pushed, limit=limit, offset=min(pushed.offset + count, INT64_MAX))


def _sort(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    if pushed.order_by or pushed.limit is not None or pushed.offset or pushed.fields is not None:
        return None
    terms = []
    for name, direction in operand.items():
        kind = table.only_type(name)
        # Text sorts by its bytes in both; of doubles SQL puts NaN at the other end.
        if kind is None or kind == "double" or not is_number(direction) or number_of(direction) not in (1, -1):
            return None
        up = number_of(direction) == 1
        terms.append(f"{DUCKDB.identifier(name)} {'ASC NULLS FIRST' if up else 'DESC NULLS LAST'}")
    return msgspec.structs.replace(pushed, order_by=", ".join(terms)) if terms else None


def _project(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    names = parse_projection(operand, stage=True).plain_fields()
    if names is None or pushed.fields is not None:
        return None
    return msgspec.structs.replace(pushed, fields=tuple(names))


def _group(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    if pushed.order_by or pushed.limit is not None or pushed.offset or pushed.fields is not None:
        return None
    if not is_document(operand) or "_id" not in operand:
        return None
    keyed = _key(operand["_id"], table)
    if keyed is None:
        return None
    keys, key = keyed
    selection, parts, rounds = list(keys), [], False
    for name, source in operand.items():
        if name == "_id":
            continue
        made = _accumulated(source, table) if is_document(source) and len(source) == 1 else None
        if made is None or "." in name or name.startswith("$"):
            return None
        columns, make, inexact = made
        parts.append((name, len(selection), make))
        selection += columns
        rounds = rounds or inexact
    group = PushedGroup(tuple(keys), tuple(selection) or ("count(*)",), tuple(parts), key, rounds)
    return msgspec.structs.replace(pushed, group=group)


def _column_of(source: Any) -> str | None:
    plain = isinstance(source, str) and source.startswith("$") and not source.startswith("$$") and "." not in source
    return source[1:] if plain and len(source) > 1 else None


_KEY_TYPES = ("int", "long", "string", "bool", "date", "objectId")


def _key(source: Any, table: TypedTable) -> tuple[list[str], Callable[[Row], Any]] | None:
    if source is None or type(source) in (int, bool, float):
        return [], lambda row: source
    fields = {"": source} if not is_document(source) else source
    names = [_column_of(item) for item in fields.values()]
    kinds = [table.only_type(name) if name is not None else None for name in names]
    if not names or any(kind not in _KEY_TYPES for kind in kinds) or any(name.startswith("$") for name in fields):
        return None
    columns = [DUCKDB.identifier(name) for name in names if name is not None]
    if not is_document(source):
        kind = kinds[0] or ""
        return columns, lambda row: restored(row[0], kind)
    plain = [(field, at, kinds[at] or "") for at, field in enumerate(fields)]
    # A missing field is left out of a key that is a document.
    return columns, lambda row: {field: restored(row[at], kind) for field, at, kind in plain if row[at] is not None}


def restored(value: Any, kind: str) -> Any:
    """A column's value as the document has it."""
    from bson.int64 import Int64
    from bson.objectid import ObjectId

    if value is None:
        return None
    if kind == "long":
        return Int64(value)
    return ObjectId(value) if kind == "objectId" else value


Made = tuple[list[str], Callable[[Row], Any], bool]


def _accumulated(source: Mapping[str, Any], table: TypedTable) -> Made | None:
    name, operand = next(iter(source.items()))
    if name == "$count" and is_document(operand) and not operand:
        operand, name = 1, "$sum"
    if name == "$sum" and type(operand) is int:
        return ["count(*)"], lambda row: whole_result(row[0] * operand, wide=False), False
    field = _column_of(operand)
    kind = table.only_type(field) if field is not None else None
    if field is None or kind is None or name not in ("$sum", "$avg", "$min", "$max"):
        return None
    column = DUCKDB.identifier(field)
    if name in ("$min", "$max"):
        if kind == "double":
            return None
        function = name[1:]
        return [f"{function}({column})"], lambda row: restored(row[0], kind), False
    if kind in ("int", "long"):
        if name == "$sum":
            return [f"sum({column})"], lambda row: _total(row[0], kind), False
        return [f"sum({column})", f"count({column})"], _mean, False
    if kind == "double":
        if name == "$sum":
            return [f"fsum({column})"], lambda row: 0 if row[0] is None else float(row[0]), True
        return [f"fsum({column})", f"count({column})"], _mean, True
    return None


def _total(value: Any, kind: str) -> Any:
    return 0 if value is None else whole_result(int(value), wide=kind == "long")


def _mean(row: Row) -> Any:
    return None if not row[1] else float(row[0]) / row[1]


def _count(pushed: Pushed, operand: Any, table: TypedTable) -> Pushed | None:
    # What is wrong with the name is said by the stage.
    if not isinstance(operand, str) or not operand or operand.startswith("$") or "." in operand or "\x00" in operand:
        return None
    counted = _group(pushed, {"_id": None, operand: {"$sum": 1}}, table)
    if counted is None or counted.group is None or operand == "_id":
        return None
    return msgspec.structs.replace(counted, group=msgspec.structs.replace(counted.group, has_key=False))


_Step = Callable[[Pushed, Any, TypedTable], "Pushed | None"]
_STEPS: dict[str, _Step] = {
    "$match": _match,
    "$limit": _limit,
    "$skip": _skip,
    "$sort": _sort,
    "$project": _project,
    "$group": _group,
    "$count": _count,
}
