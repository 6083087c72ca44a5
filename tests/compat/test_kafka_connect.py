"""Kafka Connect with Debezium's PostgreSQL connector, both unmodified: a database's rows are a table of the lake."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.process import reserve_port
from tests.compat.downloads import Artifact
from tests.compat.kafka_jars import KAFKA, KAFKA_VERSION, jars_of, java
from tests.compat.kafka_postgres import Postgres, logical_postgres
from tests.harness.kafka import KafkaServer, eventually

DEBEZIUM_VERSION = "3.4.0.Final"
CONNECT = (
    *(Artifact(KAFKA, name, KAFKA_VERSION, is_whole=True) for name in ("connect-runtime", "connect-json")),
    Artifact("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION, is_whole=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with logical_postgres() as started:
        yield started


def write_settings(path: Path, settings: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def worker(folder: Path, server: KafkaServer, port: int) -> str:
    """As Kafka's own connect-standalone.properties has it."""
    converter = "org.apache.kafka.connect.json.JsonConverter"
    settings: dict[str, object] = {
        "bootstrap.servers": server.bootstrap,
        "key.converter": converter,
        "value.converter": converter,
        "offset.storage.file.filename": folder / "connect.offsets",
        "offset.flush.interval.ms": 1000,
        "listeners": f"http://127.0.0.1:{port}",
    }
    return write_settings(folder / "worker.properties", settings)


def connector(folder: Path, postgres: Postgres) -> str:
    """A connector as people have it; what is Mainstem's is the setting of its topics alone."""
    settings: dict[str, object] = {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": postgres.port,
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "table.include.list": "public.customers",
        "publication.autocreate.mode": "filtered",
        "topic.creation.default.partitions": 1,
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.value.mode": "debezium",
    }
    return write_settings(folder / "connector.properties", settings)


@pytest.mark.spark
async def test_debezium_fills_a_table_and_it_follows_updates_and_deletes(
    kafka_lake: KafkaServer, postgres: Postgres, tmp_path: Path
) -> None:
    postgres.do(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, score double precision, active boolean)",
        "ALTER TABLE customers REPLICA IDENTITY FULL",
        "INSERT INTO customers VALUES (1, 'ada', 1.5, true), (2, 'bob', NULL, false), (3, 'cyd', 3, true)",
    )
    jars = jars_of(f"kafka-connect-{KAFKA_VERSION}-debezium-{DEBEZIUM_VERSION}", *CONNECT)
    log = tmp_path / "connect.log"
    with closing(reserve_port("127.0.0.1")) as place:
        port = place.getsockname()[1]
        words = (worker(tmp_path, kafka_lake, port), connector(tmp_path, postgres))
        with java([jars], MAIN, *words, log=log):
            snapshot = [[1, "ada", 1.5, True], [2, "bob", None, False], [3, "cyd", 3.0, True]]
            await until(kafka_lake, snapshot, log)
            postgres.do(
                "UPDATE customers SET name = 'Ada', score = 2 WHERE id = 1",
                "DELETE FROM customers WHERE id = 2",
                "INSERT INTO customers VALUES (4, 'dee', 4, false)",
            )
            changed = [[1, "Ada", 2.0, True], [3, "cyd", 3.0, True], [4, "dee", 4.0, False]]
            await until(kafka_lake, changed, log)


async def until(server: KafkaServer, wanted: list[Any], log: Path) -> None:
    """Ask DuckDB until the table is as wanted."""
    last: Any = None

    def ask() -> bool:
        nonlocal last
        sql = "SELECT id, name, score, active FROM kafka.shop_public_customers ORDER BY id"
        last = httpx.post(f"{server.url}/v1/query", json={"sql": sql}, timeout=60).json()
        return bool(last.get("rows") == wanted)

    try:
        await eventually(ask, 120)
    except TimeoutError:
        said = await asyncio.to_thread(log.read_text)
        raise AssertionError(f"{last}\n{said[-3000:]}") from None
