"""Apache Kafka itself, one node by KRaft, from its jars: the peer that the Kafka door is measured beside."""

import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mainstem.app.process import reserve_port
from tests.compat.downloads import Artifact, cached, fetch

VERSION = "4.3.1"
START_S_MAX = 60.0
_KAFKA, _JACKSON = "org.apache.kafka", "com.fasterxml.jackson"
_OWN = (
    "kafka_2.13", "kafka-clients", "kafka-coordinator-common", "kafka-group-coordinator", "kafka-group-coordinator-api",
    "kafka-metadata", "kafka-raft", "kafka-server", "kafka-server-common", "kafka-share-coordinator", "kafka-storage",
    "kafka-storage-api", "kafka-tools", "kafka-tools-api", "kafka-transaction-coordinator",
)  # fmt: skip
JARS = (
    *(Artifact(_KAFKA, name, VERSION) for name in _OWN),
    *(Artifact(f"{_JACKSON}.core", f"jackson-{name}", "2.21.2") for name in ("core", "databind")),
    Artifact(f"{_JACKSON}.core", "jackson-annotations", "2.21"),
    Artifact(f"{_JACKSON}.dataformat", "jackson-dataformat-csv", "2.21.2"),
    Artifact(f"{_JACKSON}.datatype", "jackson-datatype-jdk8", "2.21.2"),
    Artifact("at.yawk.lz4", "lz4-java", "1.10.2"),
    Artifact("com.dynatrace.hash4j", "hash4j", "0.22.0"),
    Artifact("com.github.ben-manes.caffeine", "caffeine", "3.2.0"),
    Artifact("com.github.luben", "zstd-jni", "1.5.6-10"),
    Artifact("com.google.re2j", "re2j", "1.8"),
    Artifact("com.typesafe.scala-logging", "scala-logging_2.13", "3.9.6"),
    Artifact("com.yammer.metrics", "metrics-core", "2.2.0"),
    Artifact("commons-validator", "commons-validator", "1.10.1"),
    Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
    Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
    *(Artifact("org.apache.logging.log4j", f"log4j-{name}", "2.25.4") for name in ("api", "core")),
    Artifact("org.bitbucket.b_c", "jose4j", "0.9.6"),
    Artifact("org.hdrhistogram", "HdrHistogram", "2.2.2"),
    Artifact("org.pcollections", "pcollections", "4.0.2"),
    Artifact("org.scala-lang", "scala-library", "2.13.18"),
    Artifact("org.scala-lang", "scala-reflect", "2.13.18"),
    Artifact("org.slf4j", "slf4j-api", "1.7.36"),
    Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
    Artifact("org.xerial.snappy", "snappy-java", "1.1.10.7"),
)
# For tests: it starts soon and leaves room for others.
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What Kafka's own start script gives its JVM.
_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")


def jars() -> Path:
    """The folder with the broker, its clients and its tools, fetched now if need be."""
    return cached(f"kafka-broker-{VERSION}", lambda folder: fetch(JARS, folder))


class ApacheKafka:
    """A broker on a folder. A context manager; `bootstrap` is where clients connect.

    `settings` are the broker's own, on top of what one node needs: `{"log.flush.interval.messages": "1"}`.
    """

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, jvm: tuple[str, ...] = _JVM) -> None:
        self._folder = folder
        self._run = ["java", *jvm, "-cp", f"{jars()}/*"]
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._places = [reserve_port("127.0.0.1"), reserve_port("127.0.0.1")]
        self.bootstrap = f"127.0.0.1:{self._places[0].getsockname()[1]}"

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        try:
            subprocess.run(
                [*self._run, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
                check=True,
                capture_output=True,
                timeout=START_S_MAX,
            )
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for place in self._places:
            place.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def start(self) -> None:
        """Start the broker, or start it again, and wait until it answers."""
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._run, "kafka.Kafka", str(self._folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_up()

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _properties(self) -> dict[str, str]:
        listen, control = (place.getsockname()[1] for place in self._places)
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://127.0.0.1:{listen},CONTROLLER://127.0.0.1:{control}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "log"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }

    def _wait_until_up(self) -> None:
        assert self._process is not None
        until_s = time.monotonic() + START_S_MAX
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while time.monotonic() < until_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"Kafka did not start: {(self._folder / 'broker.log').read_text()[-2000:]}")
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                continue
        raise RuntimeError(f"Kafka did not answer within {START_S_MAX:g} s")


def tool(name: str, *words: str, timeout_s: float = 120.0) -> str:
    """What one of Kafka's own commands prints, by the name of its class."""
    command = ["java", "-Xmx512m", "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{name}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout
