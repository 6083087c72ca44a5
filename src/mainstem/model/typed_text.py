"""Texts that stand for a value whose type JSON cannot say. In JSON they are plain texts.

Who makes rows of typed values (the Mongo door) leaves these in them, so that the shape of a segment knows the type.
"""


class TimeText(str):
    """A point of time as ISO 8601 in UTC."""

    __slots__ = ()


class DecimalText(str):
    """An exact number that a column of `DECIMAL` holds."""

    __slots__ = ()


# Precision and scale of inferred columns of exact numbers: every integer of 64 bits fits beside 18 decimal places.
DECIMAL_PRECISION, DECIMAL_SCALE = 38, 18
