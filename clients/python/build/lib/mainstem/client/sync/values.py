"""The app's values as JSON text."""

import math
from typing import Any

import msgspec

from mainstem.model.errors import Invalid

# The server refuses deeper values too.
DEPTH_MAX = 64

_encode = msgspec.json.Encoder(order="deterministic").encode


def json_text(value: Any) -> bytes:
    """The value's text; anything that JSON cannot carry unchanged is refused. Integers keep all their digits."""
    _check(value, 0)
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise Invalid("a text has half of a surrogate pair", reason="invalid_value") from None


def _check(value: Any, depth: int) -> None:
    match value:
        case None | bool() | str():
            return
        case int() | float():
            if not _is_finite(value):
                raise Invalid(f"a number must be finite. got={str(value)[:32]}", reason="invalid_value")
        case list() | dict():
            if depth >= DEPTH_MAX:
                raise Invalid(
                    f"a value is nested too deep. expected=at most {DEPTH_MAX} levels", reason="invalid_value"
                )
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise Invalid("an object's names must be text", reason="invalid_value")
                value = list(value.values())
            for item in value:
                _check(item, depth + 1)
        case _:
            raise Invalid(f"a value must be JSON. got={type(value).__name__}", reason="invalid_value")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every double
        return False
