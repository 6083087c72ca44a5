"""Apache Kafka itself by KRaft, from its jars, one node or three: what a log stands on, and the Kafka door's peer."""

import functools
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mainstem.app.process import reserve_port
from tests.compat.downloads import Artifact, cached, fetch
from tests.harness.proxy import FlakyProxy

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
CLUSTER_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What Kafka's own start script gives its JVM.
_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")


def jars() -> Path:
    """The folder with the broker, its clients and its tools, fetched now if need be."""
    return cached(f"kafka-broker-{VERSION}", lambda folder: fetch(JARS, folder))


class ApacheKafka:
    """A broker on a folder. A context manager; `bootstrap` is where clients connect.

    `settings` are the broker's own, on top of what one node needs: `{"log.flush.interval.messages": "1"}`. With `proxy`
    there is a second way in, `through`, on which clients stay and which `proxy` breaks for them alone.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        jvm: tuple[str, ...] = _JVM,
        *,
        has_proxy: bool = False,
    ) -> None:
        self._folder = folder
        self._run = ["java", *jvm, "-cp", f"{jars()}/*"]
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._places = [reserve_port("127.0.0.1") for _ in range(3 if has_proxy else 2)]
        self._ports = [place.getsockname()[1] for place in self._places]
        self.bootstrap = f"127.0.0.1:{self._ports[0]}"
        self.proxy = FlakyProxy(f"http://127.0.0.1:{self._ports[2]}") if has_proxy else None
        self.node, self.cluster = 1, _uuid()
        self.voters = f"1@127.0.0.1:{self._ports[1]}"

    @property
    def through(self) -> str:
        """Where clients connect by way of the proxy."""
        assert self.proxy is not None
        return self.proxy.url.removeprefix("http://")

    @property
    def controller(self) -> str:
        """Where the other nodes reach this one."""
        return f"127.0.0.1:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.spawn()
            self.wait_until_up()
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
            # What it would still write is needed by nothing, and the last of several waits for the others.
            self.kill()
        if self.proxy is not None and self.proxy.url:
            self.proxy.__exit__(kind, error, trace)

    def start(self) -> None:
        """Start the broker again, and wait until it answers."""
        self.spawn()
        self.wait_until_up()

    def spawn(self) -> None:
        """Start the broker, for the first time on a folder that is formatted for it."""
        config = self._folder / "server.properties"
        if not config.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            if self.proxy is not None:
                self.proxy.__enter__()
            (self._folder / "log").mkdir()
            (self._folder / "log" / "bootstrap.checkpoint").write_bytes(_formatted(tuple(self._run)))
            (self._folder / "log" / "meta.properties").write_text(
                f"version=1\nnode.id={self.node}\ncluster.id={self.cluster}\ndirectory.id={_uuid()}\n"
            )
            config.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._run, "kafka.Kafka", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _properties(self) -> dict[str, str]:
        own = {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": self.voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "log"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if self.proxy is not None:
            own["listeners"] += f",THROUGH://127.0.0.1:{self._ports[2]}"
            own["advertised.listeners"] = f"PLAINTEXT://{self.bootstrap},THROUGH://{self.through}"
            own["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,THROUGH:PLAINTEXT"
        return own | self._settings

    def wait_until_up(self) -> None:
        """Wait until it answers."""
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


class KafkaCluster:
    """Three nodes, each broker and controller. A topic has three copies, and no fewer than two take a record."""

    def __init__(self, folder: Path) -> None:
        settings = {
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            # A broker that is killed is noticed within this; Kafka's own default is 9 s.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        self.brokers = [ApacheKafka(folder / f"kafka-{node}", settings, CLUSTER_JVM) for node in (1, 2, 3)]
        cluster = _uuid()
        voters = ",".join(f"{node}@{broker.controller}" for node, broker in enumerate(self.brokers, 1))
        for node, broker in enumerate(self.brokers, 1):
            broker.node, broker.cluster, broker.voters = node, cluster, voters
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            for broker in self.brokers:
                self._stack.push(broker)
                broker.spawn()
            for broker in self.brokers:
                broker.wait_until_up()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def leader(self, topic: str) -> ApacheKafka | None:
        """Which broker leads the topic's partition; None while none does, or none says so."""
        leader, _ = self._partition(topic)
        return next((broker for broker in self.brokers if broker.node == leader), None)

    def in_sync(self, topic: str) -> set[int]:
        """The nodes that have all of the topic's partition."""
        return set(self._partition(topic)[1])

    def _partition(self, topic: str) -> tuple[int, list[int]]:
        try:
            found = self._admin.list_topics(topic, timeout=START_S_MAX).topics[topic].partitions.get(0)
        except KafkaException:
            # It asked the broker that was just killed.
            found = None
        return (-1, []) if found is None else (found.leader, found.isrs)


def _uuid() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


@functools.cache
def _formatted(run: tuple[str, ...]) -> bytes:
    """The features that a new cluster begins with: the same for all, so that one run of Kafka's own tool is enough."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
            "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={name}/log\n"
        )
        subprocess.run(
            [*run, "kafka.tools.StorageTool", "format", "-t", _uuid(), "-c", str(config)],
            check=True,
            capture_output=True,
            timeout=START_S_MAX,
        )
        return (Path(name) / "log" / "bootstrap.checkpoint").read_bytes()


def tool(name: str, *words: str, timeout_s: float = 120.0) -> str:
    """What one of Kafka's own commands prints, by the name of its class."""
    command = ["java", "-Xmx512m", "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{name}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout
