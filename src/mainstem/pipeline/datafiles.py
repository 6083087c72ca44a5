"""Data files of Iceberg tables, written by DuckDB on the driver: a query in, a file with Iceberg's field ids out.

Only for tables whose files are on this machine, and whose rows need no partition. What is written here is no part of
the table yet: a commit makes it so. A file that no commit took is an orphan like any other writer's.
"""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.pipeline.driver_sql import DriverSql, local_path, name_of, text_of
from mainstem.pipeline.lake import LakeTable

# As Iceberg's own writer: a batch is read again soon, and higher levels save little.
_COMPRESSION = "COMPRESSION zstd, COMPRESSION_LEVEL 1"
# Values that hardly repeat are given up on early; the dictionary of a column that does is smaller than this.
_DICTIONARY_VALUES_MAX = 10_000


def takes_files(table: LakeTable) -> bool:
    """Whether files for this table can be written here."""
    return table.java.spec().isUnpartitioned() and local_path(str(table.java.location())) is not None


def write_file(sql: DriverSql, table: LakeTable, query: str, tables: Mapping[str, pa.Table] | None = None) -> Any:
    """Write a query's rows, whose columns are the table's, as one data file; None where there are none.

    `tables` are Arrow tables that the query names.
    """
    location = str(table.java.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet"))
    local = local_path(location)
    assert local is not None, location
    path = Path(local)
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = ", ".join(f"{name_of(name)}: {field_id}" for name, field_id in table.field_ids().items())
    options = f"FORMAT parquet, {_COMPRESSION}, DICTIONARY_SIZE_LIMIT {_DICTIONARY_VALUES_MAX}, FIELD_IDS {{{ids}}}"
    with sql.cursor() as cursor:
        for name, arrow in (tables or {}).items():
            cursor.register(name, arrow)
        try:
            written = cursor.execute(f"COPY ({query}) TO {text_of(local)} ({options})").fetchone()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    if written is None or not written[0]:
        path.unlink(missing_ok=True)
        return None
    return _data_file(table, location, path.stat().st_size)


def _data_file(table: LakeTable, location: str, size_bytes: int) -> Any:
    jvm = table.lake.jvm
    metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(
        table.java.io().newInputFile(location), jvm.org.apache.iceberg.MetricsConfig.forTable(table.java)
    )
    builder = jvm.org.apache.iceberg.DataFiles.builder(table.java.spec()).withPath(location).withFormat("PARQUET")
    return builder.withFileSizeInBytes(size_bytes).withMetrics(metrics).build()
