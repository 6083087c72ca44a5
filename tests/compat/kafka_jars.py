"""What runs in a JVM beside the Kafka door: Kafka's own programs and programs of ours, on jars from Maven."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.compat.downloads import Artifact, cached, fetch

KAFKA_VERSION = "4.3.1"
KAFKA = "org.apache.kafka"
# Short-lived programs: a JVM that starts soon and leaves room for the others.
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SOURCES = Path(__file__).parent / "kafka_java"
# A JVM need not come with a compiler; this one is a jar.
_COMPILER = Artifact("org.eclipse.jdt", "ecj", "3.42.0")


def jars_of(name: str, *artifacts: Artifact) -> Path:
    """A folder with these, fetched once. The name has their versions in it: another name, another folder."""
    return cached(name, lambda folder: fetch(artifacts, folder))


def compile_java(source: str, jars: Path, target: Path) -> Path:
    """Compile one of our programs; the folder of its classes."""
    compiler = jars_of(f"ecj-{_COMPILER.version}", _COMPILER) / _COMPILER.file
    command = ["java", *JVM, "-jar", str(compiler), "-17", "-nowarn", "-cp", _path(jars), "-d", str(target)]
    done = subprocess.run([*command, str(SOURCES / source)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return target


def _path(*folders: Path) -> str:
    jars = [str(jar) for folder in folders for jar in sorted(folder.glob("*.jar"))]
    return os.pathsep.join([*jars, *map(str, folders)])


@contextmanager
def java(folders: Sequence[Path], main: str, *words: str, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that runs until it is told to end, by closing its input; killed at the latest when this is left."""
    command = ["java", *JVM, "-cp", _path(*folders), main, *words]
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
