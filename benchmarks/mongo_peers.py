"""Servers that speak MongoDB's protocol, to be measured beside ours: FerretDB on SQLite, mongo-java-server in memory.

FerretDB is built from its Go module, once, into the user's cache; where there is no Go its figures are missing, and the
report says so.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainstem.app.process import reserve_port
from mainstem.model import Invalid
from tests.compat.downloads import cached
from tests.harness.mongo_reference import reference_server

FERRETDB = "FerretDB 1.24.2 (SQLite)"
JAVA_SERVER = "mongo-java-server (memory)"
_MODULE = "github.com/FerretDB/FerretDB@v1.24.2"
_MAIN = Path(__file__).parent / "ferretdb" / "main.go"
_START_S_MAX = 30.0


def has_go() -> bool:
    """Whether FerretDB can be built here."""
    return shutil.which("go") is not None


def _make(folder: Path) -> None:
    shutil.copy(_MAIN, folder / "main.go")
    for command in (["mod", "init", "ferretdb"], ["get", _MODULE], ["mod", "tidy"], ["build", "-o", "ferretdb", "."]):
        done = subprocess.run(["go", *command], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Invalid(f"FerretDB cannot be built. got={done.stderr[-1500:]}")


def build() -> Path:
    """FerretDB's program."""
    return cached("ferretdb-1.24.2", _make) / "ferretdb"


@contextmanager
def ferretdb(folder: Path) -> Iterator[str]:
    """Its address, for as long as it runs."""
    program = build()
    folder.mkdir()
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
        with subprocess.Popen(
            [str(program), str(folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdin is not None
            try:
                _wait(port, process)
                yield f"mongodb://127.0.0.1:{port}/"
            finally:
                process.stdin.close()
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    ends_s = time.monotonic() + _START_S_MAX
    while time.monotonic() < ends_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise Invalid("FerretDB does not listen")


@contextmanager
def java_server(folder: Path) -> Iterator[str]:
    """Its address, for as long as it runs."""
    folder.mkdir()
    with reference_server(folder, heap="3g") as port:
        yield f"mongodb://127.0.0.1:{port}/"
