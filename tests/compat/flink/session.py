"""Flink's side of the run, in Flink's own environment: reads statements, one JSON text per line, and answers likewise.

It imports nothing of ours: the interpreter that runs it has only Flink.
"""

import json
import os
import sys

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

SETTINGS = {
    "parallelism.default": "1",
    # Clients of S3 outlive the job that made them, and with them the class loader of that job.
    "classloader.check-leaked-classloader": "false",
}


def run(environment: TableEnvironment, sql: str) -> list[list[object]]:
    """One statement, to its end; its rows."""
    result = environment.execute_sql(sql)
    if sql.startswith("INSERT"):
        result.wait()
        return []
    with result.collect() as rows:
        return [list(row) for row in rows]


def shortened(text: str) -> str:
    """A Java error without the places that it came through, which are most of it."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("\tat "))[:8000]


def main() -> None:
    """Until the statements end."""
    # Whatever else is printed, also by the Java that is started here, must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    configuration = Configuration()
    for name, value in SETTINGS.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_batch_mode().with_configuration(configuration).build()
    environment = TableEnvironment.create(settings)
    told: dict[str, object]
    for line in sys.stdin:
        try:
            told = {"rows": run(environment, json.loads(line))}
        # The edge of the process: the other side decides what to do about it.
        except Exception as error:
            told = {"error": shortened(str(error))}
        print(json.dumps(told, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
