"""Warms Spark up before traffic needs it: the first batch through cold code takes seconds.

A few rows go the whole way, through the same writer, in a throw-away catalog of their own: nothing of it is ever seen
in the user's catalog.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mainstem.formats.segments import FOOTER_KEY, VERSION, Footer, TableFooter, segment_name
from mainstem.model.names import TableName
from mainstem.model.position import Lineage, LogPosition
from mainstem.pipeline.carrier import Carrier
from mainstem.pipeline.commit.iceberg import IcebergCommits
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.commit.places import PlaceFinder
from mainstem.pipeline.plan.iceberg import IcebergWriter
from mainstem.pipeline.progress import Progress
from mainstem.pipeline.source.segments import SegmentFolder
from mainstem.runtime.clock import SystemClock
from mainstem.tables.settings import DEFAULT_SETTINGS

WARM_CATALOG = "mainstem_warmup"
_TABLE = TableName("warm", "up")
_KEYS = 50


def warm_catalog() -> dict[str, str]:
    """The properties of the throw-away catalog. Its folder goes with the process."""
    folder = tempfile.mkdtemp(prefix="mainstem-warmup-")
    atexit.register(shutil.rmtree, folder, True)
    return {"type": "hadoop", "warehouse": folder}


def warm_up(spark: SparkSession) -> None:
    """Write whole rows twice, the second time over the first ones, and then partial rows."""
    lake = Lake(spark, WARM_CATALOG)
    finder, clock = PlaceFinder(), SystemClock()
    with tempfile.TemporaryDirectory(prefix="mainstem-warmup-") as folder:
        segments = SegmentFolder(Path(folder))
        carrier = Carrier(
            spark,
            segments,
            lambda name: IcebergWriter(lake, name, DEFAULT_SETTINGS, lineage=Lineage(), finder=finder, store={}),
            IcebergCommits(lake),
            Progress(clock),
            clock,
        )
        rows: list[dict[str, object]] = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, {"id": 3}]
        for number, row in enumerate(rows):
            _segment(Path(folder), number * _KEYS, row)
            carrier.carry(None, (), "warm-up")


def warm_workers(spark: SparkSession) -> None:
    """Start the Python workers of a cluster, with what they need loaded.

    Executors on other machines cannot see the throw-away folder; and the driver has nothing to write without them.
    """
    tasks = max(2, spark.sparkContext.defaultParallelism)
    spark.range(0, tasks, 1, tasks).mapInArrow(_as_they_are, "id long").toArrow()


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Of this module, so that a worker loads what this module does."""
    yield from batches


def _segment(folder: Path, start: int, row: dict[str, object]) -> None:
    positions = [LogPosition(number) for number in range(start + 1, start + _KEYS + 1)]
    types = {"id": ["int"], "note": ["string"]}
    first, last = positions[0], positions[-1]
    of_table = TableFooter(
        first=first,
        last=last,
        count=_KEYS,
        hlc_min=first,
        hlc_max=last,
        columns={name: types[name] for name in row},
        always=list(row),
        ordered=True,
    )
    footer = Footer(version=VERSION, first=first, last=last, tables={str(_TABLE): of_table})
    text = pa.array([json.dumps(row)] * _KEYS)
    none = pa.nulls(_KEYS, pa.string())
    numbers = pa.array(positions, pa.int64())
    table = pa.table(
        {
            "position": numbers,
            "hlc": numbers,
            "namespace": pa.array([_TABLE.namespace] * _KEYS),
            "table": pa.array([_TABLE.table] * _KEYS),
            "op": pa.array(["update"] * _KEYS),
            "key": pa.array([str(number) for number in range(_KEYS)]),
            "columns": text,
            "before": none,
            "source": pa.array(["warm-up"] * _KEYS),
            "batch_sequence": numbers,
            "sequence": numbers,
            "id": none,
            "source_time_ms": numbers,
            "arrival_ms": numbers,
            "metadata": none,
            "error": none,
        }
    )
    metadata = {FOOTER_KEY: msgspec.json.encode(footer)}
    pq.write_table(table.replace_schema_metadata(metadata), folder / segment_name(first, last))
