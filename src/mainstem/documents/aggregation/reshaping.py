"""Stages that change what is in each document, one document at a time."""

from collections.abc import Iterator
from typing import Any

from mainstem.documents.aggregation.registry import stage
from mainstem.documents.aggregation.running import Document, Documents, Reading, Run, Stage
from mainstem.documents.errors import Refused
from mainstem.documents.expressions import Evaluator, Scope, compiled, parse_expression
from mainstem.documents.projection import Projection, parse_additions, parse_projection, parse_removals
from mainstem.documents.values import MISSING, is_array, is_document, type_name


def _projecting(projection: Projection) -> Stage:
    def run(documents: Documents, given: Run) -> Iterator[Document]:
        apply, scope = projection.apply, given.scope
        for document in documents:
            yield apply(document, scope)

    return run


@stage("$project")
def project(source: Any, reading: Reading) -> Stage:
    return _projecting(parse_projection(source, reading.names, stage=True))


@stage("$addFields")
def add_fields(source: Any, reading: Reading) -> Stage:
    return _projecting(parse_additions(source, reading.names))


@stage("$set")
def set_fields(source: Any, reading: Reading) -> Stage:
    return _projecting(parse_additions(source, reading.names, name="$set"))


@stage("$unset")
def unset(source: Any, reading: Reading) -> Stage:
    return _projecting(parse_removals(source))


@stage("$replaceRoot")
def replace_root(source: Any, reading: Reading) -> Stage:
    if not is_document(source):
        raise Refused("$replaceRoot takes a document of newRoot", code=40229)
    if set(source) != {"newRoot"}:
        raise Refused(f"$replaceRoot takes newRoot. got={sorted(source)}", code=40230 if source else 40231)
    return replace_with(source["newRoot"], reading)


@stage("$replaceWith")
def replace_with(source: Any, reading: Reading) -> Stage:
    new_root = compiled(parse_expression(source, reading.names))

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        for document in documents:
            found = new_root(document, given.scope)
            if not is_document(found):
                raise Refused(f"a new root is a document. got={type_name(found)}", code=40228)
            yield found

    return run


@stage("$redact")
def redact(source: Any, reading: Reading) -> Stage:
    decide = compiled(parse_expression(source, reading.names | {"CURRENT"}))

    def run(documents: Documents, given: Run) -> Iterator[Document]:
        for document in documents:
            kept = _redacted(document, decide, {**given.scope, "ROOT": document})
            if kept is not MISSING:
                yield kept

    return run


def _redacted(document: Any, decide: Evaluator, scope: Scope) -> Any:
    scope["CURRENT"] = document
    match decide(document, scope):
        case "keep":
            return document
        case "prune":
            return MISSING
        case "descend":
            fields = {name: _inside(value, decide, scope) for name, value in document.items()}
            return {name: value for name, value in fields.items() if value is not MISSING}
        case other:
            raise Refused(f"$redact comes to $$KEEP, $$PRUNE or $$DESCEND. got={type_name(other)}", code=17053)


def _inside(value: Any, decide: Evaluator, scope: Scope) -> Any:
    if is_document(value):
        return _redacted(value, decide, scope)
    if is_array(value):
        return [found for item in value if (found := _inside(item, decide, scope)) is not MISSING]
    return value
