"""Starts Spark once, warms it up as the pipeline does, and lets Java write the classes that it has loaded to a file.

`python -m mainstem.pipeline.session.archiving FILE JAR...`. Others decide where the file belongs, and when it is made.
"""

import sys

from pyspark import SparkContext

from mainstem.pipeline.session.spark import SessionSettings, build_session
from mainstem.pipeline.session.warmup import WARM_CATALOG, warm_catalog, warm_up

# Java writes the file when it ends.
WRITE_S_MAX = 120.0


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
    warm_up(spark)
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait(WRITE_S_MAX)


if __name__ == "__main__":
    archive_classes(sys.argv[1], tuple(sys.argv[2:]))
