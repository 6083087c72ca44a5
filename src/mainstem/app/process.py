"""A server in a process of its own, for those who need one for a while: the demo, the tests, the benchmarks."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from mainstem.app.config import Config
from mainstem.app.folder.address import read_address
from mainstem.model import MainstemError, Overloaded
from mainstem.runtime.children import python_module
from mainstem.runtime.clock import SystemClock

# Far more than it takes: a machine that is busy with other things starts it late.
START_S_MAX = 120.0
STOP_S_MAX = 60.0
POLL_S = 0.01
# What an answer may take on a machine that is busy with other things.
ANSWER_S_MAX = 60.0


def reserve_port(host: str) -> socket.socket:
    """A port that no other process is given while this socket is open. It never listens, so that a server can."""
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((host, 0))
    return place


class ServerProcess:
    """`mainstem serve` on a data folder. It may be killed and started again, on the same port."""

    def __init__(
        self, data: Path, config: Config | None = None, *, token: str | None = None, is_apart: bool = False
    ) -> None:
        """`is_apart`: ^C at the terminal does not reach it, so that its starter decides when it stops."""
        self.data = data
        self._is_apart = is_apart
        # What `status` and `flush` show, where the configuration asks for a token.
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._config = config or Config()
        self._port = self._config.server.port
        # Keeps the port while the server is down.
        self._place: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = SystemClock()
        self.url = ""
        # From the start of the process to the first answer.
        self.start_s = 0.0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        if self._place is not None:
            self._place.close()

    @property
    def ws_url(self) -> str:
        """Where producers connect."""
        return self.url.replace("http", "ws", 1) + "/ws"

    @property
    def pid(self) -> int:
        """Of the gateway."""
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> None:
        """Start it, and return once it answers."""
        self.data.mkdir(parents=True, exist_ok=True)
        # Elsewhere an address is never shared, and the port is what the first start is given.
        if self._port == 0 and sys.platform == "linux":
            self._place = reserve_port(self._config.server.host)
            self._port = self._place.getsockname()[1]
        config_path = self.data / "config.toml"
        server = msgspec.structs.replace(self._config.server, port=self._port)
        config = msgspec.structs.replace(self._config, server=server)
        config_path.write_bytes(msgspec.toml.encode(msgspec.to_builtins(config)))
        began_s = self._clock.monotonic_s()
        self._spawn(config_path)
        await self._wait_until_up(began_s)
        self.start_s = self._clock.monotonic_s() - began_s

    def _spawn(self, config_path: Path) -> None:
        command = python_module("mainstem.app", "serve", "--data", str(self.data))
        with (self.data / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=self._is_apart,
            )

    async def _wait_until_up(self, began_s: float) -> None:
        assert self._process is not None
        while self._clock.monotonic_s() - began_s < START_S_MAX:
            if self._process.poll() is not None:
                raise MainstemError(f"the server did not start. log={self._tail()}")
            address = read_address(self.data)
            if address is not None and address.pid == self._process.pid:
                self.url = address.url
                self._port = int(address.url.rsplit(":", 1)[1])
                return
            await asyncio.sleep(POLL_S)
        raise Overloaded(f"the server did not answer in {START_S_MAX} s. log={self._tail()}", retry_after_s=1)

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait until it has drained and gone. Returns its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self._process.wait, STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    async def wait(self) -> int:
        """Wait until it has gone by itself. Returns its exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    async def status(self) -> dict[str, Any]:
        """What `/status` says."""
        async with httpx.AsyncClient(timeout=ANSWER_S_MAX, headers=self.headers) as http:
            answer = await http.get(self.url + "/status")
        status: dict[str, Any] = answer.raise_for_status().json()
        return status

    async def flush(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Carry everything into the tables; the answer says which snapshots hold it."""
        async with httpx.AsyncClient(timeout=timeout_s + ANSWER_S_MAX, headers=self.headers) as http:
            answer = await http.post(f"{self.url}/flush?timeoutS={timeout_s}")
        flushed: dict[str, Any] = answer.json()
        return flushed

    def _tail(self) -> str:
        return (self.data / "gateway.log").read_text(errors="replace")[-2000:]
