"""The jars of the kit: fetched once by their Maven coordinates into the user's cache, by the Ivy that Spark ships."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

from mainstem.app.spark.java import check_java
from mainstem.model import Invalid

ICEBERG = "1.11.0"
JETTY = "12.1.1"
CONSOLE = "junit-platform-console-standalone-1.13.4.jar"

# group, artifact, version, classifiers ("" is the plain jar), whether what it depends on comes along
COORDINATES: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("org.apache.iceberg", "iceberg-open-api", ICEBERG, ("tests", "test-fixtures"), False),
    ("org.apache.iceberg", "iceberg-core", ICEBERG, ("", "tests"), True),
    ("org.apache.iceberg", "iceberg-api", ICEBERG, ("", "tests"), True),
    ("org.apache.iceberg", "iceberg-data", ICEBERG, ("",), True),
    ("org.apache.iceberg", "iceberg-parquet", ICEBERG, ("",), True),
    ("org.apache.hadoop", "hadoop-client-api", "3.4.2", ("",), True),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.4.2", ("",), True),
    ("org.assertj", "assertj-core", "3.27.6", ("",), True),
    ("org.mockito", "mockito-core", "4.11.0", ("",), True),
    ("org.mockito", "mockito-inline", "4.11.0", ("",), True),
    ("org.awaitility", "awaitility", "4.3.0", ("",), True),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0", ("",), True),
    ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY, ("",), True),
    ("org.eclipse.jetty.compression", "jetty-compression-server", JETTY, ("",), True),
    ("org.eclipse.jetty.compression", "jetty-compression-gzip", JETTY, ("",), True),
    ("org.slf4j", "slf4j-simple", "2.0.17", ("",), True),
    ("org.junit.platform", "junit-platform-console-standalone", "1.13.4", ("",), False),
)

# Maven Central is Ivy's own default for this resolver.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def ensure_kit() -> Path:
    """The folder with the kit's jars, fetched now if need be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = base / "mainstem" / "rck" / hashlib.sha256(repr(COORDINATES).encode()).hexdigest()[:16]
    if not target.is_dir():
        print("fetching the REST Compatibility Kit (once)", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            _fetch(Path(scratch))
            # Renamed whole: a fetch that is cut off leaves nothing half there.
            shutil.move(Path(scratch) / "jars", target)
    return target


def class_path(kit: Path) -> str:
    """Every jar but the launcher, which is the one that is run."""
    return os.pathsep.join(str(jar) for jar in sorted(kit.glob("*.jar")) if jar.name != CONSOLE)


def _fetch(scratch: Path) -> None:
    check_java()
    ivy_jar = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    (scratch / "settings.xml").write_text(_SETTINGS.format(cache=scratch / "cache"))
    (scratch / "ivy.xml").write_text(_module())
    command = ["java", "-jar", str(ivy_jar), "-settings", "settings.xml", "-ivy", "ivy.xml", "-types", "jar", "bundle"]
    pattern = "jars/[artifact]-[revision](-[classifier]).[ext]"
    done = subprocess.run([*command, "-retrieve", pattern], cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not (scratch / "jars" / CONSOLE).exists():
        raise Invalid(f"the kit could not be fetched from Maven. got={done.stdout[-2000:]}{done.stderr[-2000:]}")


def _module() -> str:
    dependencies = []
    for group, name, version, classifiers, transitive in COORDINATES:
        artifacts = "".join(
            f'<artifact name="{name}" type="jar"' + (f' m:classifier="{c}"' if c else "") + "/>" for c in classifiers
        )
        conf = "default->compile,runtime,master" if transitive else "default->*"
        dependencies.append(
            f'<dependency org="{group}" name="{name}" rev="{version}" conf="{conf}" '
            f'transitive="{str(transitive).lower()}">{artifacts}</dependency>'
        )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="mainstem" module="rck"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
    )
