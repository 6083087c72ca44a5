"""The Spark session: what it is configured with, and why."""

import atexit
import importlib.util
import marshal
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

import mainstem
from mainstem.model.errors import Invalid

ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
# Without it a Delta table reads, but with the rows that its deletion vectors took away.
DELTA_EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
# Settings whose values must not be shown. Spark itself hides those of such names in its pages and event logs.
_SECRET = re.compile(r"secret|password|token|credential|access.?key|private.?key", re.IGNORECASE)
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
# How often Spark tries a task on a cluster (spark.task.maxFailures), and here in local mode too.
_TASK_ATTEMPTS = 4
# What catalogs call the options of a client for S3, and what Hadoop calls them.
_S3A = {
    "s3.endpoint": "fs.s3a.endpoint",
    "s3.region": "fs.s3a.endpoint.region",
    "client.region": "fs.s3a.endpoint.region",
    "s3.access-key-id": "fs.s3a.access.key",
    "s3.secret-access-key": "fs.s3a.secret.key",
    "s3.session-token": "fs.s3a.session.token",
    "s3.path-style-access": "fs.s3a.path.style.access",
}


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
    # Where Spark's own page is. 0: nowhere.
    ui_port: int = 0
    # How to reach the tables' store, as catalogs have it: Spark reads segments there. Empty: a folder.
    store: Mapping[str, str] = field(default_factory=dict)
    # Settings of Spark's by its own names: they win over ours.
    more: Mapping[str, str] = field(default_factory=dict)
    # A file of the classes that Spark loads, to start from; and one to write them to at the end.
    archive: str | None = None
    archive_to: str | None = None


def build_session(settings: SessionSettings) -> SparkSession:
    """Start Spark. Takes ten seconds or more."""
    # Of workers elsewhere the cluster's own setting says which interpreter has our libraries.
    os.environ["PYSPARK_PYTHON"] = settings.more.get("spark.pyspark.python", settings.python)
    os.environ["PYSPARK_DRIVER_PYTHON"] = settings.python
    if _is_reached_by_loopback(settings):
        # Spark's page listens on all addresses of the machine without it, whatever the driver is bound to.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # glibc gives many of Java's threads a heap of their own, and keeps it: twenty of them held 150 MB.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    builder = SparkSession.builder.appName(settings.app).master(with_task_retries(settings.master))
    configuration = _configuration(settings)
    secrets = {name: value for name, value in configuration.items() if _SECRET.search(name)}
    if SparkContext._gateway is not None:
        # Java runs already, and is told by its socket.
        secrets = {}
    for name, value in configuration.items():
        if name not in secrets:
            builder = builder.config(name, value)
    with _told_by_file(secrets):
        session = builder.getOrCreate()
    _without_checksum_files(session)
    if not settings.master.startswith("local"):
        # Executors that come later fetch it too: it goes with the process.
        folder = tempfile.mkdtemp(prefix="mainstem-package-")
        atexit.register(shutil.rmtree, folder, True)
        session.sparkContext.addPyFile(str(pack_package(Path(folder))))
    return session


def _is_reached_by_loopback(settings: SessionSettings) -> bool:
    """Whether nothing but the driver's own address, if that is given, need be reached from other machines."""
    is_told = settings.master.startswith("local") or "spark.driver.host" in settings.more
    if settings.ui_port and not is_told:
        raise Invalid("[pipeline] ui_port on a cluster. expected=spark.driver.host in [pipeline.spark]")
    return is_told


def with_task_retries(master: str) -> str:
    """`local[n]` as `local[n,4]`: a task is tried four times, as on a cluster.

    Spark's local mode fails the whole job with its first failed task, and a Python worker that was killed between two
    jobs is found to be dead only by the next task that is given to it.
    """
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{_TASK_ATTEMPTS}]", master)


def pack_package(folder: Path) -> Path:
    """The package as an archive, for Python workers elsewhere: they run the driver's version, whatever is installed.

    Compiled: Python keeps nothing that it compiles out of an archive, and every worker would compile all of it anew.
    """
    target = folder / "mainstem.zip"
    root = Path(mainstem.__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            code = SourceFileLoader("mainstem", str(path)).get_code("mainstem")
            # No time and no size of a source: there is none beside it to compare with.
            compiled = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
            archive.writestr(str(Path("mainstem") / path.relative_to(root).with_suffix(".pyc")), compiled)
    return target


@contextmanager
def _told_by_file(secrets: Mapping[str, str]) -> Iterator[None]:
    """Let Java read settings from a file that only we can read: everything else it is started with stands in its
    command line, for every user of the machine to see."""
    if not secrets:
        yield
        return
    before = os.environ.get(_SUBMIT_ARGS)
    with tempfile.TemporaryDirectory(prefix="mainstem-settings-") as folder:
        # Readable by us alone, as the folder is.
        path = Path(folder) / "spark.properties"
        path.write_text("".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in secrets.items()))
        told = f"--load-spark-defaults --properties-file {shlex.quote(str(path))}"
        os.environ[_SUBMIT_ARGS] = f"{told} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = before


def _escaped(text: str) -> str:
    """A name or a value in a file of Java's properties."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_./") else f"\\u{ord(letter):04x}"
        for letter in text
    )


def _without_checksum_files(spark: SparkSession) -> None:
    """Let Hadoop write no file of checksums beside each file on a local disk: Parquet and Avro have their own.

    Without its native library every file that Hadoop makes costs a `chmod` process, a dozen per batch.
    """
    jvm: Any = spark._jvm
    jsc: Any = spark.sparkContext._jsc
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(jsc.hadoopConfiguration()).setWriteChecksum(False)


def join_session(spark: SparkSession) -> None:
    """Make the session that of the calling thread: Spark looks catalogs up in the configuration of the thread's."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def join_pool(spark: SparkSession, pool: str) -> None:
    """Join the session, and give the thread's jobs their share of the cores, however long the stages of others are."""
    join_session(spark)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{pool}-{threading.get_ident()}")


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
        "spark.ui.enabled": str(settings.ui_port > 0).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Maintenance and queries run beside the passes: neither waits for the other's stages.
        "spark.scheduler.mode": "FAIR",
        # Spark's checkpoint, too, without files of checksums: see `_without_checksum_files`.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.sql.session.timeZone": "UTC",
        # Producers may have `id` and `ID` in one row.
        "spark.sql.caseSensitive": "true",
        # Batches are small next to what Spark is made for: every partition more is a task of overhead.
        "spark.sql.shuffle.partitions": "2",
        # A pass has one shuffle of a known size: planning it again halfway would cost a job. Queries turn it on.
        "spark.sql.adaptive.enabled": "false",
        # Groups of 300,000 keys overflow the small first-level map, and every row is then looked up twice: counting the
        # changes of each key took a third longer.
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
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
    if settings.ui_port:
        configuration["spark.ui.port"] = str(settings.ui_port)
    if settings.master.startswith("local"):
        # No other process needs to reach the driver: it would be a door that admission does not guard.
        configuration |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    configuration |= {f"spark.hadoop.{name}": value for name, value in _hadoop(settings.store).items()}
    for name, properties in settings.catalogs.items():
        configuration[f"spark.sql.catalog.{name}"] = _ICEBERG_CATALOG
        configuration |= {f"spark.sql.catalog.{name}.{key}": value for key, value in properties.items()}
    # A text in a statement is what its asker chose: `${env:…}` in it would show the keys of the process to any reader.
    return configuration | dict(settings.more) | {"spark.sql.variable.substitute": "false"}


def _hadoop(store: Mapping[str, str]) -> dict[str, str]:
    """What Hadoop's client for S3 must be told. Where no keys are given it looks for them as AWS's tools do."""
    if not store:
        return {}
    options = {_S3A[name]: value for name, value in store.items() if name in _S3A}
    if store.get("s3.endpoint", "").startswith("http://"):
        options["fs.s3a.connection.ssl.enabled"] = "false"
    # The pipeline tries again by itself, and looks before it does.
    return {"fs.s3a.attempts.maximum": "2", "fs.s3a.retry.limit": "2", **options}
