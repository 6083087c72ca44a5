"""The ports of a gateway's doors: bound while it stands by already, so that a connection can come to any gateway."""

import asyncio
import errno
import ipaddress
import socket

from mainstem.app.config import Config
from mainstem.model import Invalid

LISTEN_BACKLOG = 2048
_LISTEN_POLL_S = 0.02
HTTP, KAFKA, MONGO = "http", "kafka", "mongo"


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens. Raises Invalid, which says what to choose instead."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        why = f"cannot listen on {host}:{port}: {error.strerror}. Choose another with {option}."
        raise Taken(why) if error.errno == errno.EADDRINUSE else Invalid(why) from error
    listener.setblocking(False)
    return listener


class Taken(Invalid):
    """Another process has the port."""


async def listen_soon(host: str, port: int, option: str, patience_s: float) -> socket.socket:
    """The same, also where another process is about to leave the port."""
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            return listen(host, port, option)
        except Taken:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise
        await asyncio.sleep(_LISTEN_POLL_S)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Doors:
    """The sockets by the names of their doors. They live as long as the process; their owners change."""

    def __init__(self, config: Config) -> None:
        self._host = config.server.host
        self._wanted = {HTTP: (config.server.port, "--port")}
        if config.kafka.enabled:
            self._wanted[KAFKA] = (config.kafka.port, "--kafka-port")
        if config.mongo.is_on:
            self._wanted[MONGO] = (config.mongo.port, "--mongo-port")
        self.listeners: dict[str, socket.socket] = {}

    def open(self) -> None:
        """Bind what is not bound yet. Raises Invalid at the first that cannot be."""
        for name, (port, option) in self._wanted.items():
            if name not in self.listeners:
                self.listeners[name] = listen(self._host, port, option)

    async def open_soon(self, patience_s: float) -> None:
        """The same, also where the gateway that led before is still about to leave the same address."""
        for name, (port, option) in self._wanted.items():
            if name not in self.listeners:
                self.listeners[name] = await listen_soon(self._host, port, option, patience_s)
