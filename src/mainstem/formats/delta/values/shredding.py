"""Variants taken apart: a data file in which fields that many values share are columns of their own.

DuckDB writes such files, and decides which fields those are; every other column it writes as Arrow would. A table asks
for it by Delta's own property, since not every engine reads it: see docs/adr/0012.
"""

from collections.abc import Sequence

import pyarrow as pa

from mainstem.formats.delta.files.engine import engine_of
from mainstem.formats.delta.schema import TableSchema
from mainstem.formats.delta.storage import Storage
from mainstem.sql import duckdb_name, duckdb_text

SHREDDING = "delta.enableVariantShredding"
# As Delta names it, until it is no preview any more.
FEATURE = "variantShredding-preview"
ROW_GROUP_ROWS = 131_072


def shreds(schema: TableSchema) -> bool:
    """Whether new files of the table have their Variants taken apart."""
    return schema.has(SHREDDING) and any(field.is_variant for field in schema.fields.values())


def write_shredded(storage: Storage, path: str, rows: pa.Table, variants: Sequence[str]) -> None:
    """Write one data file; `variants` are columns of two binaries."""
    selected = [_whole(name) if name in variants else duckdb_name(name) for name in rows.column_names]
    with engine_of(storage).cursor() as cursor:
        cursor.register("coming", rows)
        cursor.execute(
            f"COPY (SELECT {', '.join(selected)} FROM coming) TO {duckdb_text(storage.uri(path))}"
            f" (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )


def _whole(name: str) -> str:
    column = duckdb_name(name)
    whole = f"variant_bytes_to_variant({column}.metadata || {column}.value)"
    return f"CASE WHEN {column} IS NOT NULL THEN {whole} END AS {column}"
