"""Where the old rows of some keys are: the (file, position) pairs that an upsert has to delete.

Rows that are deleted already are not found again, or every update of a key would delete all its former versions once
more.
"""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from mainstem.pipeline.driver_sql import DriverSql, local_path, text_list
from mainstem.pipeline.keys import as_frame
from mainstem.pipeline.lake import LakeTable
from mainstem.tables.layout import KEY

PLACES_SCHEMA = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
# Above this the table's key column is read by the cluster and not by the driver.
DRIVER_ROWS_MAX = 50_000_000


@dataclass(slots=True)
class LiveFiles:
    """What a table consisted of at one snapshot: its data files by path, and its position deletes."""

    snapshot_id: int | None
    data: dict[str, Any] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    rows: int = 0
    # Deletes of another kind than position deletes in Parquet, or files that are not on this machine.
    only_spark: bool = False

    def add(self, path: str, file: Any, rows: int) -> None:
        """Take note of a data file."""
        self.data[path] = file
        self.rows += rows
        self.only_spark = self.only_spark or local_path(path) is None


def live_files(table: LakeTable) -> LiveFiles:
    """Ask Iceberg for all files of the current snapshot."""
    found = LiveFiles(table.snapshot_id)
    deletes: dict[str, None] = {}
    tasks = table.java.newScan().planFiles()
    try:
        iterator = tasks.iterator()
        while iterator.hasNext():
            task = iterator.next()
            file = task.file()
            found.add(file.location(), file, file.recordCount())
            for delete in task.deletes():
                if delete.content().toString() != "POSITION_DELETES" or delete.format().toString() != "PARQUET":
                    found.only_spark = True
                deletes[delete.location()] = None
    finally:
        tasks.close()
    found.deletes = list(deletes)
    return found


def find_places(sql: DriverSql, table: LakeTable, files: LiveFiles, keys: pa.Table) -> pa.Table:
    """The places of the keys' rows, sorted by file and position."""
    if not files.data or keys.num_rows == 0:
        return PLACES_SCHEMA.empty_table()
    if files.only_spark or files.rows > DRIVER_ROWS_MAX:
        return _find_with_spark(table, keys)
    return places_on_driver(sql, int(table.java.schema().findField(KEY).fieldId()), files, keys)


def places_on_driver(sql: DriverSql, key_id: int, files: LiveFiles, keys: pa.Table) -> pa.Table:
    """The same with DuckDB, where all files are on this machine. `key_id` is Iceberg's id of the key column."""
    if not files.data or keys.num_rows == 0:
        return PLACES_SCHEMA.empty_table()
    query, tables = rows_of_files(key_id, files, f"SEMI JOIN keys k ON f.{KEY} = k.{KEY}")
    with sql.cursor() as cursor:
        cursor.register("keys", keys)
        for name, table in tables.items():
            cursor.register(name, table)
        found = cursor.execute(f"SELECT file_path, pos FROM ({query}) ORDER BY file_path, pos").to_arrow_table()
    return found.cast(PLACES_SCHEMA)


def rows_of_files(key_id: int, files: LiveFiles, restriction: str = "") -> tuple[str, dict[str, pa.Table]]:
    """A query for the key and place of every live row in files on this machine, and the tables that it names.

    `restriction` joins the files' rows, `f`, with something else.
    """
    location_by_path = {local_path(location): location for location in files.data}
    paths = text_list(path for path in location_by_path if path)
    # By field id, as Iceberg reads: files of one table may have different columns.
    schema = f"MAP {{{key_id}: {{name: '{KEY}', type: 'VARCHAR', default_value: NULL}}}}"
    query = (
        f"SELECT f.{KEY}, l.location AS file_path, f.file_row_number AS pos"
        f" FROM read_parquet({paths}, schema = {schema}, filename = true, file_row_number = true,"
        f" hive_partitioning = false) f {restriction} JOIN locations l ON l.path = f.filename"
    )
    if files.deletes:
        deletes = text_list(path for path in map(local_path, files.deletes) if path)
        query = (
            f"SELECT p.* FROM ({query}) p ANTI JOIN read_parquet({deletes}, hive_partitioning = false) d"
            " ON d.file_path = p.file_path AND d.pos = p.pos"
        )
    locations = {"path": list(location_by_path), "location": list(location_by_path.values())}
    return query, {"locations": pa.table(locations)}


def _find_with_spark(table: LakeTable, keys: pa.Table) -> pa.Table:
    spark = table.lake.spark
    rows = spark.table(table.identifier).select(KEY, sf.col("_file").alias("file_path"), sf.col("_pos").alias("pos"))
    places = rows.join(as_frame(spark, keys, KEY), KEY, "left_semi").select("file_path", "pos").toArrow()
    return places.cast(PLACES_SCHEMA).sort_by([("file_path", "ascending"), ("pos", "ascending")])
