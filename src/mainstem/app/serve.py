"""`mainstem serve`: the gateway on a socket, the pipeline beside it, and a clean end to both."""

import asyncio
import gc
import ipaddress
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar.types import ASGIApp

from mainstem.app.config import Config, ServerConfig
from mainstem.app.folder.address import ADDRESS_FILE, Address, write_address
from mainstem.app.gateway import Gateway
from mainstem.app.mongo import tls_of
from mainstem.app.spark.objectstore import delta_url, segments_url, spark_properties
from mainstem.app.spark.pipeline import SPARK_VARIABLE, STORE_VARIABLE, TOKEN_VARIABLE
from mainstem.app.spark.supervisor import Supervisor
from mainstem.doors.cdc.ws import SERVER_FRAME_BYTES_MAX
from mainstem.doors.http.quick import QuickProtocol
from mainstem.doors.http.ws_protocol import RawTextProtocol
from mainstem.model import Invalid, Lineage
from mainstem.runtime.children import child_environment, python_module
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
    check_folder(data)
    uvloop.run(_serve(config, data.absolute(), recent))
    return 0


def check_folder(data: Path) -> None:
    """Make the data folder, and see that it can be written to."""
    probe = data / f".probe-{os.getpid()}"
    try:
        data.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Invalid(
            f"the data folder cannot be used: {error.strerror}. got={data}. Choose another with --data."
        ) from error


async def _serve(config: Config, data: Path, recent: RecentErrors) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    listener = _listen(config.server.host, config.server.port)
    kafka_listener = _listen(config.server.host, config.kafka.port, "--kafka-port") if config.kafka.enabled else None
    gateway = await Gateway.open(config, data)
    gateway.observer.recent = recent
    url = _url(config.server, listener.getsockname()[1])
    app = gateway.app()
    server = _Server(app, data, url, config.server)
    inner = _inner_listener(config.server) if config.pipeline.enabled else None
    inner_server = None if inner is None else _Server(app)
    inner_url = url if inner is None else f"http://127.0.0.1:{inner.getsockname()[1]}"
    token = gateway.authenticator.internal_token("mainstem-pipeline")
    pipeline = _supervise(gateway.config, data, inner_url, token, gateway.lineage) if config.pipeline.enabled else None
    # What is there now lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    await _open_doors(gateway, config, kafka_listener)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        if inner is not None and inner_server is not None:
            tasks.create_task(inner_server.serve(sockets=[inner]))
        maintaining = [gateway.maintain(), gateway.maintainer.run_timer(), gateway.ship()]
        maintaining += [
            gateway.retain_topics(),
            gateway.coordinate(),
            gateway.dead_letters.run(),
            gateway.activity.run(),
        ]
        beside = [tasks.create_task(each) for each in maintaining]
        if pipeline is not None:
            gateway.child = pipeline.status

            def restart(changed: Config) -> None:
                _write_settings(changed, data, inner_url, gateway.lineage)
                pipeline.restart()

            gateway.restart_pipeline = restart
            tasks.create_task(pipeline.run())
        tasks.create_task(gateway.warm_queries())
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        logger.info("stopping")
        for task in beside:
            task.cancel()
        # The pipeline commits through us: it finishes what it has in hand before the door shuts.
        if pipeline is not None:
            await pipeline.stop()
        await gateway.close()
        server.should_exit = True
        if inner_server is not None:
            inner_server.should_exit = True
    (data / ADDRESS_FILE).unlink(missing_ok=True)


async def _open_doors(gateway: Gateway, config: Config, kafka_listener: socket.socket | None) -> None:
    """Let the clients of the other protocols in, on ports of their own."""
    if gateway.kafka is not None and kafka_listener is not None:
        await gateway.kafka.open(kafka_listener, config.server)
    if gateway.mongo is not None:
        tls = tls_of(config.server.tls_cert, config.server.tls_key)
        port = await gateway.mongo.door.listen(config.server.host, config.mongo.port, tls)
        print(f"mainstem speaks MongoDB's protocol on port {port}", flush=True)


def _listen(host: str, port: int, option: str = "--port") -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror}. Choose another with {option}.") from error
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
    if config.mongo.is_on and not config.users:
        raise Invalid(
            "without users the Mongo door only listens on loopback. "
            f"expected=[users.<name>] with credentials of `mainstem password` got={server.host}"
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


def _write_settings(config: Config, data: Path, url: str, lineage: Lineage) -> Path:
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
                "segments_dir": segments_url(config.catalog, lineage.log) or str(data / "log" / "segments"),
                "checkpoint_dir": str(_checkpoint_folder(folder, lineage)),
                "lineage": lineage.spans,
                "delta_url": delta_url(config.catalog, data),
                "master": config.pipeline.master,
                "driver_memory": config.pipeline.driver_memory,
                "trigger_s": config.pipeline.trigger_s,
                "ui_port": config.pipeline.ui_port,
                "breaker_failures": config.pipeline.breaker_failures,
                "breaker_open_s": config.pipeline.breaker_open_s,
                "dropped_tables": config.pipeline.dropped_tables,
                "parquet": config.parquet,
                "tables": config.tables,
                "logging": config.logging,
                "maven_mirror": config.pipeline.maven_mirror,
            }
        )
    )
    return settings


def _supervise(config: Config, data: Path, url: str, token: str, lineage: Lineage) -> Supervisor:
    settings = _write_settings(config, data, url, lineage)
    command = python_module("mainstem.app.spark.pipeline", str(settings))
    # By the environment, which only we can read: neither a file nor the list of processes shows the token or the keys.
    store = msgspec.json.encode(spark_properties(config.catalog)).decode()
    spark = msgspec.json.encode(config.pipeline.spark).decode()
    environment = child_environment(**{TOKEN_VARIABLE: token, STORE_VARIABLE: store, SPARK_VARIABLE: spark})
    log_path = settings.with_name("pipeline.log")
    return Supervisor(command, log_path=log_path, clock=SystemClock(), environment=environment)


def _checkpoint_folder(folder: Path, lineage: Lineage) -> Path:
    """Where the stream notes which segments it has seen. Another log's segments may have the same names."""
    folders = folder / "checkpoints"
    ours = folders / lineage.log
    ours.mkdir(parents=True, exist_ok=True)
    for other in folders.iterdir():
        if other != ours:
            shutil.rmtree(other, ignore_errors=True)
    return ours


class _Server(uvicorn.Server):
    """uvicorn, told by us when to stop, and telling others where it listens."""

    def __init__(self, app: ASGIApp, data: Path | None = None, url: str = "", tls: ServerConfig | None = None) -> None:
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
        print(f"  console  {self._url}/console", flush=True)
        print(f"  catalog  {self._url} (Iceberg REST), changes at {self._url.replace('http', 'ws', 1)}/ws", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield
