"""The reference server for MongoDB's languages: mongo-java-server, started from its jars on a free port."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.compat.downloads import Artifact, cached, fetch

_VERSION = "1.47.0"
_SOURCE = Path(__file__).parents[1] / "compat" / "mongo" / "ReferenceServer.java"


def _make(folder: Path) -> None:
    names = ("mongo-java-server", "mongo-java-server-core", "mongo-java-server-memory-backend")
    fetch([Artifact("de.bwaldvogel", name, _VERSION) for name in names], folder)


@contextmanager
def reference_server(scratch: Path, heap: str = "256m") -> Iterator[int]:
    """Its port, for as long as it runs. Netty and the logging interface are Spark's."""
    jars = Path(pyspark.__file__).parent / "jars"
    folder = cached(f"mongo-java-server-{_VERSION}", _make)
    found = [*folder.glob("*.jar"), *jars.glob("netty-*.jar"), *jars.glob("slf4j-api-*.jar")]
    classpath = ":".join(map(str, [scratch, *found]))
    subprocess.run(["javac", "-cp", classpath, "-d", str(scratch), str(_SOURCE)], check=True, capture_output=True)
    command = ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-cp", classpath, "ReferenceServer"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(timeout=20)
