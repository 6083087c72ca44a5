"""Stages that bring in other documents: of other collections, of several pipelines, or written in the pipeline."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from mainstem.documents.aggregation.registry import STAGES, stage
from mainstem.documents.aggregation.rows import count_of, with_value
from mainstem.documents.aggregation.running import (
    Document,
    Documents,
    Ledger,
    Namespace,
    Reading,
    Run,
    Stage,
)
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import compiled, field_path, parse_expression
from mainstem.documents.expressions.syntax import check_variable
from mainstem.documents.filters.match import matcher
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.paths import Path, reach
from mainstem.documents.values import MISSING, Rank, is_array, is_document, is_text, order_key, rank_of

_NULL_KEY = order_key(None)
DEPTH_MAX = 20


def namespace_of(source: Any, name: str) -> Namespace:
    """A collection by its name, or by database and name."""
    if is_text(source) and source:
        return Namespace(None, source)
    if is_document(source) and set(source) == {"db", "coll"} and all(map(is_text, source.values())):
        return Namespace(source["db"], source["coll"])
    raise Refused(f"{name} takes a collection's name. got={source!r}", code=9)


def _keys(document: Any, path: Path) -> list[Any]:
    """The keys of all values at a path, elements of arrays among them; missing counts as null."""
    values = [value for value, _ in reach(document, path, spread=True)]
    if not values:
        return [_NULL_KEY]
    return [_NULL_KEY if value is MISSING else order_key(value) for value in values]


def _local_values(document: Any, path: Path) -> list[Any]:
    """What a document looks for: its value, or each element of its array."""
    values = [value for value, _ in reach(document, path, spread=True)]
    plain = [None if value is MISSING else value for value in values if not is_array(value)]
    return plain or ([] if any(is_array(value) for value in values) else [None])


@stage("$lookup")
def lookup(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$lookup takes a document", code=9)
    allowed = {"from", "localField", "foreignField", "as", "let", "pipeline"}
    if unknown := set(source) - allowed:
        raise Refused(f"unknown argument of $lookup. got={sorted(unknown)}", code=9)
    if not isinstance(source.get("as"), str):
        raise Refused("$lookup takes a path as `as`", code=9)
    by_field = "localField" in source or "foreignField" in source
    if by_field and not (isinstance(source.get("localField"), str) and isinstance(source.get("foreignField"), str)):
        raise Refused("$lookup takes localField and foreignField together", code=9)
    if not by_field and "pipeline" not in source:
        raise Refused("$lookup takes localField and foreignField, or a pipeline", code=9)
    if "from" not in source and "pipeline" not in source:
        raise Refused("$lookup needs from", code=9)
    if reading.depth >= DEPTH_MAX:
        raise Refused(f"pipelines are nested too deep. expected=at most {DEPTH_MAX}", code=5)
    return _Lookup(source, reading, by_field=by_field).run


class _Lookup:
    """One `$lookup`. Without an index on the other side, that is read once and kept by its values."""

    def __init__(self, source: Mapping[str, Any], reading: Reading, *, by_field: bool) -> None:
        self.foreign = namespace_of(source["from"], "$lookup") if "from" in source else None
        self.into = field_path(source["as"])
        self.local = field_path(source["localField"]) if by_field else None
        self.foreign_text = source["foreignField"] if by_field else ""
        self.foreign_path = field_path(self.foreign_text) if by_field else ()
        variables = source.get("let", {})
        if not is_document(variables):
            raise Refused("$lookup takes a document as let", code=9)
        self.variables = {
            check_variable(name): compiled(parse_expression(item, reading.names)) for name, item in variables.items()
        }
        stages = source.get("pipeline")
        if stages is not None and not is_array(stages):
            raise Refused("$lookup takes an array as pipeline", code=14)
        self.pipeline = None if stages is None else reading.pipeline(stages, names=self.variables)
        # What no document changes is computed once.
        self.is_constant = not by_field and not self.variables

    def run(self, documents: Documents, given: Run) -> Iterator[Document]:
        for document in documents:
            yield with_value(document, self.into, self._found(document, given))

    def _found(self, document: Document, given: Run) -> list[Document]:
        if self.is_constant and not given.scope.keys() - {"NOW", "CLUSTER_TIME", "USER_ROLES"}:
            if self not in given.cache:
                given.cache[self] = list(self._through(self._all(given), given))
            return given.cache[self]  # type: ignore[no-any-return]
        if self.variables:
            given = given.within({name: value(document, given.scope) for name, value in self.variables.items()})
        candidates = self._all(given) if self.local is None else self._equal(document, given)
        return list(self._through(candidates, given))

    def _through(self, candidates: Documents, given: Run) -> Documents:
        return candidates if self.pipeline is None else self.pipeline(candidates, given)

    def _all(self, given: Run) -> Documents:
        return [] if self.foreign is None else given.sources.read(self.foreign, {})

    def _equal(self, document: Document, given: Run) -> list[Document]:
        assert self.local is not None
        wanted = _local_values(document, self.local)
        keys = {order_key(value) for value in wanted}
        if self.foreign is None:
            return []
        if given.sources.has_index(self.foreign, self.foreign_text) and not any(
            rank_of(value) is Rank.REGEX for value in wanted
        ):
            found = given.sources.read(self.foreign, {self.foreign_text: {"$in": wanted}})
            return [item for item in found if not keys.isdisjoint(_keys(item, self.foreign_path))]
        table = self._table(given)
        places: dict[int, Document] = {}
        for key in keys:
            places.update(table.get(key, ()))
        return [places[at] for at in sorted(places)]

    def _table(self, given: Run) -> dict[Any, list[tuple[int, Document]]]:
        if self not in given.cache:
            ledger = Ledger("$lookup", given.memory_bytes_max)
            table: dict[Any, list[tuple[int, Document]]] = {}
            for at, item in enumerate(self._all(given)):
                ledger.add(item)
                for key in set(_keys(item, self.foreign_path)):
                    table.setdefault(key, []).append((at, item))
            given.cache[self] = table
        return given.cache[self]  # type: ignore[no-any-return]


@stage("$graphLookup")
def graph_lookup(source: Any, reading: Reading) -> Stage:
    needed = {"from", "as", "startWith", "connectFromField", "connectToField"}
    if not is_document(source) or needed - set(source):
        raise Refused(f"$graphLookup needs {', '.join(sorted(needed))}", code=40327)
    if unknown := set(source) - needed - {"maxDepth", "depthField", "restrictSearchWithMatch"}:
        raise Refused(f"unknown argument of $graphLookup. got={sorted(unknown)}", code=40104)
    foreign, into = namespace_of(source["from"], "$graphLookup"), field_path(source["as"])
    start = compiled(parse_expression(source["startWith"], reading.names))
    away, to = field_path(source["connectFromField"]), source["connectToField"]
    to_path = field_path(to)
    deepest = count_of(source["maxDepth"], "$graphLookup (maxDepth)", 40101, 0) if "maxDepth" in source else None
    depth_path = field_path(source["depthField"]) if "depthField" in source else None
    restriction = source.get("restrictSearchWithMatch", {})
    node = parse_filter(restriction, reading.names)

    def neighbours(given: Run) -> dict[Any, list[Document]]:
        if run not in given.cache:
            ledger = Ledger("$graphLookup", given.memory_bytes_max)
            table: dict[Any, list[Document]] = {}
            for item in filter(matcher(node, given.scope), given.sources.read(foreign, restriction)):
                ledger.add(item)
                for key in set(_keys(item, to_path)):
                    table.setdefault(key, []).append(item)
            given.cache[run] = table
        return given.cache[run]  # type: ignore[no-any-return]

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        table = neighbours(given)
        for document in documents:
            first = start(document, given.scope)
            values = first if is_array(first) else [None if first is MISSING else first]
            yield with_value(document, into, _reached(table, values, away, deepest, depth_path))

    return run


def _reached(
    table: Mapping[Any, list[Document]], start: Iterable[Any], away: Path, deepest: int | None, depth_path: Path | None
) -> list[Document]:
    from bson.int64 import Int64

    frontier = [order_key(value) for value in start]
    asked = set(frontier)
    found: dict[Any, Document] = {}
    depth = 0
    while frontier and (deepest is None or depth <= deepest):
        following: list[Any] = []
        for key in frontier:
            for item in table.get(key, ()):
                own = order_key(item.get("_id"))
                if own in found:
                    continue
                found[own] = item if depth_path is None else with_value(item, depth_path, Int64(depth))
                for value in _local_values(item, away):
                    next_key = order_key(value)
                    if next_key not in asked:
                        asked.add(next_key)
                        following.append(next_key)
        frontier = following
        depth += 1
    return list(found.values())


@stage("$unionWith")
def union_with(source: Any, reading: Reading) -> Stage:
    fields = source if is_document(source) and "db" not in source else {"coll": source}
    if set(fields) - {"coll", "pipeline"} or not fields:
        raise Refused(f"$unionWith takes coll and pipeline. got={sorted(fields)}", code=9)
    foreign = namespace_of(fields["coll"], "$unionWith") if "coll" in fields else None
    pipeline = reading.pipeline(fields.get("pipeline", []))

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        yield from documents
        yield from pipeline([] if foreign is None else given.sources.read(foreign, {}), given)

    return run


@stage("$facet", in_facet=False)
def facet(source: Any, reading: Reading) -> Stage:
    if not is_document(source) or not source:
        raise Refused("$facet takes a nonempty document of pipelines", code=40169)
    for name, stages in source.items():
        if not is_array(stages):
            raise Refused(f"a facet is an array of stages. got={name}", code=40170)
        for item in stages:
            kind = STAGES.get(next(iter(item), "")) if is_document(item) else None
            if kind is not None and (not kind.in_facet or kind.first_only or kind.last_only):
                raise Refused(f"{kind.name} cannot stand in $facet", code=40600)
    pipelines = {name: reading.pipeline(stages) for name, stages in source.items()}

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        ledger = Ledger("$facet", given.memory_bytes_max)
        held = []
        for document in documents:
            ledger.add(document)
            held.append(document)
        yield {name: list(pipeline(held, given)) for name, pipeline in pipelines.items()}

    return run


@stage("$documents", first_only=True, in_facet=False)
def documents_stage(source: Any, reading: Reading) -> Stage:
    value_of = compiled(parse_expression(source, reading.names))

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        found = value_of({}, given.scope)
        if not is_array(found) or not all(map(is_document, found)):
            raise Refused("$documents takes an array of documents", code=5858203)
        yield from chain(found)

    return run
