"""The catalog's door on a real socket, in this process: what tests with real clients share."""

import socket
import threading
from pathlib import Path

import duckdb
import httpx
import uvicorn
from duckdb_extensions import import_extension
from litestar import Litestar
from pyiceberg.catalog.rest import RestCatalog

from mainstem.catalog import Catalog, Committed, SqliteStore
from mainstem.catalog.access.clients import Access
from mainstem.catalog.files import RoutedFiles
from mainstem.doors.catalog.door import CatalogDoor, catalog_router


class Server:
    """The catalog's door on a free port, and what its listener heard."""

    def __init__(self, data: Path, warehouse: str, io: dict[str, str] | None = None) -> None:
        self.heard: list[Committed] = []
        self.catalog = Catalog(
            store=SqliteStore(data / "catalog" / "catalog.db"),
            warehouse=warehouse,
            files=RoutedFiles(io),
            # Clients are given what they need to reach an object store; on the local disk they need nothing.
            access=Access(io, vend_credentials=True),
        )
        self.catalog.on_commit(self.heard.append)
        config = uvicorn.Config(
            Litestar([catalog_router(CatalogDoor(self.catalog))]), log_level="warning", lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        # The socket listens already: a request waits in its backlog until the server is up.
        httpx.get(f"{self.url}/v1/config", timeout=30).raise_for_status()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self.catalog.close()

    def pyiceberg(self) -> RestCatalog:
        return RestCatalog("lake", uri=self.url, warehouse="lake")

    def duckdb(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        for extension in ("avro", "httpfs", "iceberg"):
            import_extension(extension, con=connection)
        connection.execute("LOAD iceberg")
        connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{self.url}', AUTHORIZATION_TYPE 'none')")
        return connection
