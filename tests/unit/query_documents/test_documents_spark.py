"""Spark returns the rows that match: every case of the table on JSON text, and typed columns with edge values."""

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.regex import Regex
from hypothesis import HealthCheck, Phase, given, settings

from mainstem.documents import Column, Columns, Kind, columns, matcher, row_document, to_spark
from tests.unit.query_documents import spark_answers
from tests.unit.query_documents.document_strategies import many_filters, relaxed, rows
from tests.unit.query_documents.vector_rows import plain_texts, questions, texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hundreds of expressions over a handful of rows: compiling them would take longer than everything else.
NO_CODEGEN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
MOMENT = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
TYPED: Columns = {
    "b": Column(Kind.BOOLEAN),
    "i": Column(Kind.INTEGER),
    "f": Column(Kind.DOUBLE),
    "m": Column(Kind.DECIMAL, 2),
    "s": Column(Kind.STRING),
    "t": Column(Kind.TIMESTAMP_TZ),
    "u": Column(Kind.TIMESTAMP),
    "d": Column(Kind.DATE),
    "x": Column(Kind.BINARY),
    "o": Column(Kind.OBJECT_ID),
}
# Beside them, columns of JSON.
MIXED: Columns = {**TYPED, "j": Column(Kind.JSON), "k": Column(Kind.JSON)}
# Rows travel to the child as text, which Spark turns into each column's own type.
AS_TEXT = "n INT, b BOOLEAN, i BIGINT, f STRING, m STRING, s STRING, t STRING, u STRING, d STRING, x STRING, o STRING"
SELECT = [
    "n",
    "b",
    "i",
    "CAST(f AS DOUBLE) AS f",
    "CAST(m AS DECIMAL(10,2)) AS m",
    "s",
    "CAST(t AS TIMESTAMP) AS t",
    "CAST(u AS TIMESTAMP_NTZ) AS u",
    "CAST(d AS DATE) AS d",
    "unhex(x) AS x",
    "o",
]
ROWS: list[dict[str, Any]] = [
    dict.fromkeys(TYPED),
    {
        "b": True,
        "i": 2**53 + 1,
        "f": float("nan"),
        "m": Decimal("1.25"),
        "s": "abc",
        "t": MOMENT,
        "u": MOMENT.replace(tzinfo=None),
        "d": MOMENT.date(),
        "x": b"ab",
        "o": "60" * 12,
    },
    {
        "b": False,
        "i": -3,
        "f": 0.1,
        "m": Decimal("-1.00"),
        "s": "é'\"\\",
        "t": MOMENT + dt.timedelta(microseconds=1500),
        "u": MOMENT.replace(tzinfo=None) - dt.timedelta(microseconds=1),
        "d": dt.date(1969, 12, 31),
        "x": b"",
        "o": "5f" * 12,
    },
    {**dict.fromkeys(TYPED), "i": 1, "f": float("inf"), "s": "", "m": Decimal("0.10")},
]
OPERANDS: dict[str, list[Any]] = {
    "b": [True, None],
    "i": [1, 1.5, 2**53, 2.0**53, 2**64, Decimal128("-3.0"), "x"],
    "f": [0.1, Decimal128("0.1"), 1, float("nan"), float("inf"), 10**400],
    "m": [1.25, 0.1, Decimal128("0.1"), 1, 10**60],
    "s": ["abc", "é'\"\\", "", None, 5],
    "t": [MOMENT, MOMENT + dt.timedelta(milliseconds=1), dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
    "u": [MOMENT, MOMENT - dt.timedelta(milliseconds=1)],
    "d": [MOMENT, dt.datetime(2024, 5, 1, tzinfo=dt.UTC)],
    "x": [b"ab", b"b", b""],
    "o": [ObjectId("60" * 12), "60" * 12],
}


def typed_filters() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, operands in OPERANDS.items():
        for operand in operands:
            found += [{name: {op: operand}} for op in ("$eq", "$ne", "$lt", "$gte")]
        found += [{name: {"$in": operands}}, {name: {"$nin": operands}}, {name: {"$exists": False}}]
        found += [{name: {"$mod": [2, 1]}}, {name: {"$type": ["int", "date", "string"]}}]
    found += [{"s": Regex("^a")}, {"s": Regex("b")}, {"s": {"$not": Regex("c$")}}]
    found += [{"$expr": {"$lt": ["$f", 5]}}, {"$nor": [{"i": {"$gt": 0}}, {"s": "abc"}]}, {"nowhere": None}]
    return found


def as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date):
        return str(value)
    return str(value) if isinstance(value, float | Decimal) else value


def tables() -> list[dict[str, Any]]:
    """What is asked of Spark: rows, kinds and filters."""
    typed_rows = [{**row, "n": n} for n, row in enumerate(ROWS)]
    asked = [source for _, source in questions()]
    nested = [
        {"kinds": columns(j=kind), "rows": [{"n": n, "j": text} for n, text in enumerate(documents)], "filters": asked}
        for kind, documents in (("json", [*plain_texts(), None]), ("extended_json", texts()))
    ]
    return [{"kinds": TYPED, "rows": typed_rows, "filters": typed_filters()}, *nested]


def described(kinds: Columns) -> tuple[str, list[str]]:
    """The rows' columns as text, and how Spark turns them into their own types."""
    if kinds is TYPED:
        return AS_TEXT, SELECT
    if kinds is MIXED:
        return f"{AS_TEXT}, j STRING, k STRING", [*SELECT, "j", "k"]
    return "n INT, j STRING", ["n", "j"]


def jobs(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as text, with the conditions that Spark is to answer."""
    job = []
    for table in asked:
        names = ["n", *table["kinds"]]
        conditions = [to_spark(source, table["kinds"]) for source in table["filters"]]
        job.append(
            {
                "ddl": described(table["kinds"])[0],
                "select": described(table["kinds"])[1],
                "rows": [[as_text(row[name]) for name in names] for row in table["rows"]],
                "conditions": [item.spark_text for item in conditions],
            }
        )
    return job


def wrong_answers(asked: list[dict[str, Any]], answers: list[list[Any]]) -> list[Any]:
    """Where Spark and `matches` differ."""
    wrong = []
    for table, answer in zip(asked, answers, strict=True):
        documents = [row_document(row, table["kinds"]) for row in table["rows"]]
        for source, found in zip(table["filters"], answer, strict=True):
            passes = matcher(source)
            expected = [n for n, document in enumerate(documents) if passes(document)]
            exact = to_spark(source, table["kinds"]).exact
            agrees = found == expected if exact or isinstance(found, str) else set(found) >= set(expected)
            if not agrees:
                wrong.append((source, found, expected))
    return wrong


@pytest.mark.spark
def test_spark_agrees_on_a_sample(spark: "SparkSession") -> None:
    asked = tables()
    for table in asked:
        table["filters"] = table["filters"][:: max(1, len(table["filters"]) // 10)]
    assert wrong_answers(asked, [spark_answers.answers(session_of(spark), table) for table in jobs(asked)]) == []


@pytest.mark.spark
@settings(parent=relaxed, max_examples=3, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(many_filters(rows.map(lambda row: {name: row[name] for name in MIXED}), MIXED, 30))
def test_spark_agrees_on_random_rows_and_filters(
    spark: "SparkSession", world: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    filters, found = world
    asked = [{"kinds": MIXED, "rows": [{**row, "n": n} for n, row in enumerate(found)], "filters": filters}]
    assert wrong_answers(asked, [spark_answers.answers(session_of(spark), table) for table in jobs(asked)]) == []


@cache
def session_of(spark: "SparkSession") -> "SparkSession":
    """A session of its own, for its settings."""
    session = spark.newSession()
    for name, value in NO_CODEGEN.items():
        session.conf.set(name, value)
    return session


@pytest.mark.spark
@pytest.mark.soak
def test_spark_returns_the_rows_that_match(tmp_path: Path) -> None:
    asked = tables()
    (tmp_path / "job.json").write_text(json.dumps({"tables": jobs(asked)}))
    child = Path(__file__).with_name("spark_answers.py")
    # A process of its own: a session with other settings may live in this one.
    command = [sys.executable, str(child), str(tmp_path / "job.json"), str(tmp_path / "answers.json")]
    subprocess.run(command, check=True, timeout=280, capture_output=True)
    assert wrong_answers(asked, json.loads((tmp_path / "answers.json").read_text())) == []
