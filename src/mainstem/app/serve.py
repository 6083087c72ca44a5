"""`mainstem serve`: the gateway on a socket, the pipeline beside it, and a clean end to both."""

import asyncio
import gc
import logging
import os
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar.types import ASGIApp

from mainstem.admission import Authenticator, Users
from mainstem.app.config import Config, ServerConfig
from mainstem.app.folder.address import ADDRESS_FILE, Address, write_address
from mainstem.app.gateway import Gateway
from mainstem.app.kafkalog import end_if_lost
from mainstem.app.mongo import tls_of
from mainstem.app.passing.listening import HTTP, KAFKA, MONGO, Doors, is_loopback, listen
from mainstem.app.passing.receive import Entrance
from mainstem.app.passing.turn import take_turn
from mainstem.app.spark.objectstore import delta_url, segments_url, spark_properties
from mainstem.app.spark.pipeline import CATALOG_VARIABLE, SPARK_VARIABLE, STORE_VARIABLE, TOKEN_VARIABLE
from mainstem.app.spark.supervisor import Supervisor
from mainstem.catalog.settings import remote_properties
from mainstem.doors.cdc.ws import SERVER_FRAME_BYTES_MAX
from mainstem.doors.http.quick import QuickProtocol
from mainstem.doors.http.ws_protocol import RawTextProtocol
from mainstem.maintenance.loads import load_places
from mainstem.model import Invalid, Lineage
from mainstem.runtime.children import child_environment, python_module
from mainstem.runtime.clock import SystemClock
from mainstem.runtime.descriptors import raise_descriptor_limit
from mainstem.runtime.logs import RecentErrors, set_up_logging

logger = logging.getLogger(__name__)

# A server that was told to stop is gone after this long, whatever hangs: a disk, a store, a client that stays.
# Whatever was acknowledged is durable by then, so nothing is lost by going. Less than the ten seconds after which
# service managers kill.
STOP_S_MAX = 7.5
# Of a gateway that lost the log to another: service managers start it again.
LOST_EXIT_CODE = 75
# What requests that are under way have to end in, of that.
REQUESTS_S_MAX = 1


def serve(config: Config, data: Path) -> int:
    """Run until a signal says stop. The process's exit code."""
    recent = set_up_logging(config.logging.format, config.logging.level)
    check_exposure(config)
    check_access(config)
    raise_descriptor_limit()
    check_folder(data)
    return uvloop.run(_serve(config, data.absolute(), recent))


def check_folder(data: Path) -> None:
    """Make the data folder, and see that it can be written to, and its tables read."""
    if '"' in str(data.absolute()):
        # DuckDB takes the path of an Iceberg table for a name first, and a double quote in it for the name's end.
        raise Invalid(
            f"the data folder cannot be used: DuckDB reads no path with a double quote. got={data.absolute()}. "
            "Choose another with --data."
        )
    probe = data / f".probe-{os.getpid()}"
    try:
        data.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Invalid(
            f"the data folder cannot be used: {error.strerror}. got={data}. Choose another with --data."
        ) from error


async def _serve(config: Config, data: Path, recent: RecentErrors) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stop)
    turn = await take_turn(config, stop)
    if turn is None:
        return 0
    listener = turn.doors.listeners[HTTP]
    gateway = await Gateway.open(config, data, recent=recent, journal=turn.journal)
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
    tls = tls_of(config.server.tls_cert, config.server.tls_key)
    await _open_doors(gateway, turn.doors, tls)
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
            end_if_lost(gateway.lost, partial(_stop, stop)),
        ]
        if turn.receiver is not None:
            gateway.statuses.peers = turn.receiver
            entrances = _entrances(gateway, server, config, tls)
            maintaining.append(server.once_up(turn.receiver.run(entrances, turn.waiting)))
        beside = [tasks.create_task(each) for each in maintaining]
        if pipeline is not None:

            def restart(changed: Config) -> None:
                _write_settings(changed, data, inner_url, gateway.lineage)
                pipeline.restart()

            gateway.pipeline.attach(pipeline.status, restart)
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
    return LOST_EXIT_CODE if gateway.lost.is_set() else 0


def _stop(stop: asyncio.Event) -> None:
    """Begin to stop, and be gone in time even where that hangs."""
    if stop.is_set():
        return
    stop.set()
    watchdog = threading.Timer(STOP_S_MAX, _go)
    watchdog.daemon = True
    watchdog.start()


def _go() -> None:
    logger.warning("the server did not end in %.1f s and goes as it is; what was acknowledged is durable", STOP_S_MAX)
    os._exit(1)


async def _open_doors(gateway: Gateway, doors: Doors, tls: ssl.SSLContext | None) -> None:
    """Let the clients of the other protocols in, on ports of their own."""
    if gateway.kafka is not None:
        await gateway.kafka.open(doors.listeners[KAFKA], tls)
    if gateway.mongo is not None:
        port = await gateway.mongo.door.listen(doors.listeners[MONGO], tls)
        print(f"mainstem speaks MongoDB's protocol on port {port}", flush=True)


def _entrances(gateway: Gateway, server: "_Server", config: Config, tls: ssl.SSLContext | None) -> dict[str, Entrance]:
    """How connections that other gateways pass on enter the doors."""
    is_open = not config.auth.is_on
    found = {HTTP: Entrance(server.protocol, tls, is_open)}
    if gateway.kafka is not None:
        found[KAFKA] = Entrance(gateway.kafka.door.connection, tls, is_open)
    if gateway.mongo is not None:
        found[MONGO] = Entrance(gateway.mongo.door.connection, tls, is_open or not config.users)
    return found


def check_exposure(config: Config) -> None:
    """Refuse to listen on an address that other machines can reach while requests need no token."""
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


def check_access(config: Config) -> None:
    """Refuse keys and users that are none: at once, and not when it is the turn of a gateway that stood by."""
    Authenticator(config.auth, SystemClock())
    Users(config.users)


def _url(server: ServerConfig, port: int) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{'https' if server.tls_cert else 'http'}://{host}:{port}"


def _inner_listener(server: ServerConfig) -> socket.socket | None:
    """A door on loopback for our own pipeline, where the one for others has a certificate that the JVM would have to
    be taught, or an address that is not one to connect to. It asks for a token like the other."""
    if not server.tls_cert and is_loopback(server.host):
        return None
    return listen("127.0.0.1", 0)


def _write_settings(config: Config, data: Path, url: str, lineage: Lineage) -> Path:
    folder = data / "pipeline"
    folder.mkdir(exist_ok=True)
    settings = folder / "settings.json"
    settings.write_bytes(
        msgspec.json.encode(
            {
                "catalog_uri": config.catalog.uri or url,
                "listing_uri": url,
                "report_url": f"{url}/v1/pipeline/report",
                "checkpoints_url": f"{url}/v1/pipeline/checkpoints",
                "jobs_url": f"{url}/v1/pipeline/jobs",
                "load_from": load_places(config.pipeline.load_from, data),
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
    told = {TOKEN_VARIABLE: token, STORE_VARIABLE: store, SPARK_VARIABLE: spark}
    if config.catalog.uri:
        told[CATALOG_VARIABLE] = msgspec.json.encode(remote_properties(config.catalog)).decode()
    environment = child_environment(**told)
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
                timeout_graceful_shutdown=REQUESTS_S_MAX,
            )
        )
        self._data = data
        self._url = url
        self._up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()
        if self._data is None:
            return
        write_address(self._data, Address(pid=os.getpid(), url=self._url))
        print(f"mainstem listens on {self._url} (data in {self._data})", flush=True)
        print(f"  console  {self._url}/console", flush=True)
        print(f"  catalog  {self._url} (Iceberg REST), changes at {self._url.replace('http', 'ws', 1)}/ws", flush=True)

    async def once_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something from the moment on that connections can be served."""
        await self._up.wait()
        await work

    def protocol(self) -> asyncio.Protocol:
        """The server's end of a connection that did not come to its own sockets."""
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state={})
        return made

    @contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield
