"""The way from the pipeline to the gateway. The pipeline always asks; the gateway never connects to it."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable


class Channel:
    """HTTP to one address of the gateway and what is below it. Safe to use from several threads.

    Every method raises OSError where the gateway is away or the answer breaks off; `urllib.error.HTTPError`, which is
    one, where the gateway refuses.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str = "", *, timeout_s: float) -> bytes:
        """Ask for something."""
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: bytes, *, timeout_s: float) -> bytes:
        """Tell something in JSON."""
        return self._ask("POST", path, body, timeout_s)

    def send(self, path: str, frames: Iterable[bytes], *, timeout_s: float) -> None:
        """Bring something that is made while it is sent."""
        parts = urllib.parse.urlsplit(self._url + path)
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.netloc, timeout=timeout_s)
        try:
            headers = {**self._headers, "Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
            connection.request("POST", parts.path, frames, headers, encode_chunked=True)
            answer = connection.getresponse()
            answer.read()
            if answer.status >= http.client.BAD_REQUEST:
                raise urllib.error.HTTPError(self._url + path, answer.status, answer.reason, answer.headers, None)
        except http.client.HTTPException as error:
            raise _broken_off(error) from error
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(self._url + path, body, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                content: bytes = answer.read()
                return content
        except http.client.HTTPException as error:
            raise _broken_off(error) from error


def _broken_off(error: http.client.HTTPException) -> ConnectionError:
    return ConnectionError(f"the gateway's answer broke off. got={error!r}")
