"""The jars that the pipeline gives to Spark: fetched once by coordinate, then found without asking anyone.

Spark can resolve coordinates at every start (`spark.jars.packages`), but that takes seconds and a network. Here they
are resolved by the Ivy that Spark ships, into the user's cache, under a name made of the coordinates.
"""

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

from mainstem.app.spark.java import check_java
from mainstem.model import Invalid, MainstemError

log = logging.getLogger(__name__)

# Each needs only what Spark ships already or what stands here too, so nothing else is fetched along with them.
COORDINATES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
)
# For a warehouse on S3, and only loaded there: what Iceberg needs (66 MB, with the AWS SDK in it), and what Spark's own
# file source needs to read segments: Hadoop's S3A, and the two modules of the same SDK that Iceberg's bundle leaves
# out (1.3 MB together; hadoop-aws names the SDK's own bundle, which is hundreds of times that).
S3_COORDINATES = (
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    "software.amazon.awssdk:apache-client:2.54.17",
    "software.amazon.awssdk:s3-transfer-manager:2.54.17",
)

# Maven Central is Ivy's own default for this resolver, where no mirror is named.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""


def jars_dir(coordinates: tuple[str, ...] = COORDINATES) -> Path:
    """Where the jars of exactly these coordinates are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256("\n".join(coordinates).encode()).hexdigest()[:16]
    return base / "mainstem" / "jars" / digest


def find_jars(coordinates: tuple[str, ...] = COORDINATES) -> list[Path]:
    """The jars, if they were all fetched before; an empty list otherwise."""
    jars = sorted(jars_dir(coordinates).glob("*.jar"))
    return jars if len(jars) == len(coordinates) else []


def ensure_jars(coordinates: tuple[str, ...] = COORDINATES, mirror: str = "") -> list[Path]:
    """The jars, fetched now if need be: from Maven Central, or from the Maven repository at the URL `mirror`."""
    return find_jars(coordinates) or _fetch(coordinates, mirror)


def _fetch(coordinates: tuple[str, ...], mirror: str) -> list[Path]:
    check_java()
    target = jars_dir(coordinates)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Fetched beside the target and renamed whole: a start that is cut off leaves nothing half there.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        complete = Path(scratch) / "complete"
        complete.mkdir()
        for path in _resolve(Path(scratch), coordinates, mirror):
            shutil.copy(path, complete)
        if len(list(complete.glob("*.jar"))) != len(coordinates):
            raise Invalid(f"jars missing. expected={len(coordinates)} got={len(list(complete.iterdir()))}")
        if target.exists():
            shutil.rmtree(target)
        complete.rename(target)
    return find_jars(coordinates)


def _resolve(scratch: Path, coordinates: tuple[str, ...], mirror: str) -> list[str]:
    from py4j.protocol import Py4JJavaError
    from pyspark.java_gateway import launch_gateway

    settings_file = scratch / "ivysettings.xml"
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings_file.write_text(_IVY_SETTINGS.format(cache=scratch / "ivy", root=root))
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        jvm = gateway.jvm
        maven = jvm.org.apache.spark.util.MavenUtils
        none = jvm.scala.Option.empty()
        quiet = jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream())
        settings = maven.loadIvySettings(str(settings_file), none, jvm.scala.Option.apply(str(scratch / "ivy")), quiet)
        no_exclusions = getattr(maven, "resolveMavenCoordinates$default$5")()
        paths: list[str] = []
        for number, coordinate in enumerate(coordinates, start=1):
            log.info("fetching jar %d of %d: %s", number, len(coordinates), coordinate)
            found = maven.resolveMavenCoordinates(coordinate, settings, none, False, no_exclusions, False, quiet)
            paths += [found.apply(i) for i in range(found.length())]
        return paths
    except Py4JJavaError as error:
        where = mirror or "Maven Central"
        raise Invalid(f"the jars could not be fetched. from={where} {error.java_exception.getMessage()}") from error
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)


def main(arguments: list[str]) -> int:
    """Fetch what is missing, and say so: `python -m mainstem.app.spark.jars [--s3] [MIRROR]`."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    mirror = next((each for each in arguments if each != "--s3"), "")
    wanted = (COORDINATES, S3_COORDINATES) if "--s3" in arguments else (COORDINATES,)
    try:
        for coordinates in wanted:
            if not find_jars(coordinates):
                what = "Spark, Iceberg and Delta" if coordinates is COORDINATES else "a warehouse on S3"
                print(f"fetching the jars for {what} (once)", flush=True)
            ensure_jars(coordinates, mirror)
    except MainstemError as error:
        print(f"mainstem: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
