"""A child process with a small Spark of its own: asks conditions of rows and writes down which rows pass.

    python spark_answers.py JOB.json ANSWERS.json

The job: {"tables": [{"ddl": "n INT, j STRING", "select": ["n", "j"], "rows": [[…]],
"conditions": [{"text": …, "parameters": […]}]}]}.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def answers(spark: SparkSession, table: dict[str, Any]) -> list[Any]:
    literals = ", ".join(table["select"])
    raw = spark.createDataFrame([tuple(row) for row in table["rows"]], table["ddl"])
    raw.createOrReplaceTempView("raw")
    spark.sql(f"SELECT {literals} FROM raw").createOrReplaceTempView("t")
    found: list[Any] = []
    for condition in table["conditions"]:
        query = f"SELECT n FROM t WHERE {condition['text']}"
        try:
            rows = spark.sql(query, args=condition["parameters"]).collect()
            found.append(sorted(row.n for row in rows))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error)[:600]}")
    return found


def main(job: Path, out: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
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
