"""Parquet settings in the files that the driver writes: from the setting through the property to the footer."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mainstem.pipeline.datafiles import write_rows
from mainstem.pipeline.driver_sql import DriverSql
from mainstem.tables.parquet import Codec, ParquetSettings, writer_options


@pytest.mark.parametrize("codec", list(Codec))
def test_the_codec_and_the_row_groups_are_as_set(tmp_path: Path, codec: Codec) -> None:
    settings = ParquetSettings(compression=codec, row_group_rows=4096)
    path = tmp_path / "rows.parquet"
    query = "SELECT range AS a, 'x' || range AS b FROM range(20000)"
    assert write_rows(DriverSql(), path, {"a": 1, "b": 2}, query, {}, writer_options(settings.properties()))
    footer = pq.read_metadata(path)
    assert footer.num_rows == 20_000 and footer.num_row_groups == 5
    codecs = {footer.row_group(group).column(0).compression.lower() for group in range(footer.num_row_groups)}
    assert codecs == {"uncompressed" if codec is Codec.NONE else str(codec)}


def test_row_groups_are_cut_by_bytes_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    options = writer_options(ParquetSettings(row_group_bytes=100_000).properties())
    assert write_rows(DriverSql(), path, {"a": 1}, "SELECT range AS a FROM range(100000)", {}, options)
    assert pq.read_metadata(path).num_row_groups > 3


def test_what_nobody_could_have_meant_is_the_default() -> None:
    odd = {"write.parquet.compression-codec": "lzo", "write.parquet.row-group-size-bytes": "much"}
    assert writer_options(odd) == writer_options({})
