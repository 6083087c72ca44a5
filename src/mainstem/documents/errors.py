"""The codes of MongoDB's errors, for those that this package raises. Doors put them into answers.

`Refused` carries its own code. An `Invalid` without one has the code of its reason.
"""

from typing import Final

from mainstem.model.errors import Invalid

_NAMES: Final[dict[int, str]] = {
    2: "BadValue",
    9: "FailedToParse",
    14: "TypeMismatch",
    15: "Overflow",
    27: "IndexNotFound",
    28: "PathNotViable",
    40: "ConflictingUpdateOperators",
    52: "DollarPrefixedFieldName",
    54: "NotSingleValueField",
    56: "EmptyFieldName",
    57: "DottedFieldName",
    66: "ImmutableField",
    72: "InvalidOptions",
    73: "InvalidNamespace",
    115: "CommandNotSupported",
    121: "DocumentValidationFailure",
    146: "ExceededMemoryLimit",
    168: "InvalidPipelineOperator",
    197: "InvalidIndexSpecificationOption",
    241: "ConversionFailure",
    292: "QueryExceededMemoryLimitNoDiskUseAllowed",
}
_BY_REASON: Final[dict[str, int]] = {
    "bad_filter": 2,
    "bad_regex": 51091,
    "bad_path": 2,
    "bad_value": 2,
    "bad_expression": 9,
    "bad_projection": 2,
    "bad_sort": 2,
    "parallel_arrays": 2,
    "bad_update": 9,
    "conflicting_update": 40,
    "immutable_field": 66,
    "too_deep": 15,
}


class Refused(Invalid):
    """The request is wrong in a way that MongoDB has a number for."""

    def __init__(self, message: str, *, code: int, reason: str = "bad_expression") -> None:
        super().__init__(message, reason=reason)
        self.code = code


def error_code(error: Invalid) -> int:
    """The number that a driver sees."""
    return error.code if isinstance(error, Refused) else _BY_REASON.get(error.reason, 2)


def code_name(code: int) -> str:
    """The name that goes with a number. Most of the language's own numbers have none."""
    return _NAMES.get(code, f"Location{code}")
