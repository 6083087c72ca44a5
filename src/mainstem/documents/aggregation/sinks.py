"""The ends of a pipeline that are not documents: `$out` and `$merge`, as descriptions that a door carries out; and the
sources that only a door knows, `$collStats` and `$indexStats`."""

from typing import Any

import msgspec

from mainstem.documents.aggregation.joining import namespace_of
from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.running import Namespace, Reading, Stage
from mainstem.documents.errors import Refused
from mainstem.documents.expressions.syntax import check_variable
from mainstem.documents.values import is_array, is_document


class Out(msgspec.Struct, frozen=True):
    """The documents become the whole of a collection, at once."""

    into: Namespace


class Merge(msgspec.Struct, frozen=True):
    """Each document goes into a collection, by the fields of `on`.

    `matched` is `replace`, `keepExisting`, `merge`, `fail`, or an update pipeline that sees the new document as `$$new`
    and the variables of `let`; `unmatched` is `insert`, `discard` or `fail`.
    """

    into: Namespace
    on: tuple[str, ...]
    matched: Any
    unmatched: str
    let: Any


Sink = Out | Merge
_MATCHED = ("replace", "keepExisting", "merge", "fail")
_UNMATCHED = ("insert", "discard", "fail")


def parse_out(source: Any) -> Out:
    """Read `$out`."""
    if is_document(source) and "timeseries" in source:
        raise Refused("$out into a time series is not supported", code=115)
    return Out(namespace_of(source, "$out"))


def parse_merge(source: Any) -> Merge:
    """Read `$merge`."""
    fields = source if is_document(source) else {"into": source}
    if unknown := set(fields) - {"into", "on", "let", "whenMatched", "whenNotMatched"}:
        raise Refused(f"unknown argument of $merge. got={sorted(unknown)}", code=40415)
    if "into" not in fields:
        raise Refused("$merge needs into", code=40414)
    on = fields.get("on", "_id")
    paths = tuple(on) if is_array(on) else (on,)
    if not paths or not all(isinstance(item, str) and item for item in paths):
        raise Refused("$merge takes paths as `on`", code=51187 if not paths else 51134)
    matched, unmatched = fields.get("whenMatched", "merge"), fields.get("whenNotMatched", "insert")
    if not is_array(matched) and matched not in _MATCHED:
        raise Refused(f"$merge takes {', '.join(_MATCHED)} or a pipeline as whenMatched. got={matched!r}", code=2)
    if unmatched not in _UNMATCHED:
        raise Refused(f"$merge takes {', '.join(_UNMATCHED)} as whenNotMatched. got={unmatched!r}", code=2)
    variables = fields.get("let", {"new": "$$ROOT"})
    if not is_document(variables):
        raise Refused("$merge takes a document as let", code=14)
    for name in variables:
        check_variable(name)
    return Merge(namespace_of(fields["into"], "$merge"), paths, matched, unmatched, {"new": "$$ROOT", **variables})


@stage("$out", last_only=True, in_facet=False)
def _out(source: Any, reading: Reading) -> Stage:
    parse_out(source)
    return lambda documents, given: iter(documents)


@stage("$merge", last_only=True, in_facet=False)
def _merge(source: Any, reading: Reading) -> Stage:
    parse_merge(source)
    return lambda documents, given: iter(documents)


def _from_door(name: str) -> None:
    @stage(name, first_only=True, in_facet=False)
    def build(source: Any, reading: Reading) -> Stage:
        if not is_document(source):
            raise Refused(f"{name} takes a document", code=40602 if name == "$indexStats" else 40166)
        # The door gives its documents in the place of the collection's.
        return lambda documents, given: iter(documents)


for _name in ("$collStats", "$indexStats", "$currentOp", "$changeStream"):
    _from_door(_name)
