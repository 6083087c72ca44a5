"""The three faces of a filter agree: `matches`, the pushed-down predicate and SQL, on random rows and filters."""

import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from bson import json_util
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.documents import (
    Column,
    Columns,
    ColumnStats,
    Kind,
    matcher,
    may_match,
    parse_filter,
    pushdown,
    row_document,
    to_duckdb,
)
from mainstem.documents.filters.arrow import columns_of_schema, row_group_stats, to_arrow
from tests.unit.query_documents.document_strategies import COLUMNS, Scenario, document_values, rows, scenarios
from tests.unit.query_documents.document_strategies import relaxed as relaxed_settings

plain = scenarios(of=rows, columns=COLUMNS)
relaxed = settings(relaxed_settings, max_examples=150)
connection = duckdb.connect()
connection.execute("SET TimeZone = 'America/New_York'")
connection.execute("SET threads = 1")

SCHEMA = pa.schema(
    {
        "b": pa.bool_(),
        "i": pa.int64(),
        "f": pa.float64(),
        "m": pa.decimal128(10, 2),
        "s": pa.string(),
        "t": pa.timestamp("us", "UTC"),
        "u": pa.timestamp("us"),
        "d": pa.date32(),
        "x": pa.binary(),
        "o": pa.string(),
        "j": pa.string(),
        "k": pa.string(),
        "z": pa.list_(pa.uint64()),
    }
)


def matching(filter_: dict[str, Any], table: list[dict[str, Any]]) -> list[int]:
    passes = matcher(filter_)
    return [index for index, row in enumerate(table) if passes(row_document(row, COLUMNS))]


def as_arrow(table: list[dict[str, Any]]) -> Any:
    numbered = [{**row, "n": n} for n, row in enumerate(table)]
    return pa.Table.from_pylist(numbered, SCHEMA.append(pa.field("n", pa.int64())))


@relaxed
@given(plain)
def test_duckdb_returns_the_rows_that_match(scenario: Scenario) -> None:
    filter_, table = scenario
    expected = matching(filter_, table)
    connection.register("t", as_arrow(table))
    condition = to_duckdb(filter_, COLUMNS)
    query = f"SELECT n FROM t WHERE {condition.text} ORDER BY n"
    found = [row[0] for row in connection.execute(query, condition.parameters).fetchall()]
    if condition.exact:
        assert found == expected
    else:
        assert set(found) >= set(expected)


extended_columns: Columns = {"j": Column(Kind.EXTENDED_JSON), "k": Column(Kind.EXTENDED_JSON)}
extended_rows = st.fixed_dictionaries(
    {name: st.one_of(st.none(), document_values.map(json_util.dumps)) for name in extended_columns}
)


@relaxed
@given(scenarios(of=extended_rows, columns=extended_columns))
def test_duckdb_over_extended_json_lets_every_match_through(scenario: Scenario) -> None:
    filter_, table = scenario
    passes = matcher(filter_)
    expected = [index for index, row in enumerate(table) if passes(row_document(row, extended_columns))]
    schema = pa.schema({"j": pa.string(), "k": pa.string(), "n": pa.int64()})
    connection.register("t", pa.Table.from_pylist([{**row, "n": n} for n, row in enumerate(table)], schema))
    condition = to_duckdb(filter_, extended_columns)
    query = f"SELECT n FROM t WHERE {condition.text} ORDER BY n"
    found = [row[0] for row in connection.execute(query, condition.parameters).fetchall()]
    assert found == expected if condition.exact else set(found) >= set(expected)


@relaxed
@given(plain)
def test_arrow_lets_every_match_through(scenario: Scenario) -> None:
    filter_, table = scenario
    data = as_arrow(table)
    predicate = pushdown(filter_, COLUMNS)
    found = ds.dataset(data).to_table(filter=to_arrow(predicate, SCHEMA), columns=["n"]).column("n").to_pylist()
    assert set(found) >= set(matching(filter_, table))


def test_row_groups_that_cannot_match_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"
    table = pa.table({"i": pa.array(range(1_000)), "s": [None if n < 500 else f"k{n}" for n in range(1_000)]})
    pq.write_table(table, path, row_group_size=100)
    metadata = pq.ParquetFile(path).metadata
    kinds = columns_of_schema(table.schema)

    def read(filter_: dict[str, Any]) -> list[int]:
        predicate = pushdown(filter_, kinds)
        groups = range(metadata.num_row_groups)
        return [index for index in groups if may_match(predicate, *row_group_stats(metadata, index))]

    assert read({"i": {"$gte": 250, "$lt": 301}}) == [2, 3]
    assert read({"i": {"$in": [5, 999.0, "x"]}}) == [0, 9]
    assert read({"s": {"$regex": "^k7"}}) == [7]
    assert read({"s": {"$exists": False}}) == [0, 1, 2, 3, 4]
    assert read({"$nor": [{"i": {"$lt": 900}}]}) == [9]
    assert read({"$expr": {"$gt": ["$i", 899.5]}}) == [9]
    assert read({"i": "text"}) == []
    assert read({"nowhere": 1}) == []
    assert len(read({"nowhere": None})) == 10


@relaxed
@given(plain)
def test_arrow_lets_every_match_through_without_a_column_list(scenario: Scenario) -> None:
    filter_, table = scenario
    found = ds.dataset(as_arrow(table)).to_table(filter=to_arrow(pushdown(filter_), SCHEMA), columns=["n"])
    assert set(found.column("n").to_pylist()) >= set(matching(filter_, table))


def test_row_groups_are_skipped_without_a_column_list(tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"
    table = pa.table({"i": pa.array(range(1_000)), "s": [None if n < 500 else f"k{n}" for n in range(1_000)]})
    pq.write_table(table, path, row_group_size=100)
    metadata = pq.ParquetFile(path).metadata

    def read(filter_: dict[str, Any]) -> list[int]:
        predicate = pushdown(filter_)
        groups = range(metadata.num_row_groups)
        return [index for index in groups if may_match(predicate, *row_group_stats(metadata, index))]

    assert read({"i": {"$gte": 250, "$lt": 301}}) == [2, 3]
    assert read({"i": {"$gt": 898.5, "$lte": 2**70}}) == [8, 9]
    assert read({"i": {"$in": [5, 999.0]}}) == [0, 9]
    assert read({"s": {"$regex": "^k7"}}) == [7]
    assert read({"s": "k950", "i": {"$gt": 0}}) == [9]
    assert read({"$or": [{"i": 5}, {"s": "k555"}]}) == [0, 5]
    assert read({"s.below": 1}) == [5, 6, 7, 8, 9]
    everywhere: list[dict[str, Any]] = [
        {}, {"i": "text"}, {"nowhere": 1}, {"i": {"$ne": 5}}, {"i": None}, {"$expr": {"$gt": ["$i", 5]}},
    ]  # fmt: skip
    assert [len(read(filter_)) for filter_ in everywhere] == [10] * len(everywhere)


def zone_maps(table: list[dict[str, Any]]) -> dict[str, ColumnStats]:
    stats = {}
    for name in COLUMNS:
        present = [row[name] for row in table if row[name] is not None]
        ordered = [value for value in present if not (isinstance(value, float) and math.isnan(value))]
        stats[name] = ColumnStats(
            min(ordered, default=None), max(ordered, default=None), null_count=len(table) - len(present)
        )
    return stats


@relaxed
@given(plain)
def test_zone_maps_never_skip_a_match(scenario: Scenario) -> None:
    filter_, table = scenario
    if matching(filter_, table):
        stats = zone_maps(table)
        assert may_match(pushdown(parse_filter(filter_), COLUMNS), stats, len(table))
        assert may_match(pushdown(filter_), stats, len(table))
