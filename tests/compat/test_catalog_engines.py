"""Spark, pyiceberg and DuckDB on the same tables, in every order, on the local disk and on S3.

The first engine creates a table and writes to it; each of the others then adds a column, writes rows that have it, and
deletes rows of those before. After each step all three read, and must find what the model says.
"""

from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from tests.compat.catalog_server import Server
from tests.harness.seaweed import S3Server

pytestmark = pytest.mark.spark

NAMESPACE = "shared"
ROWS_EACH = 20
Row = dict[str, Any]


class Engine(Protocol):
    """What each of them can do."""

    def create(self, table: str) -> None: ...
    def add_column(self, table: str, column: str) -> None: ...
    def write(self, table: str, columns: list[str], rows: list[Row]) -> None: ...
    def delete(self, table: str, first: int, end: int) -> None: ...
    def read(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]: ...


class WithSql:
    """Spark and DuckDB: the same statements but for the names of types."""

    def __init__(self, lake: str, run: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self._lake = lake
        self._run = run

    def create(self, table: str) -> None:
        self._run(f"CREATE TABLE {self._name(table)} (id BIGINT, note {self._text})")

    def add_column(self, table: str, column: str) -> None:
        self._run(f"ALTER TABLE {self._name(table)} ADD COLUMN {column} BIGINT")

    def write(self, table: str, columns: list[str], rows: list[Row]) -> None:
        values = ", ".join("(" + ", ".join(_literal(row.get(name)) for name in columns) + ")" for row in rows)
        self._run(f"INSERT INTO {self._name(table)} ({', '.join(columns)}) VALUES {values}")

    def delete(self, table: str, first: int, end: int) -> None:
        self._run(f"DELETE FROM {self._name(table)} WHERE id >= {first} AND id < {end}")

    def read(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
        return self._run(f"SELECT {', '.join(columns)} FROM {self._name(table)} ORDER BY id")

    def _name(self, table: str) -> str:
        return f"{self._lake}.{NAMESPACE}.{table}"

    @property
    def _text(self) -> str:
        raise NotImplementedError


class WithSpark(WithSql):
    _text = "STRING"


class WithDuckDb(WithSql):
    _text = "VARCHAR"


class WithPyiceberg:
    """Arrow in, Arrow out."""

    def __init__(self, server: Server) -> None:
        self._catalog = server.pyiceberg()

    def create(self, table: str) -> None:
        self._catalog.create_table((NAMESPACE, table), pa.schema([("id", pa.int64()), ("note", pa.string())]))

    def add_column(self, table: str, column: str) -> None:
        with self._load(table).update_schema() as update:
            update.add_column(column, LongType())

    def write(self, table: str, columns: list[str], rows: list[Row]) -> None:
        found = self._load(table)
        schema = found.schema().as_arrow()
        found.append(pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows], schema=schema))

    def delete(self, table: str, first: int, end: int) -> None:
        self._load(table).delete(f"id >= {first} and id < {end}")

    def read(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
        rows = self._load(table).scan(selected_fields=tuple(columns)).to_arrow().sort_by("id").to_pylist()
        return [tuple(row[name] for name in columns) for row in rows]

    def _load(self, table: str) -> Any:
        return self._catalog.load_table((NAMESPACE, table))


def _literal(value: object) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


@pytest.fixture(scope="module", params=["disk", "s3"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[dict[str, Engine]]:
    folder: Path = tmp_path_factory.mktemp("engines")
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        warehouse, io = f"{s3.make_bucket('engines')}/lake", s3.io()
    else:
        warehouse, io = str(folder / "warehouse"), {}
    with Server(folder, warehouse, io) as server:
        server.pyiceberg().create_namespace(NAMESPACE)
        duck = server.duckdb()
        yield {
            "spark": WithSpark(*_spark(spark, f"engines_{request.param}", server.url, is_s3=bool(io))),
            "pyiceberg": WithPyiceberg(server),
            "duckdb": WithDuckDb("lake", lambda sql: _duck(duck, sql)),
        }
        duck.close()


def _spark(
    spark: SparkSession, lake: str, url: str, *, is_s3: bool
) -> tuple[str, Callable[[str], list[tuple[Any, ...]]]]:
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": url,
        # Another engine changes the tables in between.
        ".cache-enabled": "false",
    }
    if is_s3:
        settings[".io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        settings[".header.X-Iceberg-Access-Delegation"] = "vended-credentials"
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{lake}{name}", value)
    return lake, lambda sql: [tuple(row) for row in spark.sql(sql).collect()]


def _duck(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return found


@pytest.mark.parametrize("order", list(permutations(("spark", "pyiceberg", "duckdb"))), ids="-".join)
def test_each_engine_changes_what_the_others_made(engines: dict[str, Engine], order: tuple[str, ...]) -> None:
    table = "_".join(("t", *order))
    columns, model = ["id", "note"], dict[int, Row]()
    for turn, name in enumerate(order):
        engine, first = engines[name], turn * ROWS_EACH
        if turn == 0:
            engine.create(table)
        else:
            columns.append(f"by_{name}")
            engine.add_column(table, columns[-1])
        rows: list[Row] = [
            {"id": n, "note": f"{name} {n}"} | dict.fromkeys(columns[2:], n) for n in range(first, first + ROWS_EACH)
        ]
        engine.write(table, columns, rows)
        model |= {row["id"]: row for row in rows}
        if turn:
            # Half of what the engine before wrote, so that each finds files with rows that are gone.
            gone = range(first - ROWS_EACH, first - ROWS_EACH // 2)
            engine.delete(table, gone.start, gone.stop)
            for number in gone:
                del model[number]
        expected = [tuple(model[number].get(column) for column in columns) for number in sorted(model)]
        for reader, other in engines.items():
            assert other.read(table, columns) == expected, f"{reader} after {name}"
