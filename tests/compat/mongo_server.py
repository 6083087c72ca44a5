"""A server with the Mongo door, for the clients of these tests."""

import socket
from pathlib import Path
from typing import Any

import pymongo

from mainstem.admission.users import UserSettings
from mainstem.app.config import Config, LogConfig, MongoConfig, PipelineConfig, QueryConfig, ServerConfig
from mainstem.app.process import ServerProcess

Client = pymongo.MongoClient[dict[str, Any]]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


class MongoServer(ServerProcess):
    """`mainstem serve` with a Mongo port."""

    def __init__(
        self,
        data: Path,
        *,
        pipeline: bool = False,
        users: dict[str, UserSettings] | None = None,
        tls: tuple[str, str] = ("", ""),
        query: QueryConfig | None = None,
        spark: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        config = Config(
            server=ServerConfig(port=0, tls_cert=tls[0], tls_key=tls[1]),
            log=LogConfig(flush_interval_s=1.0),
            pipeline=PipelineConfig(enabled=pipeline, spark=spark or {}),
            mongo=MongoConfig(port=self.port, ttl_interval_s=0.5),
            users=users or {},
            query=query or QueryConfig(),
        )
        super().__init__(data, config)

    def client(self, **options: Any) -> Client:
        """A client of pymongo's."""
        return pymongo.MongoClient(self.mongo_url, **options)

    @property
    def mongo_url(self) -> str:
        """Where Mongo clients connect."""
        return f"mongodb://127.0.0.1:{self.port}/?serverSelectionTimeoutMS=20000"
