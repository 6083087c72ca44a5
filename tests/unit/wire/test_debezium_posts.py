"""What a posted event is taken for: an envelope's own words count, a row's columns of the same names do not."""

import base64
import json
import uuid
from hashlib import md5

import pytest

from mainstem.wire.debezium import UNAVAILABLE, decode_message
from mainstem.wire.debezium_posts import Kind, look
from mainstem.wire.debezium_types import _digits, typed_row

FLAT = {"id": 5, "__schema": "sales", "__table": "audit", "__lsn": 7}


@pytest.mark.parametrize("column", [{"op": "t"}, {"after": 1}, {"source": {"schema": "hr", "table": "pay"}}])
def test_a_row_with_an_envelope_s_words_as_columns_is_a_row_of_its_own_table(column: dict[str, object]) -> None:
    found = look(json.dumps(FLAT | column).encode())
    assert found.kind is Kind.ROW and str(found.table) == "sales.audit"


def test_rows_that_share_a_place_and_an_op_are_two() -> None:
    one, other = (look(json.dumps(FLAT | {"op": "sold", "id": number}).encode()).identity for number in (1, 2))
    assert one is not None and one != other


def test_an_envelope_s_truncate_is_one() -> None:
    body = {"op": "t", "before": None, "after": None, "source": {"schema": "sales", "table": "audit", "lsn": 1}}
    assert look(json.dumps(body).encode()).kind is Kind.TRUNCATE


@pytest.mark.parametrize("digits", ["12345678901234567890123456789012345678", "-1", "0", "7"])
def test_decimals_keep_every_digit(digits: str) -> None:
    number = int(digits)
    encoded = base64.b64encode(number.to_bytes(17, "big", signed=True)).decode()
    scaled = _digits(encoded, 2)
    sign, text = ("-", digits[1:]) if number < 0 else ("", digits)
    text = text.zfill(3)
    assert scaled == f"{sign}{text[:-2]}.{text[-2:]}"


RAW = UNAVAILABLE.encode()
# What PostgreSQL's connector writes in the place of a large value that an update did not touch, by the value's type.
PLACEHOLDERS = {
    "text": UNAVAILABLE,
    "bytea": base64.b64encode(RAW).decode(),
    "bytea_hex": RAW.hex(),
    "texts": [UNAVAILABLE],
    "ints": list(RAW),
    "uuids": [str(uuid.UUID(bytes=md5(RAW, usedforsecurity=False).digest(), version=3))],
    "hstore": {UNAVAILABLE: UNAVAILABLE},
}


@pytest.mark.parametrize("name", PLACEHOLDERS)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_value_that_was_not_sent_is_no_value(name: str, wrapped: bool) -> None:
    row = {"id": 1, "n": 2, name: PLACEHOLDERS[name]}
    body = {"op": "u", "before": None, "after": row, "source": {"schema": "s", "table": "t"}}
    change = decode_message(json.dumps(body if wrapped else row | {"__table": "t"}).encode(), key_columns=("id",))
    assert change.columns == {"id": 1, "n": 2}  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["", "x", [], ["x"], [95, 95], {}, {"a": UNAVAILABLE}, None, 5])
def test_a_value_that_was_sent_is_kept(value: object) -> None:
    body = {"op": "u", "after": {"id": 1, "v": value}, "source": {"schema": "s", "table": "t"}}
    change = decode_message(json.dumps(body).encode(), key_columns=("id",))
    assert change.columns == {"id": 1, "v": value}  # type: ignore[union-attr]


def test_what_is_in_arrays_and_maps_has_its_type_too() -> None:
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    day = {"type": "int32", "name": "io.debezium.time.Date"}
    schema = {
        "fields": [
            {"field": "prices", "type": "array", "items": decimal},
            {"field": "days", "type": "map", "keys": {"type": "string"}, "values": day},
            {"field": "deep", "type": "array", "items": {"type": "array", "items": day}},
            {"field": "part", "type": "struct", "fields": [{"field": "on", **day}]},
        ]
    }
    row = {"prices": ["BNI=", None], "days": {"a": 0, "b": None}, "deep": [[1], None], "part": {"on": 2}}
    values, types = typed_row(row, schema)
    assert values == {
        "prices": ["12.34", None],
        "days": {"a": "1970-01-01", "b": None},
        "deep": [["1970-01-02"], None],
        "part": {"on": "1970-01-03"},
    }
    assert types == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"b": {"c": 1.50}, "n": null}', {"b": {"c": 1.5}, "n": None}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('{"a": 0.12345678901234567890}', '{"a": 0.12345678901234567890}'),
        ("1e400", "1e400"),
        ('"words"', "words"),
    ],
)
def test_json_is_its_value_unless_a_digit_would_be_lost(text: str, value: object) -> None:
    row = [{"field": "id", "type": "int32"}, {"field": "doc", "type": "string", "name": "io.debezium.data.Json"}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": row}]}
    payload = {"op": "c", "after": {"id": 1, "doc": text}, "source": {"schema": "s", "table": "t"}}
    change = decode_message(json.dumps({"schema": schema, "payload": payload}).encode(), key_columns=("id",))
    assert change.columns == {"id": 1, "doc": value}  # type: ignore[union-attr]
