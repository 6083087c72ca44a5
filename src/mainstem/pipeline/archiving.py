"""Starts Spark once, warms it up as the pipeline does, and lets Java write the classes that it has loaded to a file.

`python -m mainstem.pipeline.archiving FILE JAR...`. Where the file belongs, and when it is made, is not decided here.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from pyspark import SparkContext

from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.session import SessionSettings, build_session, join_session
from mainstem.pipeline.warmup import WARM_CATALOG, warm_catalog, warm_up

# Java writes the file when it ends.
WRITE_S_MAX = 120.0
_THREADS = 4


def archive_classes(target: str, jars: tuple[str, ...]) -> None:
    """Write the archive."""
    spark = build_session(
        SessionSettings(
            app="mainstem-archiving",
            master="local[*]",
            driver_memory="1g",
            jars=jars,
            python=sys.executable,
            catalogs={WARM_CATALOG: warm_catalog()},
            archive_to=target,
        )
    )
    spark.sparkContext.setLogLevel("ERROR")
    with ThreadPoolExecutor(_THREADS, initializer=join_session, initargs=(spark,)) as side_jobs:
        warm_up(spark, DriverSql(), side_jobs)
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait(WRITE_S_MAX)


if __name__ == "__main__":
    archive_classes(sys.argv[1], tuple(sys.argv[2:]))
