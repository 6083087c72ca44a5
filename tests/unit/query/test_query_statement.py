"""The first wall: what a statement may say, by attempts."""

import duckdb
import pytest

from mainstem.model import Denied, Invalid, TableName
from mainstem.query.statements.functions import FUNCTIONS, TABLE_FUNCTIONS
from mainstem.query.statements.statement import SQL_LENGTH_MAX, Kind, Parser

PARSER = Parser()

READS = [
    "SELECT 1",
    "select * from orders",
    "FROM orders",
    "TABLE orders",
    "VALUES (1), (2)",
    "SELECT 1;",
    "-- a comment\nSELECT 1 /* and one more */",
    "WITH a AS (SELECT 1 AS x) SELECT * FROM a JOIN orders ON a.x = orders.id",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "SELECT count(DISTINCT id) FILTER (WHERE id > 3), sum(price) OVER (PARTITION BY name ORDER BY placed) FROM orders",
    "SELECT coalesce(a, 1), nullif(a, 2), ifnull(a, 3), CASE WHEN a THEN 1 END, a BETWEEN 1 AND 2, a IN (1, 2) FROM t",
    "SELECT name LIKE 'a%', name ILIKE 'b', name ~ 'c', name SIMILAR TO 'd', name || 'e', a ** 2, a // 2, -a FROM t",
    "SELECT extract(year FROM placed), placed AT TIME ZONE 'UTC', date_trunc('day', placed), INTERVAL 3 DAY FROM t",
    "SELECT j ->> 'a', j -> '$.b', json_extract(j, '$.c'), {'a': 1}.a, [x * 2 FOR x IN [1, 2]], MAP {'k': 1} FROM t",
    "SELECT list_transform([1, 2], lambda x: x + 1), unnest([1, 2]), struct_pack(a := 1)",
    "SELECT * FROM range(10) r JOIN generate_series(1, 3) g ON true, unnest([1, 2]) u",
    "SELECT * FROM (SELECT 1 UNION SELECT 2 EXCEPT SELECT 3 INTERSECT SELECT 4) ORDER BY ALL LIMIT 3",
    "SELECT * FROM t PIVOT (sum(price) FOR name IN ('a', 'b'))",
    "SELECT * FROM t QUALIFY row_number() OVER (ORDER BY id) = 1",
    "SELECT * EXCLUDE (id) REPLACE (upper(name) AS name) FROM t",
    "SELECT current_date, now(), CAST(a AS DECIMAL(10, 2)), TRY_CAST(a AS INT), a::text FROM t",
    "DESCRIBE orders",
    "DESCRIBE SELECT 1",
    "SUMMARIZE orders",
    "SELECT 'COPY x TO y; DROP TABLE z' AS text",
]

REFUSED = [
    "INSERT INTO orders VALUES (1)",
    "UPDATE orders SET id = 1",
    "DELETE FROM orders",
    "MERGE INTO orders USING x ON true WHEN MATCHED THEN DELETE",
    "DROP TABLE orders",
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE MACRO f(a) AS TABLE SELECT * FROM read_text(a)",
    "CREATE TEMP MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "ALTER TABLE orders ADD COLUMN x INT",
    "TRUNCATE orders",
    "COPY orders TO '/tmp/x.csv'",
    "COPY (SELECT 1) TO '/tmp/x.csv'",
    "COPY orders FROM '/etc/passwd'",
    "EXPORT DATABASE '/tmp/x'",
    "IMPORT DATABASE '/tmp/x'",
    "ATTACH '/tmp/x.db' AS x",
    "DETACH lake",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL httpfs",
    "UPDATE EXTENSIONS",
    "SET threads = 64",
    "SET GLOBAL enable_external_access = true",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "PRAGMA version",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "COMMENT ON TABLE orders IS 'x'",
    "SHOW DATABASES",
    "SHOW ALL TABLES FROM x",
    "FROM (SHOW TABLES)",
    "PIVOT orders ON id USING sum(price)",
    "EXPLAIN COPY orders TO 'x'",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "EXPLAIN (FORMAT json) SELECT 1",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM read_parquet('/tmp/*.parquet')",
    "SELECT * FROM parquet_scan('x')",
    "SELECT * FROM parquet_metadata('x')",
    "SELECT * FROM parquet_kv_metadata('x')",
    "SELECT * FROM read_json('x')",
    "SELECT * FROM read_ndjson_objects('x')",
    "SELECT * FROM read_avro('x')",
    "SELECT * FROM read_duckdb('x')",
    "SELECT * FROM sniff_csv('x')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM iceberg_scan('/x')",
    "SELECT * FROM iceberg_metadata('/x')",
    "SELECT * FROM iceberg_snapshots('/x')",
    "SELECT * FROM query('DROP TABLE orders')",
    "SELECT * FROM query_table('orders')",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM which_secret('x', 'y')",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM python_map_function(1)",
    "SELECT * FROM seq_scan('x')",
    "SELECT * FROM checkpoint('x')",
    "SELECT * FROM set_iceberg_table_properties('x', MAP {})",
    "SELECT * FROM main.read_text('/etc/passwd')",
    "SELECT * FROM system.main.read_text('/etc/passwd')",
    "SELECT * FROM \"read_text\"('/etc/passwd')",
    "SELECT * FROM READ_TEXT('/etc/passwd')",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT getvariable('x')",
    "SELECT nextval('s')",
    "SELECT write_log('x')",
    "SELECT sleep_ms(100000)",
    "SELECT pg_sleep(100)",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT json_deserialize_sql(json_serialize_sql('SELECT 1'))",
    "SELECT current_query()",
    "SELECT system.main.upper('x')",
    "SELECT pg_catalog.upper('x')",
    "SELECT ('HOME').getenv()",
    "SELECT list_transform(['HOME'], lambda x: getenv(x))",
    "SELECT [getenv(x) FOR x IN ['HOME']]",
    "SELECT CASE WHEN true THEN (SELECT getenv('HOME')) END",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM read_text('/etc/passwd'))",
    "SELECT 1 ORDER BY (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT 1 LIMIT (SELECT count(*) FROM read_text('/etc/passwd'))",
    "SELECT sum(1) OVER (ORDER BY getenv('HOME'))",
    "SELECT count(*) FILTER (WHERE getenv('x') = '') FROM t",
    "SELECT sum(a ORDER BY getenv('x')) FROM t",
    "SELECT max(a) FROM t GROUP BY getenv('x') HAVING getenv('y') = ''",
    "SELECT * FROM t JOIN u ON getenv('x') = ''",
    "SELECT * FROM (VALUES (getenv('x')))",
    "SELECT * FROM range(CAST(getenv('x') AS INT))",
    "WITH a AS (SELECT * FROM read_text('/etc/passwd')) SELECT 1",
    "WITH a AS MATERIALIZED (SELECT * FROM glob('*')) SELECT 1 UNION SELECT 2",
    "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM glob('*')) SELECT * FROM r",
    "SELECT * FROM t PIVOT (sum(getenv('x')) FOR name IN ('a'))",
    "SELECT * REPLACE (getenv('x') AS id) FROM t",
    "SELECT COLUMNS(c -> getenv(c) = '') FROM t",
    "SELECT * FROM t TABLESAMPLE reservoir(1), LATERAL (SELECT * FROM glob('*'))",
    "DESCRIBE SELECT * FROM read_text('/etc/passwd')",
    "SUMMARIZE FROM read_text('/etc/passwd')",
    "EXPLAIN SELECT * FROM read_text('/etc/passwd')",
    "SELECT 1 UNION ALL SELECT * FROM glob('*')",
    'WITH "x.csv" AS (SELECT 1) SELECT * FROM (SELECT 1)',
    'WITH "/etc/passwd" AS (SELECT 1) SELECT 1',
    "WITH __mainstem_0_keys AS (SELECT 1) SELECT 1",
]

BROKEN = [
    "",
    ";",
    "SELEC 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE orders",
    "SELECT 'a",
    "SELECT 1\x00; DROP TABLE x",
    "SELECT ?",
    "SELECT $1",
    "SELECT * FROM orders AT (VERSION => 1)",
    "SELECT * FROM memory.main.x",
    "SELECT * FROM system.information_schema.tables",
    "WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a",
    "EXPLAIN EXPLAIN SELECT 1",
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT " + "NOT " * 20_000 + "true",
    "SELECT " + "1 + " * 20_000 + "1",
    "SELECT * FROM " + "(SELECT * FROM " * 9_000 + "t" + ")" * 9_000,
    "x" * (SQL_LENGTH_MAX + 1),
]


@pytest.mark.parametrize("sql", READS)
def test_reading_passes(sql: str) -> None:
    assert PARSER.check(sql).kind is Kind.SELECT


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_more_than_read_is_refused(sql: str) -> None:
    with pytest.raises((Denied, Invalid)) as caught:
        PARSER.check(sql)
    # A syntax error would prove nothing: it must be understood, and refused.
    if isinstance(caught.value, Invalid):
        assert sql.startswith(("EXPLAIN", "UPDATE EXTENSIONS", "SHOW ALL", "MERGE", "SELECT * FROM t TABLESAMPLE"))


@pytest.mark.parametrize("sql", BROKEN, ids=lambda sql: repr(sql[:40]))
def test_what_is_no_single_statement_is_invalid(sql: str) -> None:
    with pytest.raises((Invalid, Denied)):
        PARSER.check(sql)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM orders", {("default", "orders")}),
        ("SELECT * FROM default.orders", {("default", "orders")}),
        ("SELECT * FROM lake.default.orders", {("default", "orders")}),
        ("SELECT * FROM DEFAULT . orders, LAKE.public.x", {("default", "orders"), ("public", "x")}),
        ('SELECT * FROM "a.b".c', {("a.b", "c")}),
        ("SELECT 'default.x' FROM y", {("default", "y")}),
        ("WITH a AS (SELECT 1) SELECT * FROM a", set()),
        ("WITH a AS (SELECT * FROM b) SELECT * FROM default.a", {("default", "a"), ("default", "b")}),
        ("SELECT (SELECT max(id) FROM x) FROM y WHERE id IN (SELECT id FROM z)", {("default", n) for n in "xyz"}),
        ("DESCRIBE public.orders", {("public", "orders")}),
        ("SELECT * FROM 'file.csv'", {("default", "file.csv")}),
    ],
)
def test_names_of_tables_are_found(sql: str, names: set[tuple[str, str]]) -> None:
    assert PARSER.check(sql).names == {TableName(*name) for name in names}


def test_a_name_that_a_with_query_hides_is_kept_aside() -> None:
    statement = PARSER.check("SELECT * FROM orders, (WITH orders AS (SELECT 1) SELECT * FROM orders)")
    assert statement.names == set()
    assert statement.shadowed == {TableName("default", "orders")}


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("EXPLAIN SELECT 1", Kind.EXPLAIN),
        ("explain analyze select 1", Kind.EXPLAIN_ANALYZE),
        ("SHOW TABLES", Kind.SHOW_TABLES),
        ("SHOW ALL TABLES", Kind.SHOW_TABLES),
    ],
)
def test_kinds(sql: str, kind: Kind) -> None:
    assert PARSER.check(sql).kind is kind


def test_the_allow_list_holds_only_functions_that_exist_and_read_nothing() -> None:
    connection = duckdb.connect()
    rows = connection.execute("SELECT lower(function_name), function_type FROM duckdb_functions()").fetchall()
    harmless = {name for name, kind in rows if kind in {"scalar", "aggregate", "macro"}}
    # Part of the grammar, so not listed by DuckDB.
    grammar = {"unnest", "ifnull", "coalesce", "grouping", "grouping_id", "if", "try"}
    assert FUNCTIONS - harmless - grammar == set()
    assert {name for name, kind in rows if kind == "table"} >= TABLE_FUNCTIONS
    words = ("read", "scan", "glob", "duckdb", "pragma", "secret", "setting", "env", "query", "sql", "iceberg", "log_")
    suspects = {name for name in FUNCTIONS | TABLE_FUNCTIONS if any(word in name for word in words)}
    assert suspects == {"formatreadablesize", "formatreadabledecimalsize"}
