"""What fits a declared type, text by text: what does not is a dead letter, and reaches no replica."""

import json

import pytest

from mainstem.feeds.fitting import fits
from mainstem.tables.types import parse_type

TYPES = [
    *("boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "binary", "uuid"),
    *("variant", "decimal(4,2)", "decimal(38,0)", "decimal(10,10)"),
]
# Values as JSON text, of every kind and on both sides of every bound.
NUMBERS = [
    *("0", "-0", "1", "-1", "12.0", "12.5", "99.99", "99.994", "99.995", "99.999", "100", "-99.995", "1e3"),
    *("1E400", "1e-400", "0.5", "0.00000000004", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("99999999999999999999999999999999999999", "100000000000000000000000000000000000000", "3.4e39", "1e308"),
    "1e309",
]
TEXTS = [
    *NUMBERS,
    *("", " ", " 12 ", "\t7\n", "+5", "--5", "1_000", "1,000.5", ",1", "12.", ".5", ".", "1e", "1d", "1f", "0x10", "٣"),
    *("NaN", "nan", "Infinity", "-inf", "+Infinity", "infinit", "null", "abc"),
    *("true", "TRUE", " t ", "yes", "n", "on", "tru", "1.0"),
    *("2024", "2024-1", "2024-01", "2024-1-5", "2024-01-05", "2024-02-30", "2023-02-29", "2024-02-29", "2024-13-01"),
    *("+2024-01-05", "-0001-01-01", "20240105", "12024-01-01", "99999-01-01", "24-01-01", "2024/01/05", "2024-01-05T"),
    *("2024-01-05 ", "2024-01-05 noon", "2024-01-05T10", "2024-01-05 10:20", "2024-01-05T10:20:30", "10:20:30"),
    *("2024-01-05T10:20:30Z", "2024-01-05 10:20:30.123456789", "2024-01-05T10:20:30.5+02:00", "2024-01-05T10:20:30+2"),
    *("2024-01-05T24:00:00", "2024-01-05T10:60:00", "2024-01-05T10:20:61", "2024-01-05T10:20:30 UTC", "2024-01-01T"),
    *("2024-01-05T10:20:30+0200", "2024-01-05T10:20:30GMT+1", "2024-01-05T10:20:30-19:00", "2024-01T10:20", "T10:20"),
    *("2024-01-05T10:20:30 Europe/Paris", "2024-01-05T10:20:30 Mars/Base", "2024-01-05T10:20:30+18:00", "25:00", "T10"),
    *("2024-01-05T10:20:30+18:01", "2024-01-05T10:20:30+01:60", "2024-01-05T10:20:30UTC+01:00:00", "2024-01-05 1:2Z"),
    *("2024-01-05T10:20:30Z2", "2024-01-05T10:20:30.Z", "2024-01-05T1:2:3", "2024-01-05t10:20:30", "now", "epoch"),
    *("YWJj", "YWI=", "YWI", "YQ==", "YQ", "YQ=", "Y", "YW Jj", "YW\nJj", "YWJj=", "Y-_j", "====", "YWJjYQ==YWJj"),
    *("123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"),
    *("123e4567e89b12d3a456426614174000", "2024-01-05 1:2 Z", "T1:2:3Z", "2024-01-05 1:2:3  Z", "T1:2Z"),
    *("{123e4567-e89b-12d3-a456-426614174000}", "123e4567-e89b-12d3-a456-42661417400", "ключ", 'a"b', "😀"),
]
VALUES = [*NUMBERS, *map(json.dumps, TEXTS), "null", "true", "false", "{}", '{"a":1}', "[]", "[1,2]", "[ 1 ]"]


def test_null_and_text_always_fit() -> None:
    for name in TYPES:
        assert fits(parse_type(name), b"null")
        assert fits(parse_type(name), b" null ")
    assert all(fits(parse_type(name), value.encode()) for name in ("string", "variant") for value in VALUES)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("long", b"7", True),
        ("long", b"7.5", False),
        ("long", b'"seven"', False),
        ("boolean", b"true", True),
        ("boolean", b'"maybe"', False),
        ("date", b'"2024-02-29"', True),
        ("date", b'"2023-02-29"', False),
        ("timestamp", b'"2024-02-29T10:20:30Z"', True),
        ("decimal(4,2)", b"99.99", True),
        ("decimal(4,2)", b"100", False),
    ],
)
def test_what_fits(name: str, value: bytes, expected: bool) -> None:
    assert fits(parse_type(name), value) is expected


@pytest.mark.parametrize("name", TYPES)
def test_every_value_is_judged(name: str) -> None:
    """Whatever a client sends fits or does not; nothing raises."""
    judged = {value: fits(parse_type(name), value.encode()) for value in VALUES}
    assert set(judged.values()) <= {True, False} and judged["null"]
