"""Flink's side of the run, in Flink's own environment: reads statements, one JSON text per line, and answers likewise.

It imports nothing of ours: the interpreter that runs it has only Flink.
"""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]


def main() -> None:
    """Until the statements end."""
    answers = sys.stdout
    # Whatever else is printed must not get between the answers.
    sys.stdout = sys.stderr
    environment = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    environment.get_config().set("parallelism.default", "1")
    told: dict[str, object]
    for line in sys.stdin:
        try:
            result = environment.execute_sql(json.loads(line))
            with result.collect() as rows:
                told = {"rows": [list(row) for row in rows]}
        # The edge of the process: the other side decides what to do about it.
        except Exception as error:
            told = {"error": str(error)[:4000]}
        print(json.dumps(told, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
