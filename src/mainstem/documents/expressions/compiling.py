"""Expressions as closures, made once and run per document. Owns paths, variables and the order of evaluation.

An evaluator takes the document and the variables. It keeps nothing between calls, so threads may share it.
"""

# ruff: noqa: PLR0911 - a closed union is read case by case, and each case returns.

from collections.abc import Callable
from typing import Any

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.registry import OPERATORS, Evaluator, Scope, wrong_type
from mainstem.documents.filters.ast import Call, Compound, Each, Expression, Fold, Let, Literal, Reference, Variable
from mainstem.documents.paths import Path
from mainstem.documents.values import MISSING, Rank, is_array, is_document, is_number, number_of, rank_of

_MARKS = {"REMOVE": MISSING, "DESCEND": "descend", "PRUNE": "prune", "KEEP": "keep"}


def evaluate(expression: Expression, document: Any, scope: Scope | None = None) -> Any:
    """The expression's value on one document. For many documents, `evaluator` once is faster."""
    return compiled(expression)(document, {} if scope is None else scope)


def evaluator(expression: Expression, scope: Scope | None = None) -> Callable[[Any], Any]:
    """The expression as a function of a document. A wrong type or a division by zero is an error, as in MongoDB."""
    inner = compiled(expression)
    variables = {} if scope is None else scope
    return lambda document: inner(document, variables)


def compiled(expression: Expression) -> Evaluator:
    """The expression as a function of a document and the variables."""
    match expression:
        case Literal(value):
            return lambda document, scope: value
        case Reference(path):
            return _reference(path)
        case Variable(name, path):
            return _variable(name, path)
        case Compound(names, items):
            return _compound(names, [compiled(item) for item in items])
        case Let():
            return _let(expression)
        case Each():
            return _each(expression)
        case Fold():
            return _fold(expression)
        case Call(name, arguments):
            return _applied(name, [compiled(item) for item in arguments])


def _reference(path: Path) -> Evaluator:
    if not path:
        return lambda document, scope: document
    if len(path) == 1:
        name = path[0]

        def direct(document: Any, scope: Scope) -> Any:
            if type(document) is dict:
                return document.get(name, MISSING)
            return value_at(document, path)

        return direct
    return lambda document, scope: value_at(document, path)


def value_at(node: Any, path: Path, at: int = 0) -> Any:
    """What a path finds: through an array, the array of what it finds in the elements."""
    while at < len(path):
        if is_document(node):
            node = node.get(path[at], MISSING)
            at += 1
        elif is_array(node):
            found = [value_at(item, path, at) for item in node if is_document(item) or is_array(item)]
            return [item for item in found if item is not MISSING]
        else:
            return MISSING
    return node


def _variable(name: str, path: Path) -> Evaluator:
    if name in _MARKS:
        mark = _MARKS[name]
        return lambda document, scope: mark
    if name == "ROOT":
        # Inside $redact the document at hand is a part of the root.
        return lambda document, scope: value_at(scope.get("ROOT", document), path)

    def read(document: Any, scope: Scope) -> Any:
        if name not in scope:
            raise Refused(f"a variable has no value here. got=$${name}", code=51144)
        return value_at(scope[name], path)

    return read


def _compound(names: tuple[str, ...] | None, parts: list[Evaluator]) -> Evaluator:
    if names is None:
        return lambda document, scope: [None if (item := part(document, scope)) is MISSING else item for part in parts]
    fields = list(zip(names, parts, strict=True))
    return lambda document, scope: {
        name: value for name, part in fields if (value := part(document, scope)) is not MISSING
    }


def _let(expression: Let) -> Evaluator:
    values = [(name, compiled(value)) for name, value in zip(expression.names, expression.values, strict=True)]
    body = compiled(expression.body)

    def run(document: Any, scope: Scope) -> Any:
        inner = dict(scope)
        for name, value in values:
            inner[name] = value(document, scope)
        return body(inner.get("CURRENT", document), inner)

    return run


def _each(expression: Each) -> Evaluator:
    source, body, limit = compiled(expression.input), compiled(expression.body), compiled(expression.limit)
    name, keeps = expression.name, expression.keeps

    def run(document: Any, scope: Scope) -> Any:
        array = source(document, scope)
        if array is None or array is MISSING:
            return None
        if not is_array(array):
            raise wrong_type("$filter" if keeps else "$map", "an array as input", array, 28651 if keeps else 16883)
        inner = dict(scope)
        found: list[Any] = []
        most = _limit(limit(document, scope)) if keeps else None
        for element in array:
            inner[name] = element
            value = body(document, inner)
            if not keeps:
                found.append(None if value is MISSING else value)
            elif truthy(value):
                found.append(element)
                if len(found) == most:
                    break
        return found

    return run


def _limit(value: Any) -> int | None:
    if value is None or value is MISSING:
        return None
    number = number_of(value) if is_number(value) else 0
    if number != int(number) or number < 1:
        raise Refused(f"$filter takes a whole number above 0 as limit. got={value!r}", code=327392)
    return int(number)


def _fold(expression: Fold) -> Evaluator:
    source, initial, body = (compiled(item) for item in (expression.input, expression.initial, expression.body))

    def run(document: Any, scope: Scope) -> Any:
        array = source(document, scope)
        if array is None or array is MISSING:
            return None
        if not is_array(array):
            raise wrong_type("$reduce", "an array as input", array, 40080)
        inner = dict(scope)
        value = initial(document, scope)
        for element in array:
            inner["value"], inner["this"] = value, element
            value = body(document, inner)
        return value

    return run


def _applied(name: str, parts: list[Evaluator]) -> Evaluator:
    operator = OPERATORS[name]
    compute = operator.compute
    if operator.lazy:
        return compute(*parts)  # type: ignore[no-any-return]
    if len(parts) == 1:
        only = parts[0]
        return lambda document, scope: compute(only(document, scope))
    if len(parts) == 2:
        left, right = parts
        return lambda document, scope: compute(left(document, scope), right(document, scope))
    return lambda document, scope: compute(*[part(document, scope) for part in parts])


def truthy(value: Any) -> bool:
    """False, null, missing and zero are false; everything else, the empty text too, is true."""
    if value is True or value is False:
        return bool(value)
    match rank_of(value):
        case Rank.NUMBER:
            return bool(number_of(value))
        case Rank.NULL | Rank.MISSING:
            return False
        case _:
            return True
