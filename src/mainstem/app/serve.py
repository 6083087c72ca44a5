"""`mainstem serve`: the gateway on a socket, the pipeline beside it, and a clean end to both."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar.types import ASGIApp

from mainstem.app.address import ADDRESS_FILE, Address, write_address
from mainstem.app.config import Config, ServerConfig
from mainstem.app.gateway import Gateway
from mainstem.app.objectstore import delta_url, spark_properties
from mainstem.app.pipeline import STORE_VARIABLE, TOKEN_VARIABLE
from mainstem.app.supervisor import Supervisor
from mainstem.doors.http_quick import QuickProtocol
from mainstem.doors.ws import SERVER_FRAME_BYTES_MAX
from mainstem.doors.ws_protocol import RawTextProtocol
from mainstem.model import Invalid
from mainstem.runtime.clock import SystemClock
from mainstem.runtime.descriptors import raise_descriptor_limit
from mainstem.runtime.logs import RecentErrors, set_up_logging

logger = logging.getLogger(__name__)

LISTEN_BACKLOG = 2048


def serve(config: Config, data: Path) -> int:
    """Run until a signal says stop. The process's exit code."""
    recent = set_up_logging(config.logging.format, config.logging.level)
    check_exposure(config)
    raise_descriptor_limit()
    data.mkdir(parents=True, exist_ok=True)
    uvloop.run(_serve(config, data.absolute(), recent))
    return 0


async def _serve(config: Config, data: Path, recent: RecentErrors) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    listener = _listen(config.server.host, config.server.port)
    gateway = await Gateway.open(config, data)
    gateway.observer.recent = recent
    url = _url(config.server, listener.getsockname()[1])
    app = gateway.app()
    server = _Server(app, data, url, config.server)
    inner = _inner_listener(config.server) if config.pipeline.enabled else None
    inner_server = None if inner is None else _Server(app)
    inner_url = url if inner is None else f"http://127.0.0.1:{inner.getsockname()[1]}"
    token = gateway.authenticator.internal_token("mainstem-pipeline")
    pipeline = _supervise(config, data, inner_url, token) if config.pipeline.enabled else None
    # What is there now lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        if inner is not None and inner_server is not None:
            tasks.create_task(inner_server.serve(sockets=[inner]))
        maintaining = tasks.create_task(gateway.maintain())
        compacting = tasks.create_task(gateway.maintainer.run_timer())
        if pipeline is not None:
            gateway.child = pipeline.status
            tasks.create_task(pipeline.run())
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        logger.info("stopping")
        maintaining.cancel()
        compacting.cancel()
        # The pipeline commits through us: it finishes what it has in hand before the door shuts.
        if pipeline is not None:
            await pipeline.stop()
        await gateway.close()
        server.should_exit = True
        if inner_server is not None:
            inner_server.should_exit = True
    (data / ADDRESS_FILE).unlink(missing_ok=True)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror}. Choose another with --port.") from error
    listener.listen(LISTEN_BACKLOG)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: Config) -> None:
    """Refuse to listen where others can reach us and nobody asks who they are."""
    server = config.server
    if bool(server.tls_cert) != bool(server.tls_key):
        raise Invalid("TLS needs both. expected=server.tls_cert and server.tls_key got=one of them")
    for path in filter(None, (server.tls_cert, server.tls_key)):
        if not Path(path).is_file():
            raise Invalid(f"TLS file cannot be read. got={path}")
    if is_loopback(server.host):
        return
    if not config.auth.is_on:
        raise Invalid(
            "without authentication the server only listens on loopback. "
            f"expected=[auth] keys or jwks_file got={server.host}"
        )
    if not server.tls_cert:
        logger.warning("no TLS: tokens and data cross the network in the clear, unless something in front has TLS")


def _url(server: ServerConfig, port: int) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{'https' if server.tls_cert else 'http'}://{host}:{port}"


def _inner_listener(server: ServerConfig) -> socket.socket | None:
    """A door on loopback for our own pipeline, where the one for others has a certificate that the JVM would have to
    be taught, or an address that is not one to connect to. It asks for a token like the other."""
    if not server.tls_cert and is_loopback(server.host):
        return None
    return _listen("127.0.0.1", 0)


def _supervise(config: Config, data: Path, url: str, token: str) -> Supervisor:
    folder = data / "pipeline"
    folder.mkdir(exist_ok=True)
    settings = folder / "settings.json"
    settings.write_bytes(
        msgspec.json.encode(
            {
                "catalog_uri": url,
                "report_url": f"{url}/v1/pipeline/report",
                "checkpoints_url": f"{url}/v1/pipeline/checkpoints",
                "jobs_url": f"{url}/v1/pipeline/jobs",
                "queries_url": f"{url}/v1/pipeline/queries",
                "maintenance": config.compaction,
                "segments_dir": str(data / "log" / "segments"),
                "checkpoint_dir": str(folder / "checkpoint"),
                "delta_url": delta_url(config.catalog, data),
                "master": config.pipeline.master,
                "driver_memory": config.pipeline.driver_memory,
                "trigger_s": config.pipeline.trigger_s,
                "parallel_tables": config.pipeline.parallel_tables,
                "driver_rows_max": config.pipeline.driver_rows_max,
                "breaker_failures": config.pipeline.breaker_failures,
                "breaker_open_s": config.pipeline.breaker_open_s,
                "parquet": config.parquet,
                "tables": config.tables,
                "logging": config.logging,
            }
        )
    )
    command = [sys.executable, "-m", "mainstem.app.pipeline", str(settings)]
    # By the environment, which only we can read: neither a file nor the list of processes shows the token or the keys.
    store = msgspec.json.encode(spark_properties(config.catalog)).decode()
    environment = {**os.environ, TOKEN_VARIABLE: token, STORE_VARIABLE: store}
    return Supervisor(command, log_path=folder / "pipeline.log", clock=SystemClock(), environment=environment)


class _Server(uvicorn.Server):
    """uvicorn, told by us when to stop, and telling others where it listens."""

    def __init__(
        self, app: ASGIApp, data: Path | None = None, url: str = "", tls: ServerConfig | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=(tls and tls.tls_cert) or None,
                ssl_keyfile=(tls and tls.tls_key) or None,
                lifespan="off",
                http=QuickProtocol,
                ws=RawTextProtocol,
                ws_max_size=SERVER_FRAME_BYTES_MAX,
                # For those who ask for it; it costs some memory per connection that does.
                ws_per_message_deflate=True,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._data = data
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._data is None:
            return
        write_address(self._data, Address(pid=os.getpid(), url=self._url))
        print(f"mainstem listens on {self._url} (data in {self._data})", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield
