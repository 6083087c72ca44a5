"""The pipeline's way to the gateway, against a real HTTP server."""

import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mainstem.pipeline.channel import Channel


class Gateway(BaseHTTPRequestHandler):
    """Answers with what it was asked, but for two paths: one refuses, one breaks off."""

    protocol_version = "HTTP/1.1"
    heard: list[tuple[str, str, bytes, str | None]]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.heard.append((self.command, self.path, body, self.headers.get("Authorization")))
        if self.path.endswith("/denied"):
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"no" if self.path.endswith("/cut") else b"whole")
        self.close_connection = self.path.endswith("/cut")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, str, bytes, str | None]]]]:
    Gateway.heard = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/jobs/", Gateway.heard
        server.shutdown()


def test_it_asks_tells_and_brings(gateway: tuple[str, list[tuple[str, str, bytes, str | None]]]) -> None:
    url, heard = gateway
    channel = Channel(url, "secret")
    assert channel.get("?waitS=1", timeout_s=30) == b"whole"
    assert channel.post("/7", b"{}", timeout_s=30) == b"whole"
    channel.send("/7/rows", (b"a" * size for size in (1, 70_000, 3)), timeout_s=30)
    assert [(method, path) for method, path, _, _ in heard] == [
        ("GET", "/v1/jobs?waitS=1"),
        ("POST", "/v1/jobs/7"),
        ("POST", "/v1/jobs/7/rows"),
    ]
    assert [body for _, _, body, _ in heard] == [b"", b"{}", b"a" * 70_004]
    assert {token for _, _, _, token in heard} == {"Bearer secret"}


def test_without_a_token_it_names_none(gateway: tuple[str, list[tuple[str, str, bytes, str | None]]]) -> None:
    url, heard = gateway
    Channel(url, None).get(timeout_s=30)
    assert heard[0][3] is None


def test_all_that_goes_wrong_is_an_oserror(gateway: tuple[str, list[tuple[str, str, bytes, str | None]]]) -> None:
    url, _ = gateway
    channel = Channel(url, None)
    with pytest.raises(urllib.error.HTTPError) as refused:
        channel.get("/denied", timeout_s=30)
    assert refused.value.code == 403
    with pytest.raises(OSError, match="broke off"):
        channel.get("/cut", timeout_s=30)
    with pytest.raises(OSError, match="broke off"):
        channel.send("/cut", [b"a"], timeout_s=30)
    with pytest.raises(OSError, match="refused"):
        Channel("http://127.0.0.1:1/v1", None).get(timeout_s=30)


def test_what_is_brought_may_be_refused_too(gateway: tuple[str, list[tuple[str, str, bytes, str | None]]]) -> None:
    url, _ = gateway
    with pytest.raises(urllib.error.HTTPError, match="403"):
        Channel(url, None).send("/denied", [b"rows"], timeout_s=30)
