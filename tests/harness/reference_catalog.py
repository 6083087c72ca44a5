"""Iceberg's own REST catalog, as its project ships it for tests, on a SQLite file. It may be killed and come back."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from tests.compat.rck.kit import class_path, ensure_kit

START_S_MAX = 60.0


class ReferenceCatalog:
    """The server, and a folder that its tables are in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.warehouse = str(folder / "warehouse")
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def start(self) -> None:
        """Start it, and return once it answers."""
        environment = os.environ | {
            "CATALOG_URI": f"jdbc:sqlite:file:{self._folder / 'catalog.db'}",
            "CATALOG_WAREHOUSE": self.warehouse,
            "CATALOG_REST_PORT": str(self.port),
            # With more than one connection it answers "database is locked" to clients that write at the same time.
            "CATALOG_CLIENTS": "1",
        }
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", "-Xmx1g", quiet, "-cp", class_path(ensure_kit())]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.iceberg.rest.RESTCatalogServer"], env=environment, stdout=log, stderr=log
            )
        until_s = time.monotonic() + START_S_MAX
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                if time.monotonic() > until_s or self._process.poll() is not None:
                    raise
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
