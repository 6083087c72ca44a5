"""A document as a row: what columns it has, and which types they tell."""

import datetime as dt
from typing import Any

import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId, Timestamp

from mainstem.log.seal.shapes import Shape
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN, DocumentOperation, Kind, columns_of
from mainstem.wire.mongo.frames import encode_document

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC)


def row_of(value: Any) -> dict[str, Any]:
    document = encode_document({"_id": 1, "v": value})
    row = columns_of(
        DocumentOperation(kind=Kind.INSERT, database="d", collection="c", key="$n:1", id=b"", document=document),
        {},
    )
    assert row is not None and row.pop(DOCUMENT_COLUMN)
    return row


@pytest.mark.parametrize(
    ("value", "shown", "kind"),
    [
        (AT, "2026-01-02T03:04:05.006Z", "time"),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), "0001-01-01T00:00:00.000Z", "time"),
        (DatetimeMS(1 << 60), None, "null"),
        (Decimal128("1.50"), "1.50", "decimal"),
        (Decimal128("0E-6176"), "0E-6176", "decimal"),
        (Decimal128("1E+19"), "1E+19", "decimal"),
        (Decimal128("1E+20"), "1E+20", "string"),
        (Decimal128("1.5E-18"), "1.5E-18", "string"),
        (Decimal128("10E-19"), "1.0E-18", "decimal"),
        (Decimal128("-9223372036854775808.5"), "-9223372036854775808.5", "decimal"),
        (Decimal128("NaN"), None, "null"),
        (Decimal128("-Infinity"), None, "null"),
        (float("nan"), None, "null"),
        (1.5, 1.5, "double"),
        (True, True, "bool"),
        (Int64(1), 1, "int"),
        (1 << 60, 1 << 60, "long"),
        (ObjectId("65f000000000000000000000"), "65f000000000000000000000", "string"),
        (Binary(b"\x00", 5), "AA==", "string"),
        (Timestamp(7, 1), 7, "int"),
        ([AT], ["2026-01-02T03:04:05.006Z"], "array"),
        ({"at": AT, "p": Decimal128("1.0")}, {"at": "2026-01-02T03:04:05.006Z", "p": "1.0"}, "object"),
    ],
)
def test_a_value_tells_its_type(value: Any, shown: Any, kind: str) -> None:
    row = row_of(value)
    assert row["v"] == shown
    shape = Shape()
    shape.learn([row])
    assert shape.columns["v"] == [kind]
