"""Rows of a table come from files in the table's own folder, whatever its metadata names.

The pipeline has keys to all of the lake, and a writer of a table may name any file in its manifests or its log.
So the executors look at the file of each row while they read it: a look beforehand would see other manifests than the
scan, where somebody writes them anew in between.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from mainstem.model.errors import Denied
from mainstem.model.names import TableName
from mainstem.tables.places import first_beyond, folder_place_of, spellings

BEYOND = "the table names files beyond its location"
# What readers take for a step up, written out or as an escape.
_STEP = r"/(\.|%2[eE]){1,2}(/|$)"


def own_rows(rows: DataFrame, location: str) -> DataFrame:
    """The rows of an Iceberg table, as they are; reading fails at the first that lies beyond the table's location."""
    # Not by its name alone: a table may have a column of that name.
    return _guarded(rows, rows.metadataColumn("_file"), spellings(folder_place_of(location)))


def own_delta_rows(rows: DataFrame, location: str) -> DataFrame:
    """The same of a Delta table. Spark names its files as URIs, with the escapes that Hadoop gives them."""
    jvm: Any = rows.sparkSession._jvm
    place = str(jvm.org.apache.hadoop.fs.Path(folder_place_of(location)).toUri().toString())
    return _guarded(rows, rows.metadataColumn("_metadata").getField("file_path"), spellings(place))


def refuse_beyond(name: TableName, location: str, paths: Iterable[object]) -> None:
    """Raise Denied where a plan names a file beyond its table."""
    beyond = first_beyond(paths, location)
    if beyond is not None:
        raise Denied(f"{BEYOND}. table={name} got={beyond!r:.300}")


def _guarded(rows: DataFrame, file: Column, places: Iterable[str]) -> DataFrame:
    inside = sf.lit(False)
    for place in places:
        inside = inside | file.startswith(f"{place}/")
    has_step = (file.contains("/.") | file.contains("%2")) & file.rlike(_STEP)
    message = sf.concat(sf.lit(f"{BEYOND}. got="), sf.substring(file, 1, 300))
    # What raises gives no value: the rows beyond cannot be left out by it, only refused.
    return rows.where(sf.when(inside & ~has_step, sf.lit(True)).otherwise(sf.raise_error(message).cast("boolean")))
