"""A Spark session for the whole run, a catalog per test, and segments written as the log's sealer writes them."""

import asyncio
import json
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.log.segments import SegmentBuilder, segment_name
from mainstem.model import Change, LogPosition, Operation, TableName
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.hlc import Hlc
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.driverpass import DriverPass
from mainstem.pipeline.lake import Lake
from mainstem.pipeline.quickcatalog import QuickCatalog
from mainstem.pipeline.quickcommit import QuickCommits
from mainstem.pipeline.rowdelta import RowDeltaUpsert
from mainstem.pipeline.segments import Segment, SegmentFolder
from mainstem.pipeline.session import join_session
from mainstem.pipeline.tablewriter import TableWriter
from mainstem.pipeline.upsert import BranchUpsert, Upsert
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import DEFAULT_SETTINGS, TableSettings

SERVED_CATALOG = "served"
# For tests that are to pass by Spark alone, and with passes on the driver, as a pipeline is served.
BOTH_WAYS = pytest.mark.parametrize("bench", ["spark", "driver"], indirect=True)

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
        "hlc_min": None, "hlc_max": None, "columns": {}, "always": None,
    }  # fmt: skip


def _count(table: dict[str, Any], change: Change, error: str | None) -> None:
    assert change.hlc is not None
    table["first"] = change.position if table["first"] is None else table["first"]
    table["last"] = change.position
    table["count"] += 1
    table["errors"] += error is not None
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


@pytest.fixture(scope="session")
def side_jobs(spark: SparkSession) -> Iterator[ThreadPoolExecutor]:
    """Where histories are written."""
    with ThreadPoolExecutor(2, "side", join_session, (spark,)) as executor:
        yield executor


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
    """One namespace of the lake, a folder of segments, and writers between them."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        namespace: str,
        side_jobs: ThreadPoolExecutor,
        catalog_url: str | None = None,
    ) -> None:
        super().__init__(folder, namespace)
        self.spark = spark
        self.catalog = "lake" if catalog_url is None else SERVED_CATALOG
        self.lake = Lake(spark, self.catalog)
        self.side_jobs = side_jobs
        self._sql = DriverSql()
        self.row_delta = RowDeltaUpsert(self._sql, side_jobs)
        self._catalog_url = catalog_url

    def segments(self) -> tuple[Segment, ...]:
        """What is sealed."""
        return SegmentFolder(self.folder).list()

    def writer(
        self,
        table: str = "orders",
        settings: TableSettings = DEFAULT_SETTINGS,
        upsert: Upsert | None = None,
        side_jobs: Executor | None = None,
    ) -> TableWriter:
        """A writer, as if the process had just started."""
        default: Upsert = BranchUpsert() if settings.format_version == 3 else self.row_delta
        # Whoever asks for a way to upsert means that way.
        driver = None if upsert is not None or settings.format_version == 3 else self.driver()
        return TableWriter(
            self.lake,
            self.name(table),
            settings,
            upsert=upsert or default,
            sql=self._sql,
            side_jobs=side_jobs or self.side_jobs,
            driver=driver,
        )

    def driver(self) -> DriverPass | None:
        """The way without Spark jobs, as if the process had just started; None where the catalog is not served."""
        if self._catalog_url is None:
            return None
        catalog = QuickCatalog(self._catalog_url, "lake", {})
        return DriverPass(self._sql, catalog, QuickCommits(catalog, SystemClock()), self.side_jobs, 4_000_000)

    def catch_up(self, table: str = "orders", **more: Any) -> int:
        """Carry every segment into a table."""
        return self.writer(table, **more).catch_up(self.segments())

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """The table as a reader sees it, by key."""
        # Whatever was committed in another session.
        self.lake.load(self.name(table))
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
def bench(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    side_jobs: ThreadPoolExecutor,
) -> Bench:
    """Everything a test of the pipeline needs, in a namespace of its own; by Spark alone, unless `BOTH_WAYS` asks."""
    url = request.getfixturevalue("served_catalog") if getattr(request, "param", "spark") == "driver" else None
    return Bench(spark, tmp_path / "segments", _namespace(request), side_jobs, url)
