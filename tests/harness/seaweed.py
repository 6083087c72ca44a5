"""A real S3 server for tests: SeaweedFS out of its wheel, with keys, on free ports of this machine."""

import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from mainstem.app.process import reserve_port

ACCESS_KEY = "mainstem-test"
SECRET_KEY = "mainstem-test-secret"
REGION = "us-east-1"
START_S_MAX = 180.0
# Each of its servers wants a port, and one more for its gRPC side.
_PORTS = (
    "-master.port", "-master.port.grpc", "-volume.port", "-volume.port.grpc", "-filer.port", "-filer.port.grpc",
    "-s3.port", "-s3.port.grpc",
)  # fmt: skip

# STS AssumeRole: temporary keys within what whoever asks may do, and within the policy that it names.
_TOKEN_SERVICE = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": base64.b64encode(b"a signing key of 32 bytes or more").decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roleStore": {"storeType": "memory"},
}


_REQUESTS = "SeaweedFS_s3_request_total{"


class S3Server:
    """`weed server -s3` on a folder. A context manager; `url` is its endpoint."""

    def __init__(self, folder: Path, *, has_metrics: bool = False) -> None:
        self._folder = folder
        self._ports = (*_PORTS, "-metricsPort") if has_metrics else _PORTS
        self._metrics = ""
        self._process: subprocess.Popen[bytes] | None = None
        # Each keeps its port for one of the servers.
        self._places: list[socket.socket] = []
        self.port = 0

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def io(self, endpoint: str | None = None) -> dict[str, str]:
        """What `[catalog.io]` needs to reach it, straight or by way of another address."""
        return {
            "s3.endpoint": endpoint or self.url,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.path-style-access": "true",
        }

    def make_bucket(self, name: str) -> str:
        """Make a bucket (three letters or more); returns its location."""
        from pyarrow.fs import S3FileSystem

        files = S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            endpoint_override=self.url,
            allow_bucket_creation=True,
        )
        files.create_dir(name)
        return f"s3://{name}"

    def requests(self) -> int:
        """How many requests of S3 it was sent, where it has metrics."""
        with urllib.request.urlopen(self._metrics, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(_REQUESTS)))

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "s3.json"
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identity = {"name": "test", "credentials": credentials, "actions": ["Admin"]}
        config.write_text(json.dumps({"identities": [identity]}))
        tokens = self._folder / "iam.json"
        tokens.write_text(json.dumps(_TOKEN_SERVICE))
        self._places = [reserve_port("127.0.0.1") for _ in self._ports]
        ports = {name: place.getsockname()[1] for name, place in zip(self._ports, self._places, strict=True)}
        self._metrics = f"http://127.0.0.1:{ports.get('-metricsPort')}/metrics"
        self.port = ports["-s3.port"]
        with (self._folder / "weed.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    _binary(), "server", "-s3", f"-s3.config={config}", f"-s3.iam.config={tokens}",
                    f"-dir={self._folder}", "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=1000", "-s3.port.iceberg=0",
                    "-s3.port.lance=0", "-master.telemetry=false", f"-filer.localSocket={self._folder}/filer.sock",
                    f"-s3.localSocket={self._folder}/s3.sock",
                    *(f"{name}={port}" for name, port in ports.items()),
                ],
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait_until_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            # It takes half a minute to say goodbye, and nobody needs what it holds any more.
            self._process.kill()
            self._process.wait()
        # It leaves its unix sockets behind.
        for place in self._places:
            for path in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{place.getsockname()[1]}.sock"):
                path.unlink(missing_ok=True)
            place.close()

    def _wait_until_up(self) -> None:
        assert self._process is not None
        began_s = time.monotonic()
        while time.monotonic() - began_s < START_S_MAX:
            if self._process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{self.url}/healthz", timeout=10)
                # It answers before the store behind it can take anything: a write is what says that it is up.
                self.make_bucket("ready")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        tail = (self._folder / "weed.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"the S3 server did not start: {tail}")


def _binary() -> str:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed") or "weed"
