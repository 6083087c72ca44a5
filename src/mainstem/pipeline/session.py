"""The Spark session: what it is configured with, and why."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
# Without it a Delta table reads, but with the rows that its deletion vectors took away.
DELTA_EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is built from."""

    app: str
    master: str
    driver_memory: str
    jars: tuple[str, ...]
    # The interpreter for Spark's Python side: its own default may lack our libraries.
    python: str
    # Properties by catalog name, as Iceberg's SparkCatalog takes them.
    catalogs: Mapping[str, Mapping[str, str]]
    more: Mapping[str, str] = field(default_factory=dict)
    # A file of the classes that Spark loads, to start from; and one to write them to at the end.
    archive: str | None = None
    archive_to: str | None = None


def build_session(settings: SessionSettings) -> SparkSession:
    """Start Spark. Takes ten seconds or more."""
    os.environ["PYSPARK_PYTHON"] = settings.python
    os.environ["PYSPARK_DRIVER_PYTHON"] = settings.python
    builder = SparkSession.builder.appName(settings.app).master(settings.master)
    for name, value in _configuration(settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def join_session(spark: SparkSession) -> None:
    """Make the session that of the calling thread: Spark looks catalogs up in the configuration of the thread's."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def own_session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, that reaches the same catalogs: a new one has lost what was set later."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    return session


def java_options(settings: SessionSettings) -> list[str]:
    """What Java is started with."""
    # On a few cores the concurrent collector takes what the tasks need: a large batch took a fifth less without it.
    options = ["-XX:+UseParallelGC"]
    if sys.platform == "linux":
        # Hadoop starts a `chmod` for every file it writes, a dozen per batch; this way of starting takes half as long.
        options.append("-Djdk.lang.Process.launchMechanism=VFORK")
    if settings.archive is not None:
        options.append(f'"-XX:SharedArchiveFile={settings.archive}"')
    if settings.archive_to is not None:
        options.append(f'"-XX:ArchiveClassesAtExit={settings.archive_to}"')
    if settings.archive is not None or settings.archive_to is not None:
        # Thousands of lines on classes that cannot be kept; and an archive that does not fit is no trouble.
        options += ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
    return options


def _configuration(settings: SessionSettings) -> dict[str, str]:
    configuration = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options(settings)),
        "spark.jars": ",".join(settings.jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A driver that is reachable from outside would be a door that admission does not guard.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Small tables must not wait for the stages of a large one.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        # Producers may have `id` and `ID` in one row.
        "spark.sql.caseSensitive": "true",
        # Batches are small next to what Spark is made for: every partition more is a task of overhead.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.files.openCostInBytes": str(256 * 1024),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
        "spark.sql.extensions": f"{ICEBERG_EXTENSIONS},{DELTA_EXTENSIONS}",
        "spark.sql.catalog.spark_catalog": _DELTA_CATALOG,
        # At the default of 50 the smallest look at a Delta table takes seconds.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.cleaner.referenceTracking.cleanCheckpoints": "true",
    }
    for name, properties in settings.catalogs.items():
        configuration[f"spark.sql.catalog.{name}"] = _ICEBERG_CATALOG
        configuration |= {f"spark.sql.catalog.{name}.{key}": value for key, value in properties.items()}
    return configuration | dict(settings.more)
