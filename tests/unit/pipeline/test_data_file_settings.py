"""Parquet settings in the files that the executors write: from the setting through the property to the footer."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.pipeline.passes.files import write_files
from mainstem.pipeline.passes.plan import IcebergTarget
from mainstem.tables.parquet import Codec, ParquetSettings, writer_options
from mainstem.tables.types import LONG, STRING


def written(folder: Path, settings: ParquetSettings, rows: int) -> pq.FileMetaData:
    """The footer of a file of so many rows."""
    target = IcebergTarget(
        str(folder), (("a", LONG, 1), ("b", STRING, 2)), 0, (), writer_options(settings.properties())
    )
    table = pa.table({"a": range(rows), "b": [f"x{number}" for number in range(rows)]})
    (file,) = write_files(target, table, {})
    return pq.read_metadata(file.description["file-path"])


@pytest.mark.parametrize("codec", list(Codec))
def test_the_codec_and_the_row_groups_are_as_set(tmp_path: Path, codec: Codec) -> None:
    footer = written(tmp_path, ParquetSettings(compression=codec, row_group_rows=4096), 20_000)
    assert footer.num_rows == 20_000 and footer.num_row_groups == 5
    codecs = {footer.row_group(group).column(0).compression.lower() for group in range(footer.num_row_groups)}
    assert codecs == {"uncompressed" if codec is Codec.NONE else str(codec)}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_higher_level_makes_smaller_files(tmp_path: Path, codec: Codec) -> None:
    sizes = []
    for level in (1, 9):
        footer = written(tmp_path, ParquetSettings(compression=codec, compression_level=level), 20_000)
        sizes.append(sum(footer.row_group(0).column(column).total_compressed_size for column in range(2)))
    assert sizes[1] < sizes[0]


def test_row_groups_are_cut_by_bytes_too(tmp_path: Path) -> None:
    assert written(tmp_path, ParquetSettings(row_group_bytes=100_000), 100_000).num_row_groups > 3


def test_what_nobody_could_have_meant_is_the_default() -> None:
    odd = {"write.parquet.compression-codec": "lzo", "write.parquet.row-group-size-bytes": "much"}
    assert writer_options(odd) == writer_options({})
