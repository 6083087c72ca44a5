"""Data files of Iceberg tables, written by DuckDB on the driver: a query in, a file with Iceberg's field ids out.

What is written here is no part of the table yet: a commit makes it so. A file that no commit took is an orphan, like
any other writer's.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from mainstem.pipeline.driver_sql import DriverSql, name_of, text_of
from mainstem.tables.parquet import ROW_GROUP_BYTES_DEFAULT, Codec, WriterOptions

# Where a table asks for none: a batch is read again soon, and higher levels save little.
_ZSTD_LEVEL = 1
# Values that hardly repeat are given up on early: a dictionary pays where each stands in a row group ten times or so.
_DICTIONARY_SHARE = 10
# DuckDB's threads each encode a row group of their own, but only one that is at least half as large as it may be. So a
# file with fewer rows gets smaller ones, a little larger than a thread's share.
_ROW_GROUP_ROWS = 122_880
_ROW_GROUP_ROWS_MIN = 10_240
_SHARE = 1.2


def write_rows(
    sql: DriverSql,
    path: Path,
    field_ids: Mapping[str, int],
    query: str,
    tables: Mapping[str, pa.Table],
    parquet: WriterOptions,
    rows: int | None = None,
) -> bool:
    """Write a query's rows, whose columns are those with an id; False, and no file, where there are none.

    `tables` are Arrow tables that the query names, `rows` is about how many there will be, where that is known.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = ", ".join(f"{name_of(name)}: {field_id}" for name, field_id in field_ids.items())
    options = ", ".join(
        [
            "FORMAT parquet",
            _parquet_options(parquet, rows, sql.threads),
            f"FIELD_IDS {{{ids}}}",
        ]
    )
    written: tuple[int, ...] | None = None
    with sql.cursor() as cursor:
        for name, arrow in tables.items():
            cursor.register(name, arrow)
        try:
            written = cursor.execute(f"COPY ({query}) TO {text_of(str(path))} ({options})").fetchone()
        finally:
            if not (written and written[0]):
                path.unlink(missing_ok=True)
    return bool(written and written[0])


def _parquet_options(parquet: WriterOptions, rows: int | None, threads: int) -> str:
    """What a table asks for, in DuckDB's words. It cuts row groups by rows, in pieces of its vectors' size."""
    parts = [f"COMPRESSION {'uncompressed' if parquet.codec is Codec.NONE else parquet.codec}"]
    if parquet.codec is Codec.ZSTD:
        parts.append(f"COMPRESSION_LEVEL {parquet.level or _ZSTD_LEVEL}")
    group_rows = _ROW_GROUP_ROWS
    if parquet.row_group_rows is not None:
        group_rows = parquet.row_group_rows
        parts.append(f"ROW_GROUP_SIZE {group_rows}")
    elif parquet.row_group_bytes != ROW_GROUP_BYTES_DEFAULT:
        parts.append(f"ROW_GROUP_SIZE_BYTES {parquet.row_group_bytes}")
    elif rows is not None:
        group_rows = min(_ROW_GROUP_ROWS, max(_ROW_GROUP_ROWS_MIN, int(rows * _SHARE) // threads))
        parts.append(f"ROW_GROUP_SIZE {group_rows}")
    parts.append(f"DICTIONARY_SIZE_LIMIT {max(1, group_rows // _DICTIONARY_SHARE)}")
    return ", ".join(parts)
