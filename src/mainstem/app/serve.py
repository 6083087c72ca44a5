"""`mainstem serve`: the gateway on a socket, the pipeline beside it, and a clean end to both."""

import asyncio
import gc
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

from mainstem.app.address import ADDRESS_FILE, Address, write_address
from mainstem.app.config import Config
from mainstem.app.gateway import Gateway
from mainstem.app.supervisor import Supervisor
from mainstem.doors.ws import FRAME_BYTES_MAX
from mainstem.model import Invalid
from mainstem.runtime.clock import SystemClock

logger = logging.getLogger(__name__)

LISTEN_BACKLOG = 2048
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(config: Config, data: Path) -> int:
    """Run until a signal says stop. The process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if config.server.host not in LOOPBACK:
        raise Invalid(
            f"there is no authentication yet, so the server only listens on loopback. got={config.server.host}"
        )
    data.mkdir(parents=True, exist_ok=True)
    uvloop.run(_serve(config, data.absolute()))
    return 0


async def _serve(config: Config, data: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    listener = _listen(config.server.host, config.server.port)
    gateway = await Gateway.open(config, data)
    url = f"http://{config.server.host}:{listener.getsockname()[1]}"
    server = _Server(gateway, data, url)
    pipeline = _supervise(config, data, url) if config.pipeline.enabled else None
    # What is there now lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        maintaining = tasks.create_task(gateway.maintain())
        if pipeline is not None:
            gateway.child = pipeline.status
            tasks.create_task(pipeline.run())
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        logger.info("stopping")
        maintaining.cancel()
        # The pipeline commits through us: it finishes what it has in hand before the door shuts.
        if pipeline is not None:
            await pipeline.stop()
        await gateway.close()
        server.should_exit = True
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


def _supervise(config: Config, data: Path, url: str) -> Supervisor:
    folder = data / "pipeline"
    folder.mkdir(exist_ok=True)
    settings = folder / "settings.json"
    settings.write_bytes(
        msgspec.json.encode(
            {
                "catalog_uri": url,
                "report_url": f"{url}/v1/pipeline/report",
                "checkpoints_url": f"{url}/v1/pipeline/checkpoints",
                "segments_dir": str(data / "log" / "segments"),
                "checkpoint_dir": str(folder / "checkpoint"),
                "master": config.pipeline.master,
                "driver_memory": config.pipeline.driver_memory,
                "trigger_s": config.pipeline.trigger_s,
                "parallel_tables": config.pipeline.parallel_tables,
                "tables": config.tables,
            }
        )
    )
    command = [sys.executable, "-m", "mainstem.app.pipeline", str(settings)]
    return Supervisor(command, log_path=folder / "pipeline.log", clock=SystemClock())


class _Server(uvicorn.Server):
    """uvicorn, told by us when to stop, and telling others where it listens."""

    def __init__(self, gateway: Gateway, data: Path, url: str) -> None:
        super().__init__(
            uvicorn.Config(
                gateway.asgi(),
                lifespan="off",
                ws="websockets-sansio",
                ws_max_size=FRAME_BYTES_MAX,
                ws_per_message_deflate=False,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._data = data
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        write_address(self._data, Address(pid=os.getpid(), url=self._url))
        print(f"mainstem listens on {self._url} (data in {self._data})", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield
