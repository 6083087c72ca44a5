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
_JACKSON = "com.fasterxml.jackson"
_TOOLS = (
    *(Artifact(KAFKA, name, KAFKA_VERSION) for name in ("kafka-tools", "kafka-clients", "kafka-server-common")),
    *(Artifact(KAFKA, name, KAFKA_VERSION) for name in ("kafka-tools-api", "kafka-group-coordinator-api")),
    Artifact(KAFKA, "kafka-group-coordinator", KAFKA_VERSION),
    Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
    Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
    *(Artifact(f"{_JACKSON}.core", f"jackson-{name}", "2.19.0") for name in ("core", "databind", "annotations")),
    Artifact(f"{_JACKSON}.dataformat", "jackson-dataformat-csv", "2.19.0"),
    Artifact(f"{_JACKSON}.datatype", "jackson-datatype-jdk8", "2.19.0"),
    Artifact("com.google.re2j", "re2j", "1.8"),
    Artifact("org.slf4j", "slf4j-api", "1.7.36"),
    Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
)
# A JVM need not come with a compiler; this one is a jar.
_COMPILER = Artifact("org.eclipse.jdt", "ecj", "3.42.0")


def jars_of(name: str, *artifacts: Artifact) -> Path:
    """A folder with these, fetched once. The name has their versions in it: another name, another folder."""
    return cached(name, lambda folder: fetch(artifacts, folder))


def tools_jars() -> Path:
    """The folder with Kafka's own tools."""
    return jars_of(f"kafka-tools-{KAFKA_VERSION}", *_TOOLS)


def run_tool(jars: Path, tool: str, *words: str) -> str:
    """What one of Kafka's own tools says."""
    command = ["java", *JVM, "-cp", f"{jars}/*", f"org.apache.kafka.tools.{tool}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def read_by_java(bootstrap: str, topic: str, count: int) -> dict[int, list[tuple[int, bytes]]]:
    """The first records of a topic as Kafka's own console consumer sees them, committed ones only: by partition,
    offsets and values."""
    words = ("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", str(count))
    shown = [word for each in ("partition", "offset") for word in ("--formatter-property", f"print.{each}=true")]
    more = ("--isolation-level", "read_committed", "--timeout-ms", "60000")
    found: dict[int, list[tuple[int, bytes]]] = {}
    for line in run_tool(tools_jars(), "consumer.ConsoleConsumer", *words, *more, *shown).splitlines():
        partition, offset, value = line.split("\t")
        place = (int(offset.removeprefix("Offset:")), value.encode())
        found.setdefault(int(partition.removeprefix("Partition:")), []).append(place)
    return found


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
