"""From JSON text to a column's type: what fits, what does not, and that what fits comes back as it was."""

import base64
import datetime as dt
import decimal
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.tables.convert import UNFIT, converter, text_of
from mainstem.tables.types import ColumnType

UUID = "123e4567-e89b-12d3-a456-426614174000"
NOON = dt.datetime(2024, 2, 29, 12)


def convert(column_type: str, value: Any) -> Any:
    """A value as a producer's JSON has it."""
    return converter(ColumnType(column_type))(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("column_type", "value", "expected"),
    [
        ("boolean", True, True),
        ("boolean", "false", False),
        ("boolean", "Y", True),
        ("boolean", 0, False),
        ("int", 2**31 - 1, 2**31 - 1),
        ("int", "-2147483648", -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", " -9223372036854775808 ", -(2**63)),
        ("float", 0.5, 0.5),
        ("float", "-inf", -math.inf),
        # As Spark and others write the greatest float.
        ("float", "-3.4028235E38", -3.4028235e38),
        ("double", 1e308, 1e308),
        ("double", "1.5e3", 1500.0),
        ("double", 7, 7.0),
        ("double", "Infinity", math.inf),
        ("decimal(10,2)", 1.5, decimal.Decimal("1.50")),
        ("decimal(10,2)", "12345678.90", decimal.Decimal("12345678.90")),
        ("decimal(38,0)", "9" * 38, decimal.Decimal("9" * 38)),
        ("decimal(38,38)", "0." + "9" * 38, decimal.Decimal("0." + "9" * 38)),
        ("decimal(4,2)", "1e1", decimal.Decimal("10.00")),
        ("decimal(4,2)", "0e50", decimal.Decimal("0.00")),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("date", "2024-2-9", dt.date(2024, 2, 9)),
        ("date", "2024-02-29T00:00:00.000Z", dt.date(2024, 2, 29)),
        ("date", "2024-02-29 00:00", dt.date(2024, 2, 29)),
        ("timestamp", "2024-02-29T12:00:00", NOON),
        ("timestamp", "2024-02-29 12:00:00.123456", NOON.replace(microsecond=123456)),
        ("timestamp", "2024-02-29T12:00:00Z", NOON),
        ("timestamp", "2024-02-29", dt.datetime(2024, 2, 29)),
        ("timestamptz", "2024-02-29T12:00:00Z", NOON.replace(tzinfo=dt.UTC)),
        ("timestamptz", "2024-02-29T12:00:00+05:30", NOON.replace(hour=6, minute=30, tzinfo=dt.UTC)),
        ("timestamptz", "2024-02-29T12:00:00-0100", NOON.replace(hour=13, tzinfo=dt.UTC)),
        ("uuid", UUID, uuid.UUID(UUID).bytes),
        ("uuid", UUID.upper(), uuid.UUID(UUID).bytes),
        ("binary", "aGk=", b"hi"),
        ("binary", "", b""),
        ("string", "ü\u0000😀", "ü\u0000😀"),
        ("string", 10**30, str(10**30)),
        ("string", True, "true"),
        ("string", {"b": [1, None], "a": "ü"}, '{"b":[1,null],"a":"\\u00fc"}'),
    ],
)
def test_what_fits(column_type: str, value: Any, expected: Any) -> None:
    found = convert(column_type, value)
    assert found == expected and type(found) is type(expected)


UNFITTING: dict[str, list[Any]] = {
    "boolean": [2, "maybe", "", [True], {}],
    "int": [2**31, -(2**31) - 1, 1.5, "1.0", "", "x", True, [1], "1_000", "9" * 31],
    "long": [2**63, -(2**63) - 1, 0.5, "1e3", "0x10", {}],
    "float": [1e39, "-1e39", 3.4028236e38, "x", "", True, []],
    "double": ["1e999", "9" * 400, "9" * 400 + ".", "x", "1,5", "", False, {}],
    "decimal(4,2)": [100, "100.00", 1.234, "x", "nan", "", True, "1e9999", "1e-9999"],
    "date": [
        "2023-02-29", "2024-13-01", "24-01-01", "x", "", 19000, "2024-01-01x",
        # A time of the day has no place in a date.
        *(f"2024-01-01{rest}" for rest in ("T10:00:00Z", " 00:00:01", "T00:00:00.5", "T", " noon")),
    ],
    "timestamp": ["2024-01-01T25:00", "2024-01-01T10:00:61", "x", "", 1.7e9, []],
    "timestamptz": ["2024-01-01T10:00+19:00", "0001-01-01T00:00:00+01:00", "now"],
    "uuid": [UUID[:-1], UUID.replace("-", ""), f"{{{UUID}}}", "", 5],
    "binary": ["aGk", "a b=", "ü", "aGk=\n", {"a": 1}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("column_type", "value"), [(kind, value) for kind, values in UNFITTING.items() for value in values]
)
def test_what_does_not_fit(column_type: str, value: Any) -> None:
    assert convert(column_type, value) is UNFIT


@given(st.integers())
def test_every_integer_is_itself_or_does_not_fit(value: int) -> None:
    assert convert("int", value) == (value if -(2**31) <= value < 2**31 else UNFIT)
    assert convert("long", value) == (value if -(2**63) <= value < 2**63 else UNFIT)
    assert convert("string", value) == str(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_is_itself(value: float) -> None:
    found = convert("double", value)
    assert found == value and math.copysign(1, found) == math.copysign(1, value)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.data())
def test_a_decimal_is_itself_or_does_not_fit(value: decimal.Decimal, precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    found = convert(f"decimal({precision},{scale})", str(value))
    if found is not UNFIT:
        assert found == value and -found.as_tuple().exponent == scale
        assert len(str(abs(found)).replace(".", "").lstrip("0")) <= precision
    else:
        with decimal.localcontext(decimal.Context(prec=10_000)):
            assert (
                abs(value) >= decimal.Decimal(10) ** (precision - scale)
                or value.scaleb(scale) % 1 != 0
                or (
                    # Exponents of more than four digits are no numbers that anybody means.
                    abs(int(value.as_tuple().exponent)) > 9_999 or abs(value.adjusted()) > 9_999
                )
            )


@given(st.dates())
def test_every_date_is_itself(value: dt.date) -> None:
    assert convert("date", value.isoformat()) == value


@given(st.datetimes())
def test_every_time_is_itself(value: dt.datetime) -> None:
    assert convert("timestamp", value.isoformat()) == value
    assert convert("timestamptz", value.isoformat() + "Z") == value.replace(tzinfo=dt.UTC)


_ZONES = st.integers(-18 * 60, 18 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))


@given(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=_ZONES))
def test_every_moment_is_itself_whatever_its_zone(value: dt.datetime) -> None:
    assert convert("timestamptz", value.isoformat()) == value


@given(st.binary())
def test_every_binary_is_itself(value: bytes) -> None:
    assert convert("binary", base64.b64encode(value).decode()) == value


@given(st.uuids())
def test_every_uuid_is_itself(value: uuid.UUID) -> None:
    assert convert("uuid", str(value)) == value.bytes


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(_JSON)
def test_a_text_column_keeps_every_value(value: Any) -> None:
    found = text_of(json.dumps(value, indent=1).encode())
    assert found == value if isinstance(value, str) else json.loads(found) == value
