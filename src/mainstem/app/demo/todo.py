"""`make todo`: the real server and the todo app's page beside it, until Ctrl-C.

    python -m mainstem.app.demo.todo --page clients/typescript/apps/todo/dist

The page is plain files on a port of its own: an application is served by its own server, and syncs across origins.
"""

import argparse
import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess

HOST = "127.0.0.1"
FLUSH_INTERVAL_S = 2.0
QUERY = '{"sql": "SELECT title, done FROM todos.todos"}'


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print no line per request."""

    def end_headers(self) -> None:
        # The page's own service worker keeps copies; the browser's cache would hide a new build.
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


@contextlib.contextmanager
def page_server(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder on loopback; its address."""
    server = ThreadingHTTPServer((HOST, port), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def page_address(page: str, server: str, gateway: str = "todos") -> str:
    """The page's address with the server that it is to sync with."""
    return f"{page}/?server={quote(server, safe='')}&gateway={quote(gateway, safe='')}"


async def run(page_folder: Path, data: Path, port: int, page_port: int) -> None:
    """Both, until a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    config = Config(server=ServerConfig(host=HOST, port=port), log=LogConfig(flush_interval_s=FLUSH_INTERVAL_S))
    with page_server(page_folder, page_port) as page:
        async with ServerProcess(data, config) as server:
            print(f"Todo app: {page_address(page, server.url)}")
            print(f"Server:   {server.url} (data in {data})")
            print("Open the page in two windows, go offline in one, edit in both. The list is the table todos.todos:")
            print(f"  curl {server.url}/v1/query --json '{QUERY}'")
            print("Ctrl-C stops both.", flush=True)
            await stop.wait()
            print("Stopping: the pipeline finishes what it has in hand.", flush=True)


def main() -> None:
    """Read the words and run."""
    parser = argparse.ArgumentParser(description="The todo app on a real server.")
    parser.add_argument("--page", type=Path, required=True, help="the built page")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the server keeps everything")
    parser.add_argument("--port", type=int, default=8181, help="of the server; 0 picks a free one")
    parser.add_argument("--page-port", type=int, default=8182, help="of the page; 0 picks a free one")
    words = parser.parse_args()
    asyncio.run(run(words.page, words.data.absolute(), words.port, words.page_port))


if __name__ == "__main__":
    main()
