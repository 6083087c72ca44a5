"""A child process with a small Spark of its own: asks conditions of rows and writes down which rows pass.

    python spark_answers.py JOB.json ANSWERS.json

The job: {"tables": [{"ddl": "n INT, j STRING", "select": ["n", "j"], "rows": [[…]],
"conditions": ["…"]}]}.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

# Each query costs its planning; wide ones cost little more.
CHUNK = 15


def answers(spark: SparkSession, table: dict[str, Any]) -> list[Any]:
    literals = ", ".join(table["select"])
    raw = spark.createDataFrame([tuple(row) for row in table["rows"]], table["ddl"])
    raw.createOrReplaceTempView("raw")
    spark.sql(f"SELECT {literals} FROM raw").createOrReplaceTempView("t")
    conditions = table["conditions"]
    found: list[Any] = []
    for start in range(0, len(conditions), CHUNK):
        found += _asked(spark, conditions[start : start + CHUNK])
    return found


def _asked(spark: SparkSession, conditions: list[str]) -> list[Any]:
    """Several conditions in one query; one by one where the query fails, so that each answer stands for itself."""
    columns = ", ".join(f"COALESCE({text}, FALSE) AS c{at}" for at, text in enumerate(conditions))
    try:
        rows = spark.sql(f"SELECT n, {columns} FROM t ORDER BY n").collect()
    except Exception as error:
        if len(conditions) == 1:
            return [f"{type(error).__name__}: {str(error)[:600]}"]
        return [answer for item in conditions for answer in _asked(spark, [item])]
    return [[row.n for row in rows if row[f"c{at}"]] for at in range(len(conditions))]


def main(job: Path, out: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        # Hundreds of expressions over a handful of rows: compiling them would take minutes.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    try:
        tables = json.loads(job.read_text())["tables"]
        out.write_text(json.dumps([answers(spark, table) for table in tables]))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
