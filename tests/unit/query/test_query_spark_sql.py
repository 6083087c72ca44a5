"""Statements in Spark's words: what carries over, what is refused, and that no text passes through unread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Denied, Invalid, TableName
from mainstem.query.statements.spark_sql import SparkStatement, Unportable, portable_name, spark_statement
from mainstem.query.statements.statement import Parser
from mainstem.sql import spark_text

PARSER = Parser()


def translated(sql: str) -> SparkStatement:
    return spark_statement(PARSER, PARSER.check(sql))


@pytest.mark.parametrize(
    ("sql", "spark"),
    [
        ("SELECT id FROM orders", "SELECT id FROM mainstem_view_0 AS orders"),
        ("SELECT count(*) AS n FROM lake.default.orders o", "SELECT count(*) AS n FROM mainstem_view_0 AS o"),
        ('SELECT "a b" FROM t', "SELECT `a b` FROM mainstem_view_0 AS t"),
        ("SELECT x::varchar AS v FROM t", "SELECT CAST(x AS STRING) AS v FROM mainstem_view_0 AS t"),
        ("SELECT ts::timestamptz AS v FROM t", "SELECT CAST(ts AS TIMESTAMP) AS v FROM mainstem_view_0 AS t"),
        ("SELECT a // 2 AS v FROM t", "SELECT (a  DIV  2) AS v FROM mainstem_view_0 AS t"),
        ("SELECT a FROM t WHERE b NOT LIKE 'x%'", "SELECT a FROM mainstem_view_0 AS t WHERE (b  NOT LIKE  'x%')"),
        # DuckDB puts nulls last, Spark first: so it is said.
        ("SELECT a FROM t ORDER BY a", "SELECT a FROM mainstem_view_0 AS t ORDER BY a NULLS LAST"),
        ("SELECT default.t.a FROM default.t", "SELECT t.a FROM mainstem_view_0 AS t"),
        (
            "SELECT ts + INTERVAL 2 HOURS AS v FROM t -- why not",
            "SELECT (ts + (INTERVAL '1' HOUR * CAST((CAST(2 AS DOUBLE)) AS BIGINT))) AS v FROM mainstem_view_0 AS t",
        ),
        (
            "WITH w AS (SELECT a FROM t) SELECT * EXCLUDE (b) FROM w",
            "WITH w AS (SELECT a FROM mainstem_view_0 AS t)SELECT * EXCEPT (b) FROM w",
        ),
    ],
)
def test_what_carries_over(sql: str, spark: str) -> None:
    assert translated(sql).sql == spark


def test_columns_without_a_name_get_the_one_that_duckdb_gives() -> None:
    assert "AS `count_star()`" in translated("SELECT count(*) FROM t").sql
    assert "AS `sum((a + 1))`" in translated("SELECT sum(a + 1) FROM t GROUP BY ALL").sql


def test_a_table_read_twice_is_one_view() -> None:
    found = translated("SELECT 1 AS one FROM t a JOIN t b USING (id) JOIN shop.u USING (id)")
    assert sorted(found.views.values()) == [TableName("default", "t"), TableName("shop", "u")]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list_value(1) FROM t",
        "SELECT x->>'$.a' FROM t",
        "SELECT trunc(x) FROM t",
        "SELECT concat(a, b) FROM t",
        "SELECT trim(a, 'x') FROM t",
        "SELECT date_part('dow', ts) FROM t",
        "SELECT a FROM t WHERE b LIKE 'x\\%'",
        "SELECT a FROM t TABLESAMPLE 10%",
        "SELECT DISTINCT ON (a) a, b FROM t",
        "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1",
        "SELECT a FROM t ASOF JOIN u ON t.x >= u.x",
        "SELECT string_agg(a ORDER BY b) FROM t",
        "SELECT a::uuid FROM t",
        "SELECT range FROM range(10)",
        "SELECT a FROM t LIMIT 10%",
        "EXPLAIN SELECT a FROM t",
    ],
)
def test_what_means_something_else_there_is_refused(sql: str) -> None:
    with pytest.raises(Unportable) as refused:
        translated(sql)
    assert refused.value.reason == "not_portable"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'exit', 1) FROM t",
        "SELECT java_method('java.lang.Runtime', 'getRuntime') FROM t",
        "SELECT input_file_name() FROM t",
        "SELECT * FROM parquet.`/etc/passwd`",
        "SELECT current_user() FROM t",
    ],
)
def test_sparks_own_ways_out_are_not_allowed(sql: str) -> None:
    with pytest.raises((Denied, Invalid)):
        translated(sql)


def test_half_a_character_is_no_sql() -> None:
    with pytest.raises(Invalid, match="lone surrogate"):
        translated("SELECT a FROM t WHERE b = '\ud800'")


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40))
def test_a_string_stays_a_string_whatever_is_in_it(text: str) -> None:
    quoted = text.replace("'", "''")
    sql = translated(f"SELECT a FROM t WHERE b = '{quoted}'").sql
    assert sql == f"SELECT a FROM mainstem_view_0 AS t WHERE (b = {spark_text(text)})"
    inner = spark_text(text)[1:-1]
    # Read as Spark reads it: a backslash takes the next character along, so no quote stands alone.
    at = 0
    while at < len(inner):
        assert inner[at] != "'"
        at += 2 if inner[at] == "\\" else 1
    assert at == len(inner)


@given(st.text(st.characters(min_codepoint=32), min_size=1, max_size=40))
def test_a_name_stays_a_name(text: str) -> None:
    name = portable_name(text)
    assert name.startswith("`") and name.endswith("`")
    assert "`" not in name[1:-1].replace("``", "")
