"""A pipeline: read and checked once, then run on any number of streams of documents.

Owns the order of stages, what may stand where, and the two rewrites that change no answer: a `$sort` that is followed
by a `$limit` holds no more than it gives, and the leading `$match` is told to the door, which may have an index for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem.documents.aggregation import (
    filling,
    grouping,
    joining,
    reshaping,
    rows,
    sinks,
    windows,
)
from mainstem.documents.aggregation.registry import NOT_RUN, STAGES, StageKind
from mainstem.documents.aggregation.running import Document, Documents, Namespace, Reading, Run, Stage
from mainstem.documents.aggregation.sinks import Sink, parse_merge, parse_out
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import NO_NAMES, Names
from mainstem.documents.values import INT64_MAX, is_array, is_document

STAGES_MAX: Final = 1_000
# Importing a stage's module puts it into the registry.
STAGE_MODULES = (filling, grouping, joining, reshaping, rows, sinks, windows)
DOOR_SOURCES = frozenset({"$collStats", "$indexStats", "$currentOp", "$changeStream"})


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, ready to run.

    `filter` is the leading `$match`: a door may give only the documents that match it. `source` is a leading stage
    whose documents the door gives (`$collStats` and the like); `needs_collection` is False where none is read.
    `sink` is what the door does with the documents in the end. `reads` are the other collections.
    """

    stages: tuple[Mapping[str, Any], ...]
    run_stages: Stage
    filter: Mapping[str, Any]
    source: Mapping[str, Any] | None
    sink: Sink | None
    reads: frozenset[Namespace]

    @property
    def needs_collection(self) -> bool:
        return not (self.stages and "$documents" in self.stages[0])

    def run(self, documents: Documents, run: Run | None = None) -> Iterator[Document]:
        """The documents that come out, one by one as they are asked for."""
        return self.run_stages(documents, Run() if run is None else run)


def compile_pipeline(source: Any, names: Names = NO_NAMES) -> Pipeline:
    """Read a pipeline. `names` are the variables of the command's `let`, whose values come with the run."""
    stages = _checked(source)
    reading = Reading(names, inner=_inner)
    last = stages[-1] if stages else {}
    sink: Sink | None = None
    if "$out" in last:
        sink = parse_out(last["$out"])
    elif "$merge" in last:
        sink = parse_merge(last["$merge"])
    first = stages[0] if stages else {}
    return Pipeline(
        tuple(stages),
        _compiled(stages, reading),
        dict(first["$match"]) if "$match" in first else {},
        first if DOOR_SOURCES & set(first) else None,
        sink,
        frozenset(_namespaces(stages)),
    )


def _checked(source: Any, *, nested: bool = False) -> list[Mapping[str, Any]]:
    if not is_array(source):
        raise Refused("a pipeline is an array of stages", code=14)
    if len(source) > STAGES_MAX:
        raise Refused(f"pipeline is too long. expected=at most {STAGES_MAX} stages got={len(source)}", code=7749501)
    for at, item in enumerate(source):
        if not is_document(item):
            raise Refused("a stage is a document", code=14)
        if len(item) != 1:
            raise Refused(f"a stage has one field. got={list(item)[:3]}", code=40323)
        kind = _kind(next(iter(item)))
        if kind.first_only and at:
            raise Refused(f"{kind.name} stands first in a pipeline", code=40602)
        if kind.last_only and (at != len(source) - 1 or nested):
            raise Refused(f"{kind.name} stands last in a pipeline", code=51047 if nested else 40601)
    return list(source)


def _kind(name: str) -> StageKind:
    if name in NOT_RUN:
        raise Refused(f"{name} is not supported: {NOT_RUN[name]}", code=115)
    if name not in STAGES:
        raise Refused(f"unknown stage. got={name!r}", code=40324)
    return STAGES[name]


def _inner(source: Any, reading: Reading) -> Stage:
    return _compiled(_checked(source, nested=True), reading)


def _compiled(stages: list[Mapping[str, Any]], reading: Reading) -> Stage:
    if reading.depth > joining.DEPTH_MAX:
        raise Refused(f"pipelines are nested too deep. expected=at most {joining.DEPTH_MAX}", code=5)
    built: list[Stage] = []
    at = 0
    while at < len(stages):
        name, operand = next(iter(stages[at].items()))
        if name == "$sort" and (first := _wanted(stages, at + 1)) is not None:
            built.append(rows.sort_and_limit(operand, first))
        else:
            built.append(STAGES[name].build(operand, reading))
        at += 1

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        for stage in built:
            documents = stage(documents, given)
        return iter(documents)

    return run


def _wanted(stages: list[Mapping[str, Any]], at: int) -> int | None:
    """How many documents the stages after a sort ask for, through a `$skip`; None where they ask for all."""
    skipped = 0
    while at < len(stages):
        name, operand = next(iter(stages[at].items()))
        if name == "$skip":
            skipped += rows.count_of(operand, "$skip", 5107200, 0)
        elif name == "$limit":
            wanted = skipped + rows.count_of(operand, "$limit", 15958, 1)
            return wanted if wanted <= INT64_MAX else None
        else:
            return None
        at += 1
    return None


def _namespaces(stages: list[Mapping[str, Any]]) -> Iterator[Namespace]:
    for item in stages:
        name, operand = next(iter(item.items()))
        if name in ("$lookup", "$graphLookup") and "from" in operand:
            yield joining.namespace_of(operand["from"], name)
        if name == "$unionWith":
            fields = operand if is_document(operand) and "db" not in operand else {"coll": operand}
            if "coll" in fields:
                yield joining.namespace_of(fields["coll"], name)
        if name in ("$lookup", "$unionWith") and is_document(operand):
            yield from _namespaces(operand.get("pipeline", []))
        if name == "$facet":
            for stages_inside in operand.values():
                yield from _namespaces(stages_inside)
