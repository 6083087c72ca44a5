"""How values look in JSON, CSV and Arrow, from DuckDB's own results."""

import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from mainstem.query.sandbox.encode import ArrowPieces, csv_bytes, json_rows


def batch_of(sql: str) -> pa.RecordBatch:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection.execute(sql).to_arrow_reader(100).read_next_batch()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1", 1),
        ("true", True),
        ("NULL", None),
        ("9007199254740991::BIGINT", 9007199254740991),
        ("9007199254740992::BIGINT", "9007199254740992"),
        ("-9007199254740992::BIGINT", "-9007199254740992"),
        ("18446744073709551615::UBIGINT", "18446744073709551615"),
        ("5::HUGEINT", 5),
        ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
        ("1.50::DECIMAL(10, 2)", "1.50"),
        ("1.5::DOUBLE", 1.5),
        ("'NaN'::DOUBLE", "NaN"),
        ("'inf'::DOUBLE", "Infinity"),
        ("'-inf'::FLOAT", "-Infinity"),
        ("DATE '2024-02-29'", "2024-02-29"),
        ("TIME '23:59:59.5'", "23:59:59.500000"),
        ("TIMESTAMP '2024-02-29 23:59:59.25'", "2024-02-29T23:59:59.250000"),
        ("TIMESTAMP '0001-01-01 00:00:00'", "0001-01-01T00:00:00.000000"),
        ("TIMESTAMPTZ '2024-02-29 23:59:59+02'", "2024-02-29T21:59:59.000000Z"),
        ("INTERVAL 3 DAY", {"months": 0, "days": 3, "nanoseconds": 0}),
        ("'ab'::BLOB", "YWI="),
        ("'a'::ENUM('a', 'b')", "a"),
        ("'6b2f2f0a-6b8e-4f53-9c9c-1f6b8f0a6b2f'::UUID", "6b2f2f0a-6b8e-4f53-9c9c-1f6b8f0a6b2f"),
        ("'{\"a\": 1}'::JSON", '{"a": 1}'),
        ("[1, NULL]", [1, None]),
        ("[9007199254740993::BIGINT]", ["9007199254740993"]),
        ("{'a': 1.5::DECIMAL(3, 1), 'b': [DATE '2024-01-01']}", {"a": "1.5", "b": ["2024-01-01"]}),
        ("{'t': TIMESTAMP '2024-01-01 01:02:03'}", {"t": "2024-01-01T01:02:03.000000"}),
        ("MAP {'k': 1, 'l': NULL}", [["k", 1], ["l", None]]),
        ("NULL::MAP(VARCHAR, INT)", None),
        ("'quote \" and ü'", 'quote " and ü'),
    ],
)
def test_json_forms(expression: str, expected: Any) -> None:
    (row,) = json_rows(batch_of(f"SELECT {expression} AS x"))
    assert json.loads(row) == [expected]


def test_csv_takes_every_type() -> None:
    batch = batch_of(
        "SELECT 1 AS i, 2.50::DECIMAL(4, 2) AS d, 'a,\"b' AS s, NULL::VARCHAR AS n, [1, 2] AS l, 'x'::BLOB AS b, "
        "TIMESTAMP '2024-01-01 00:00:00' AS t, INTERVAL 1 MONTH AS v, 'a'::ENUM('a') AS e, MAP {'k': 1} AS m"
    )
    header, line = csv_bytes(batch, header=True).decode().strip().split("\n")
    assert header == '"i","d","s","n","l","b","t","v","e","m"'
    assert line == (
        '1,2.50,"a,""b",,"[1,2]","eA==","2024-01-01T00:00:00.000000",'
        '"{""months"":1,""days"":0,""nanoseconds"":0}","a","[[""k"",1]]"'
    )


def test_arrow_pieces_make_one_stream() -> None:
    batch = batch_of("SELECT range AS id, 'a'::ENUM('a', 'b') AS e FROM range(10)")
    pieces = ArrowPieces(batch.schema)
    data = pieces.batch(batch) + pieces.batch(batch) + pieces.end({"mainstem.truncated": "false"})
    reader = pa.ipc.open_stream(data)
    table = reader.read_all()
    assert table.num_rows == 20
    assert table["e"].to_pylist() == ["a"] * 20


def test_an_arrow_stream_without_rows_has_its_schema() -> None:
    schema = pa.schema([("id", pa.int64())])
    table = pa.ipc.open_stream(ArrowPieces(schema).end({})).read_all()
    assert (table.num_rows, table.schema) == (0, schema)
