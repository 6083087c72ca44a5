"""Warms Spark up before traffic needs it: the first batch through cold code takes seconds.

A few rows go the whole way, through the same writer, in a throw-away catalog of their own: nothing of it is ever seen
in the user's catalog.
"""

import atexit
import json
import shutil
import tempfile
from concurrent.futures import Executor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mainstem.model.names import TableName
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.pipeline.lake import Lake
from mainstem.pipeline.rowdelta import RowDeltaUpsert
from mainstem.pipeline.segments import FOOTER_KEY, FOOTER_VERSION, SegmentFolder
from mainstem.pipeline.tablewriter import TableWriter
from mainstem.tables.settings import DEFAULT_SETTINGS

WARM_CATALOG = "mainstem_warmup"
_TABLE = TableName("warm", "up")
_KEYS = 50


def warm_catalog() -> dict[str, str]:
    """The properties of the throw-away catalog. Its folder goes with the process."""
    folder = tempfile.mkdtemp(prefix="mainstem-warmup-")
    atexit.register(shutil.rmtree, folder, True)
    return {"type": "hadoop", "warehouse": folder}


def warm_up(spark: SparkSession, sql: DriverSql, side_jobs: Executor) -> None:
    """Write whole rows twice, the second time over the first ones, and then partial rows."""
    lake = Lake(spark, WARM_CATALOG)
    upsert = RowDeltaUpsert(sql, side_jobs)
    writer = TableWriter(lake, _TABLE, DEFAULT_SETTINGS, upsert=upsert, sql=sql, side_jobs=side_jobs)
    with tempfile.TemporaryDirectory(prefix="mainstem-warmup-") as folder:
        rows: list[dict[str, object]] = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, {"id": 3}]
        for number, row in enumerate(rows):
            _segment(Path(folder), number * _KEYS, row)
            writer.catch_up(SegmentFolder(Path(folder)).list())


def _segment(folder: Path, start: int, row: dict[str, object]) -> None:
    positions = list(range(start + 1, start + _KEYS + 1))
    types = {"id": ["int"], "note": ["string"]}
    footer = {
        "version": FOOTER_VERSION,
        "first": positions[0],
        "last": positions[-1],
        "tables": {
            str(_TABLE): {
                "first": positions[0],
                "last": positions[-1],
                "count": _KEYS,
                "hlc_min": positions[0],
                "hlc_max": positions[-1],
                "columns": {name: types[name] for name in row},
                "always": list(row),
            }
        },
    }
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
    path = folder / f"{positions[0]:020d}-{positions[-1]:020d}.parquet"
    pq.write_table(table.replace_schema_metadata({FOOTER_KEY: json.dumps(footer).encode()}), path)
