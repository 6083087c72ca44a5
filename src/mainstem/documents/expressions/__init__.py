"""The expression language of `$expr`, projections, aggregation and update pipelines.

Expressions compare by the total order of all values, without the type bracketing of filters, and a path that walks
through an array yields the array of what it finds there. Owns no filter semantics.
"""

from mainstem.documents.expressions import arithmetic, arrays, conversions, dates, logic, objects, strings
from mainstem.documents.expressions.binding import bound
from mainstem.documents.expressions.compiling import compiled, evaluate, evaluator, truthy, value_at
from mainstem.documents.expressions.numbers import combine
from mainstem.documents.expressions.registry import NOT_RUN, OPERATORS, Evaluator, Scope
from mainstem.documents.expressions.syntax import (
    FORMS,
    NO_NAMES,
    Names,
    check_variable,
    field_path,
    parse_expression,
)

# Importing an operator's module puts it into the registry.
OPERATOR_MODULES = (arithmetic, arrays, conversions, dates, logic, objects, strings)

__all__ = [
    "FORMS",
    "NOT_RUN",
    "NO_NAMES",
    "OPERATORS",
    "OPERATOR_MODULES",
    "Evaluator",
    "Names",
    "Scope",
    "bound",
    "check_variable",
    "combine",
    "compiled",
    "evaluate",
    "evaluator",
    "field_path",
    "parse_expression",
    "truthy",
    "value_at",
]
