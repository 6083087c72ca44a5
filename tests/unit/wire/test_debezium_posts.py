"""What a posted event is taken for: an envelope's own words count, a row's columns of the same names do not."""

import base64
import json

import pytest

from mainstem.wire.debezium_posts import Kind, look
from mainstem.wire.debezium_types import _digits

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
