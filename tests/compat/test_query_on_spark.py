"""`POST /v1/query` on Spark: the same answers as DuckDB's, cancelled like DuckDB's, and as closed."""

import asyncio
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert

pytestmark = pytest.mark.timeout(900)

ROWS = 300
QUERIES = [
    "SELECT count(*), sum(n), min(t), max(t) FROM on_spark",
    "SELECT city, count(*) AS c, avg(n) AS a FROM default.on_spark GROUP BY city ORDER BY city",
    "SELECT n, city FROM lake.default.on_spark WHERE n BETWEEN 20 AND 25 ORDER BY n DESC",
    "SELECT n, city FROM on_spark ORDER BY city, n LIMIT 7",
    "SELECT upper(city) AS u, n // 7 AS d, n % 7 AS m, n / 8 AS q FROM on_spark WHERE t LIKE '%9' ORDER BY n",
    "WITH w AS (SELECT city, max(n) AS top FROM on_spark GROUP BY ALL) SELECT o.n FROM on_spark o JOIN w "
    "ON o.city = w.city AND o.n = w.top ORDER BY 1",
    "SELECT n, row_number() OVER (PARTITION BY city ORDER BY n DESC) AS r FROM on_spark WHERE n < 9 ORDER BY n",
    "SELECT t FROM on_spark WHERE t = 'it''s \\ 7'",
    "SELECT n FROM on_spark WHERE n > (SELECT avg(n) + 140 FROM on_spark) ORDER BY n",
    "SELECT CASE WHEN n > 150 THEN 'much' ELSE NULL END AS v, count(*) AS c FROM on_spark GROUP BY 1 ORDER BY 1",
    "SELECT n FROM on_spark WHERE false",
]


@pytest.fixture(scope="module")
def server(live_server: ServerProcess) -> ServerProcess:
    async def fill() -> None:
        cities = ["Oslo", "Quito", None]
        async with CdcClient(live_server.ws_url, source="on_spark") as client:
            rows = [{"n": n, "city": cities[n % 3], "t": f"it's \\ {n}"} for n in range(ROWS)]
            await client.send([insert("on_spark", str(row["n"]), row) for row in rows])
            await client.flush()

    asyncio.run(fill())
    return live_server


def ask(server: ServerProcess, sql: str, engine: str | None, **more: Any) -> httpx.Response:
    body = {"sql": sql, "timeoutMs": 120_000, **({"engine": engine} if engine else {}), **more}
    return httpx.post(server.url + "/v1/query", json=body, timeout=150)


@pytest.mark.parametrize("sql", QUERIES)
def test_spark_answers_as_duckdb_does(server: ServerProcess, sql: str) -> None:
    by_spark, by_duckdb = ask(server, sql, "spark"), ask(server, sql, "duckdb")
    assert by_spark.status_code == by_duckdb.status_code == 200, by_spark.text
    assert by_spark.json()["rows"] == by_duckdb.json()["rows"]
    assert [each["name"] for each in by_spark.json()["columns"]] == [
        each["name"] for each in by_duckdb.json()["columns"]
    ]
    assert by_spark.json()["stats"]["engine"] == "spark"
    assert by_spark.json()["stats"]["snapshots"] == by_duckdb.json()["stats"]["snapshots"]


def test_limits_and_formats_hold_there_too(server: ServerProcess) -> None:
    cut = ask(server, "SELECT n FROM on_spark ORDER BY n", "spark", limit=5).json()
    assert [row[0] for row in cut["rows"]] == [0, 1, 2, 3, 4] and cut["truncated"] is True
    whole = ask(server, "SELECT n FROM on_spark", "spark", limit=ROWS).json()
    assert len(whole["rows"]) == ROWS and whole["truncated"] is False
    arrow = ask(server, "SELECT n FROM on_spark", "spark", format="arrow")
    assert pa.ipc.open_stream(arrow.content).read_all().num_rows == ROWS


@pytest.mark.parametrize(
    ("sql", "code", "reason"),
    [
        ("SELECT nope FROM on_spark", 400, "sql_error"),
        ("SELECT CAST(t AS INTEGER) FROM on_spark", 400, "sql_error"),
        ("SELECT concat(t, 'x') FROM on_spark", 400, "not_portable"),
        ("SELECT * FROM no_such_table", 404, "notfound"),
        ("SELECT reflect('java.lang.System', 'exit', 1) FROM on_spark", 403, "denied"),
    ],
)
def test_what_is_wrong_gets_a_named_error(server: ServerProcess, sql: str, code: int, reason: str) -> None:
    answer = ask(server, sql, "spark")
    assert (answer.status_code, answer.json()["error"]["reason"]) == (code, reason), answer.text


def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_runs(server: ServerProcess) -> None:
    cross = "SELECT count(*) FROM on_spark a, on_spark b, on_spark c, on_spark d WHERE a.t || b.t < c.t || d.t"
    answer = ask(server, cross, "spark", timeoutMs=3000)
    assert answer.status_code == 504, answer.text
    assert ask(server, "SELECT count(*) FROM on_spark", "spark").json()["rows"] == [[ROWS]]


def test_the_latest_stays_in_the_gateway(server: ServerProcess) -> None:
    answer = ask(server, "SELECT n FROM on_spark", "spark", freshness="latest")
    assert answer.status_code == 400 and answer.json()["error"]["reason"] == "unsupported"


async def test_a_table_that_duckdb_misreads_is_sent_to_spark(live_server: ServerProcess, spark: SparkSession) -> None:
    async with CdcClient(live_server.ws_url, source="vectors") as client:
        for start in (0, 100, 200):
            await client.send([insert("vectors", str(key), {"n": key}) for key in range(start, start + 100)])
            await client.flush()
    # Another engine deletes from every file: Spark's own DELETE puts all their vectors into one.
    name = "spark.sql.catalog.of_vectors"
    spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"type": "rest", "uri": live_server.url, "warehouse": "lake", "cache-enabled": "false"}.items():
        spark.conf.set(f"{name}.{key}", value)
    await asyncio.to_thread(spark.sql, "DELETE FROM of_vectors.default.vectors WHERE n >= 50 AND n < 250")
    sql = "SELECT count(*) AS rows, sum(n) AS total FROM vectors"
    async with httpx.AsyncClient(base_url=live_server.url, timeout=150) as http:
        route = (await http.post("/v1/query/route", json={"sql": sql})).json()
        assert (route["engine"], route["reason"]) == ("spark", "shared_deletion_vectors"), route
        answer = (await http.post("/v1/query", json={"sql": sql, "timeoutMs": 120_000})).json()
    assert answer["stats"]["engine"] == "spark", answer
    assert answer["rows"] == [[100, sum(range(50)) + sum(range(250, 300))]]


async def test_vectors_of_the_pipelines_own_are_read_by_duckdb(live_server: ServerProcess) -> None:
    """A vector per file: DuckDB reads those right, so the query need not leave the gateway."""
    async with CdcClient(live_server.ws_url, source="own_vectors") as client:
        for start in (0, 100, 200):
            await client.send([insert("own_vectors", str(key), {"n": key}) for key in range(start, start + 100)])
            await client.flush()
        await client.send([insert("own_vectors", str(key), {"n": -1}) for key in range(50, 250)])
        await client.flush()
    sql = "SELECT count(*) AS rows, sum(n) AS total FROM own_vectors"
    async with httpx.AsyncClient(base_url=live_server.url, timeout=150) as http:
        answer = (await http.post("/v1/query", json={"sql": sql})).json()
    assert answer["stats"]["engine"] == "duckdb", answer
    assert answer["rows"] == [[300, sum(range(50)) + sum(range(250, 300)) - 200]]
