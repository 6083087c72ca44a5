"""From the expression language to its tree. Owns its syntax: variables, named arguments, and how many there are."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from mainstem.documents.errors import Refused
from mainstem.documents.expressions.registry import NOT_RUN, OPERATORS, Operator
from mainstem.documents.filters.ast import Call, Compound, Each, Expression, Fold, Let, Literal, Reference, Variable
from mainstem.documents.paths import Path, parse_path
from mainstem.documents.values import DEPTH_MAX, MISSING, is_array, is_document, order_key

SYSTEM_VARIABLES = frozenset(
    {"ROOT", "CURRENT", "NOW", "CLUSTER_TIME", "REMOVE", "DESCEND", "PRUNE", "KEEP", "USER_ROLES"}
)
_VARIABLE = re.compile(r"[a-z\u0080-\U0010ffff][\w\u0080-\U0010ffff]*")
_ABSENT = Literal(MISSING)

Names = frozenset[str]
NO_NAMES: Names = frozenset()


def _refused(message: str, code: int) -> Refused:
    return Refused(message, code=code)


def parse_expression(source: Any, names: Names = NO_NAMES, depth: int = 0) -> Expression:
    """Read an expression. `names` are the variables that are defined around it.

    An unknown operator or variable, or a wrong number of arguments, is an error.
    """
    if depth > DEPTH_MAX:
        raise _refused(f"expression is nested too deep. expected=at most {DEPTH_MAX} levels", 15)
    if isinstance(source, str):
        return parse_reference(source, names) if source.startswith("$") else Literal(source)
    if is_array(source):
        return Compound(None, tuple(parse_expression(item, names, depth + 1) for item in source))
    if not is_document(source):
        order_key(source)
        return Literal(source)
    first = next(iter(source), "")
    if not first.startswith("$"):
        return _object(source, names, depth)
    if len(source) != 1:
        raise _refused(f"an expression has one operator. got={list(source)[:3]}", 15983)
    return _call(first, source[first], names, depth)


def _object(source: Mapping[str, Any], names: Names, depth: int) -> Expression:
    for name in source:
        if "." in name:
            raise _refused(f"a field's name in an expression has no dot. got={name!r}", 16412)
        if name.startswith("$"):
            raise _refused(f"a field's name in an expression does not start with $. got={name!r}", 16410)
    return Compound(tuple(source), tuple(parse_expression(item, names, depth + 1) for item in source.values()))


def parse_reference(text: str, names: Names) -> Expression:
    """Read `$path`, `$$variable` or `$$variable.path`."""
    if text == "$":
        raise _refused("a field path has a name after the $. got='$'", 16872)
    if not text.startswith("$$"):
        return Reference(field_path(text[1:]))
    name, dot, rest = text[2:].partition(".")
    path = field_path(rest) if dot else ()
    if name == "CURRENT" and name not in names:
        return Reference(path)
    if not name:
        raise _refused(f"a variable has a name. got={text!r}", 16867)
    if name not in names and name not in SYSTEM_VARIABLES:
        raise _refused(f"undefined variable. got=$${name}", 17276)
    return Variable(name, path)


def field_path(text: str) -> Path:
    """A path of plain names, as expressions and stages take them."""
    path = parse_path(text)
    for part in path:
        if not part:
            code = 40353 if text.endswith(".") else 15998
            raise _refused(f"a field path has a name in each part. got={text!r}", code)
        if part.startswith("$"):
            raise _refused(f"a field path's names do not start with $. got={text!r}", 16410)
    return path


def _call(name: str, operand: Any, names: Names, depth: int) -> Expression:
    if name in ("$literal", "$const"):
        order_key(operand)
        return Literal(operand)
    form = _FORMS.get(name)
    if form is not None:
        return form(operand, names, depth + 1)
    operator = OPERATORS.get(name)
    if operator is None:
        if name in NOT_RUN:
            raise _refused(f"{name} is not supported: {NOT_RUN[name]}", 115)
        raise _refused(f"unknown expression operator. got={name}", 168)
    if operator.parameters:
        return _named_call(operator, operand, names, depth)
    items = operand if is_array(operand) else [operand]
    if not operator.low <= len(items) <= operator.high:
        expected = f"{operator.low}" if operator.low == operator.high else f"{operator.low}..{operator.high}"
        raise _refused(f"wrong number of arguments of {name}. expected={expected} got={len(items)}", 16020)
    return Call(name, tuple(parse_expression(item, names, depth + 1) for item in items))


def _named_call(operator: Operator, operand: Any, names: Names, depth: int) -> Expression:
    name = operator.name
    if not is_document(operand) or next(iter(operand), "").startswith("$"):
        shorthand = _SHORTHANDS.get(name)
        if shorthand is None:
            raise _refused(f"{name} takes a document of {', '.join(operator.parameters)}", _FORM_CODES.get(name, 9))
        operand = shorthand(operand)
    if unknown := set(operand) - set(operator.parameters):
        raise _refused(f"unknown argument of {name}. got={sorted(unknown)}", _FORM_CODES.get(name, 9))
    arguments: list[Expression] = []
    for parameter in operator.parameters:
        if parameter in operand:
            arguments.append(parse_expression(operand[parameter], names, depth + 1))
        elif parameter in operator.optional:
            arguments.append(_DEFAULTS.get(name, _ABSENT))
        else:
            raise _refused(f"{name} needs an argument. expected={parameter}", _FORM_CODES.get(name, 9))
    return Call(name, tuple(arguments))


def _date_shorthand(operand: Any) -> dict[str, Any]:
    """`{$year: "$at"}` for `{$year: {date: "$at"}}`; also as an array of one."""
    if is_array(operand):
        if len(operand) != 1:
            raise _refused(f"a date operator takes one argument. got={len(operand)}", 40536)
        operand = operand[0]
    return {"date": operand}


_DATE_OPERATORS = (
    "$year", "$month", "$week", "$dayOfMonth", "$dayOfWeek", "$dayOfYear", "$hour", "$minute", "$second",
    "$millisecond", "$isoDayOfWeek", "$isoWeek", "$isoWeekYear",
)  # fmt: skip
_SHORTHANDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys(_DATE_OPERATORS, _date_shorthand),
    "$getField": lambda operand: {"field": operand},
}
# $getField has one optional argument: the document it looks into.
_DEFAULTS: dict[str, Expression] = {"$getField": Reference(())}
_FORM_CODES = {
    "$dateToString": 18628,
    "$dateFromString": 40541,
    "$dateFromParts": 40518,
    "$dateToParts": 40520,
    "$dateAdd": 5166401,
    "$dateSubtract": 5166401,
    "$dateDiff": 5166302,
    "$dateTrunc": 5439008,
    "$trim": 50694,
    "$ltrim": 50694,
    "$rtrim": 50694,
    "$regexMatch": 31022,
    "$regexFind": 31022,
    "$regexFindAll": 31022,
    "$replaceOne": 51749,
    "$replaceAll": 51749,
    "$sortArray": 2942501,
    "$getField": 3041702,
    "$setField": 4161101,
    "$unsetField": 4161101,
    "$zip": 34460,
    "$switch": 40060,
}


def _fields(
    name: str, operand: Any, wanted: tuple[str, ...], optional: tuple[str, ...], code: int, unknown_code: int
) -> Mapping[str, Any]:
    if not is_document(operand):
        raise _refused(f"{name} takes a document of {', '.join(wanted)}", code)
    if unknown := set(operand) - set(wanted) - set(optional):
        raise _refused(f"unknown argument of {name}. got={sorted(unknown)}", unknown_code)
    for item in wanted:
        if item not in operand:
            raise _refused(f"{name} needs an argument. expected={item}", code + 2)
    fields: Mapping[str, Any] = operand
    return fields


def check_variable(name: Any) -> str:
    """A variable's name, which a user may define: it starts with a small letter; CURRENT may be set anew."""
    if not isinstance(name, str) or (name != "CURRENT" and not _VARIABLE.fullmatch(name)):
        raise _refused(f"a variable's name starts with a small letter, then letters and digits. got={name!r}", 16867)
    return name


def _let(operand: Any, names: Names, depth: int) -> Expression:
    fields = _fields("$let", operand, ("vars", "in"), (), 16874, 16875)
    if not is_document(fields["vars"]):
        raise _refused("$let takes a document of vars", 10065)
    new = tuple(check_variable(name) for name in fields["vars"])
    values = tuple(parse_expression(item, names, depth) for item in fields["vars"].values())
    return Let(new, values, parse_expression(fields["in"], names | set(new), depth))


def _map(operand: Any, names: Names, depth: int) -> Expression:
    fields = _fields("$map", operand, ("input", "in"), ("as",), 16878, 16879)
    name = check_variable(fields.get("as", "this"))
    body = parse_expression(fields["in"], names | {name}, depth)
    return Each(parse_expression(fields["input"], names, depth), name, body, keeps=False, limit=_ABSENT)


def _filter(operand: Any, names: Names, depth: int) -> Expression:
    fields = _fields("$filter", operand, ("input", "cond"), ("as", "limit"), 28646, 28647)
    name = check_variable(fields.get("as", "this"))
    body = parse_expression(fields["cond"], names | {name}, depth)
    limit = parse_expression(fields["limit"], names, depth) if "limit" in fields else _ABSENT
    return Each(parse_expression(fields["input"], names, depth), name, body, keeps=True, limit=limit)


def _reduce(operand: Any, names: Names, depth: int) -> Expression:
    fields = _fields("$reduce", operand, ("input", "initialValue", "in"), (), 40075, 40076)
    return Fold(
        parse_expression(fields["input"], names, depth),
        parse_expression(fields["initialValue"], names, depth),
        parse_expression(fields["in"], names | {"this", "value"}, depth),
    )


def _cond(operand: Any, names: Names, depth: int) -> Expression:
    if is_document(operand) and not next(iter(operand), "").startswith("$"):
        if unknown := set(operand) - {"if", "then", "else"}:
            raise _refused(f"unknown argument of $cond. got={sorted(unknown)}", 17083)
        for code, item in ((17080, "if"), (17081, "then"), (17082, "else")):
            if item not in operand:
                raise _refused(f"$cond needs an argument. expected={item}", code)
        operand = [operand["if"], operand["then"], operand["else"]]
    if not is_array(operand) or len(operand) != 3:
        raise _refused("wrong number of arguments of $cond. expected=3", 16020)
    return Call("$cond", tuple(parse_expression(item, names, depth) for item in operand))


def _switch(operand: Any, names: Names, depth: int) -> Expression:
    """Its tree is a call of test, value, test, value, …, default."""
    if not is_document(operand):
        raise _refused("$switch takes a document of branches and default", 40060)
    if unknown := set(operand) - {"branches", "default"}:
        raise _refused(f"unknown argument of $switch. got={sorted(unknown)}", 40067)
    branches = operand.get("branches")
    if not is_array(branches):
        raise _refused("$switch takes an array of branches", 40061)
    if not branches:
        raise _refused("$switch takes at least one branch. got=[]", 40068)
    arguments: list[Expression] = []
    for branch in branches:
        if not is_document(branch):
            raise _refused("a branch of $switch is a document of case and then", 40062)
        if unknown := set(branch) - {"case", "then"}:
            raise _refused(f"unknown argument of a branch of $switch. got={sorted(unknown)}", 40063)
        for code, item in ((40064, "case"), (40065, "then")):
            if item not in branch:
                raise _refused(f"a branch of $switch needs an argument. expected={item}", code)
            arguments.append(parse_expression(branch[item], names, depth))
    if "default" in operand:
        arguments.append(parse_expression(operand["default"], names, depth))
    return Call("$switch", tuple(arguments))


_Form = Callable[[Any, Names, int], Expression]
_FORMS: dict[str, _Form] = {
    "$let": _let,
    "$map": _map,
    "$filter": _filter,
    "$reduce": _reduce,
    "$cond": _cond,
    "$switch": _switch,
}
# For the guide: what is read here and not by the registry.
FORMS = frozenset(_FORMS) | {"$literal", "$const"}
