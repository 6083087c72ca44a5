"""Which rows of a history are of which log, in both dialects of SQL that the conditions are for."""

import duckdb
import pytest
from pyspark.sql import SparkSession

from mainstem.model.position import Lineage, LogId, LogPosition
from mainstem.tables.origins import Origins

# Whoever may commit to a history may put any text into a snapshot's summary, as the name of a log.
HOSTILE = ["x", "it's", "\\", "x\\' OR true -- ", "x' OR true -- ", "\\' OR raise_error('x') -- ", "${spark.master}"]


@pytest.mark.parametrize("log", HOSTILE)
def test_a_logs_name_is_a_text_in_duckdb_and_in_spark(spark: SparkSession, log: str) -> None:
    rows = [(log, 1), (log, 2), ("other", 1)]
    condition = Origins(True, {}).of_others(Lineage(), {LogId(log): LogPosition(1)})
    by_spark = spark.createDataFrame(rows, "_log string, _position bigint").where(condition).collect()
    assert sorted(map(tuple, by_spark)) == sorted(rows[1:])
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE history (_log VARCHAR, _position BIGINT)")
        connection.executemany("INSERT INTO history VALUES (?, ?)", rows)
        by_duckdb = connection.execute(f"SELECT * FROM history WHERE {condition}").fetchall()
    assert sorted(by_duckdb) == sorted(rows[1:])
