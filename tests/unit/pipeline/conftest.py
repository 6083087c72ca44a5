"""A Spark session for the whole run, a catalog per test, and segments written as the log's sealer writes them."""

import asyncio
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.formats.segments import segment_name
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.model import Change, Invalid, LogPosition, Operation, TableName
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.position import Lineage
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.commit.places import PlaceFinder
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.delta.writer import DeltaWriter
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.plan.writer import Writer
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.source.segments import Segment, SegmentFolder
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import DEFAULT_SETTINGS, Format, TableSettings

SERVED_CATALOG = "served"
# For tests that are to pass with any catalog of Iceberg's, and with ours over HTTP, which has transactions.
BOTH_CATALOGS = pytest.mark.parametrize("bench", ["hadoop", "served"], indirect=True)

_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("hlc", pa.int64()),
        ("namespace", pa.string()),
        ("table", pa.string()),
        ("op", pa.string()),
        ("key", pa.string()),
        ("columns", pa.string()),
        ("before", pa.string()),
        ("source", pa.string()),
        ("batch_sequence", pa.int64()),
        ("sequence", pa.int64()),
        ("id", pa.string()),
        ("source_time_ms", pa.int64()),
        ("arrival_ms", pa.int64()),
        ("metadata", pa.string()),
        ("error", pa.string()),
    ]
)


def json_type(value: Any) -> str:
    """The name that a footer has for a value's type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= 2**53 else "long" if -(2**63) <= value < 2**63 else "big"
    names = {type(None): "null", bool: "bool", float: "double", str: "string", dict: "object"}
    return names.get(type(value), "array")


def write_segment(
    folder: Path, changes: Sequence[Change], errors: dict[int, str] | None = None, *, more: bool = False
) -> Path:
    """Write stamped and placed changes as one sealed segment. `errors` gives reasons by position."""
    errors = errors or {}
    rows: list[dict[str, Any]] = []
    tables: dict[str, dict[str, Any]] = {}
    for change in changes:
        assert change.position is not None and change.hlc is not None
        error = errors.get(change.position)
        rows.append(
            {
                "position": change.position,
                "hlc": change.hlc,
                "namespace": change.namespace,
                "table": change.table,
                "op": str(change.operation),
                "key": change.key,
                "columns": None if change.columns is None else json.dumps(change.columns, ensure_ascii=False),
                "before": None if change.before is None else json.dumps(change.before),
                "source": change.source,
                "batch_sequence": change.batch_sequence,
                "sequence": change.sequence,
                "id": change.id,
                "source_time_ms": change.source_time_ms,
                "arrival_ms": 1_700_000_000_000 + change.position,
                "metadata": None if change.metadata is None else json.dumps(change.metadata),
                "error": error,
            }
        )
        _count(tables.setdefault(f"{change.namespace}.{change.table}", _nothing()), change, error)
    for table in tables.values():
        table["columns"] = {name: sorted(types) for name, types in table["columns"].items()}
        table["always"] = sorted(table["always"] or ())
    rows.sort(key=lambda row: (row["namespace"], row["table"], row["position"]))
    first, last = min(row["position"] for row in rows), max(row["position"] for row in rows)
    footer = {"version": 1, "first": first, "last": last, "tables": tables, "more": more}
    schema = _SCHEMA.with_metadata({b"mainstem": json.dumps(footer).encode()})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first:020d}-{last:020d}.parquet"
    # A segment appears at once, under its name.
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path.with_suffix(".tmp"), compression="zstd")
    path.with_suffix(".tmp").rename(path)
    return path


def _nothing() -> dict[str, Any]:
    return {
        "first": None, "last": 0, "count": 0, "errors": 0, "deletes": 0,
        "hlc_min": None, "hlc_max": None, "columns": {}, "always": None, "ordered": True,
    }  # fmt: skip


def _count(table: dict[str, Any], change: Change, error: str | None) -> None:
    assert change.hlc is not None
    table["first"] = change.position if table["first"] is None else table["first"]
    table["last"] = change.position
    table["count"] += 1
    table["errors"] += error is not None
    table["ordered"] = table["ordered"] and (table["hlc_max"] is None or change.hlc > table["hlc_max"])
    table["hlc_min"] = min(change.hlc, table["hlc_min"] or change.hlc)
    table["hlc_max"] = max(change.hlc, table["hlc_max"] or change.hlc)
    if error is not None:
        return
    if change.operation is Operation.DELETE:
        table["deletes"] += 1
        return
    columns = change.columns or {}
    for name, value in columns.items():
        table["columns"].setdefault(name, set()).add(json_type(value))
    table["always"] = set(columns) if table["always"] is None else table["always"] & set(columns)


PLAIN_ROW = {"n": 0, "price": 1.5, "text": "t", "ok": True, "doc": {"x": [1]}}


def sealed_events(folder: Path, namespace: str, first: int, tables: list[str]) -> Path:
    """A segment as the sealer writes it: one batch per name, 60,000 rows each."""
    builder = SegmentBuilder()
    count = 60_000
    for batch, table in enumerate(tables):
        events = [
            {
                "table": f"{namespace}.{table}", "operation": "UPDATE", "rowId": f"k{number}", "sequence": number,
                "timestamp": 1_700_000_000_000 + number if number else 10**18, "after": PLAIN_ROW | {"n": number},
            }
            for number in range(count)
        ]  # fmt: skip
        header = BatchHeader(
            first=LogPosition(first + batch * count),
            count=count,
            hlc_first=Hlc(first + batch * count),
            arrival_ms=1_700_000_000_500,
            source=SourceId("s"),
            sequence=batch + 1,
            fingerprint=0,
            encoding=Encoding.CDC_JSON,
        )
        builder.add(header, msgspec.json.encode(events), "here")
    folder.mkdir(exist_ok=True)
    path = folder / segment_name(LogPosition(first), LogPosition(first + len(tables) * count - 1))
    builder.write(path)
    return path


class Log:
    """A folder of segments, filled change by change. Needs no Spark."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.position = 0

    def name(self, table: str) -> TableName:
        """A table of this test's own namespace."""
        return TableName(self.namespace, table)

    def change(self, key: str, columns: dict[str, Any] | None, **more: Any) -> Change:
        """The next change of the log. Without columns it is a delete."""
        self.position += 1
        operation = Operation.DELETE if columns is None else Operation.UPDATE
        values = {"table": "orders", "operation": operation, "source": "s1", "batch_sequence": 1} | more
        values = {"hlc": self.position * 10, **values}
        return Change(namespace=self.namespace, key=key, columns=columns, position=self.position, **values)  # type: ignore[arg-type]

    def seal(self, *changes: Change, errors: dict[int, str] | None = None, more: bool = False) -> Path:
        """Seal changes into a segment."""
        return write_segment(self.folder, changes, errors, more=more)


class Bench(Log):
    """One namespace of the lake, a folder of segments, and a pipeline between them."""

    def __init__(self, spark: SparkSession, folder: Path, namespace: str, catalog: str = "lake") -> None:
        super().__init__(folder, namespace)
        self.spark = spark
        self.lake = Lake(spark, catalog)
        self.clock = SystemClock()
        self.progress = Progress(self.clock)
        self.finder = PlaceFinder()
        self.lineage = Lineage()
        self.settings: dict[TableName, TableSettings] = {}
        # The tables that are carried; None: all.
        self.asked_for: set[TableName] | None = None
        self.commits: IcebergCommits = IcebergCommits(self.lake)
        # Where tables in Delta go.
        self.delta: DeltaLake | None = None
        # How executors reach the store.
        self.store: dict[str, str] = {}

    def segments(self) -> tuple[Segment, ...]:
        """What is sealed."""
        return SegmentFolder(self.folder).list()

    def writer(self, name: TableName) -> Writer:
        """A writer, as if the process had just started."""
        if self.asked_for is not None and name not in self.asked_for:
            raise Invalid(f"not asked for. table={name}")
        settings = self.settings.get(name, DEFAULT_SETTINGS)
        if settings.format is Format.DELTA:
            assert self.delta is not None
            return DeltaWriter(self.delta, self.spark, name, settings, lineage=self.lineage, finder=self.finder)
        return IcebergWriter(self.lake, name, settings, lineage=self.lineage, finder=self.finder, store=self.store)

    def carrier(self, **more: Any) -> Carrier:
        """A pipeline, as if the process had just started."""
        self.progress = Progress(self.clock)
        folder = SegmentFolder(self.folder)
        return Carrier(
            self.spark, folder, self.writer, self.commits, self.progress, self.clock, store=self.store, **more
        )

    def catch_up(self, table: str = "orders", settings: TableSettings = DEFAULT_SETTINGS, **more: Any) -> int:
        """Carry every segment into a table; returns what it covers then. Raises where it fails."""
        name = self.name(table)
        self.settings[name] = settings
        self.asked_for = {name}
        self.carrier(**more).carry(None, (), "test")
        failure = self.progress.report({}).tables[str(name)].error
        if failure is not None:
            raise AssertionError(failure)
        return self.progress.covered(name)

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """The table as a reader sees it, by key."""
        found = self.spark.table(self.lake.identifier(self.name(table))).collect()
        return sorted((row.asDict() for row in found), key=lambda row: (row["_key"], row["_position"]))

    def values(self, table: str = "orders") -> dict[str, dict[str, Any]]:
        """The rows' own columns, by key."""
        own = {"_key", "_hlc", "_source", "_position", "_clocks"}
        rows = self.rows(table)
        assert len({row["_key"] for row in rows}) == len(rows), "a key stands twice"
        return {row["_key"]: {name: row[name] for name in row if name not in own} for row in rows}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log without a lake."""
    return Log(tmp_path / "segments", "default")


@pytest.fixture(scope="session")
def catalog_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real catalog over HTTP. Tests keep apart by their namespaces."""
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    server = ServerProcess(tmp_path_factory.mktemp("served"), config)
    asyncio.run(server.start())
    yield server.url
    asyncio.run(server.stop())


@pytest.fixture(scope="session")
def served_catalog(spark: SparkSession, catalog_url: str) -> str:
    """The same, made known to the session."""
    name = f"spark.sql.catalog.{SERVED_CATALOG}"
    spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
    # Not everyone who commits is known to Spark, so it keeps nothing.
    for key, value in {"type": "rest", "uri": catalog_url, "warehouse": "lake", "cache-enabled": "false"}.items():
        spark.conf.set(f"{name}.{key}", value)
    return catalog_url


def _namespace(request: pytest.FixtureRequest) -> str:
    """A test's own: its name may be too long to tell its parameters apart."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name.lower())
    return f"n_{name[:60]}_{zlib.crc32(request.node.name.encode()):08x}"


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """Everything a test of the pipeline needs, in a namespace of its own."""
    catalog = "lake"
    if getattr(request, "param", "hadoop") == "served":
        request.getfixturevalue("served_catalog")
        catalog = SERVED_CATALOG
    return Bench(spark, tmp_path / "segments", _namespace(request), catalog)
