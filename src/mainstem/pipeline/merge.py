"""The merge rule in Spark: what a batch makes of a table's rows. `mainstem.model.merge` is the same rule in Python.

Two ways to the same rows. Where every row of the batch is whole and newer than all the table has seen, the last row
of each key simply is the new row. Otherwise each column is merged on its own by (clock, source), with the old rows of
the batch's keys and the deletes that may be newer than a late change.
"""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from mainstem.model.position import LogPosition
from mainstem.pipeline.changes import with_values
from mainstem.pipeline.lake import quoted
from mainstem.tables.evolution import Column
from mainstem.tables.layout import CLOCKS, HLC, KEY, POSITION, SOURCE
from mainstem.tables.types import STRING, VARIANT, Kind

DELETE = "delete"


def keys_of(rows: DataFrame) -> DataFrame:
    """Every key that the batch touches, once."""
    return rows.select(sf.col("key").alias(KEY)).distinct()


def latest_rows(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The new rows of a batch of whole rows whose clocks grow with their positions.

    Which row is a key's last is found on two narrow columns; the JSON of the losers is never read. The winners'
    positions are broadcast, which a bounded batch allows.
    """
    winners = rows.groupBy("key").agg(sf.max("position").alias("position")).select("position")
    upserts = rows.where(sf.col("op") != DELETE).join(sf.broadcast(winners), "position", "left_semi")
    parsed, values = with_values(upserts, columns)
    return parsed.select(
        *(value.alias(column.stored) for column, value in zip(columns, values, strict=True)),
        sf.col("key").alias(KEY),
        sf.col("hlc").alias(HLC),
        sf.col("source").alias(SOURCE),
        sf.col("position").alias(POSITION),
        sf.lit(None).cast("string").alias(CLOCKS),
    )


def merged_rows(
    rows: DataFrame,
    old_rows: DataFrame,
    tombstones: DataFrame | None,
    columns: Sequence[Column],
    since: Mapping[str, LogPosition],
) -> DataFrame:
    """The new rows of any batch: each column keeps its latest (clock, source), unless a delete is as new.

    `old_rows` are the table's rows of the batch's keys, `tombstones` earlier deletes of them (`_key, _hlc, _source`).
    """
    evidence = _of_changes(rows, columns).unionByName(_of_old_rows(old_rows, columns, since))
    if tombstones is not None:
        evidence = evidence.unionByName(_of_tombstones(tombstones), allowMissingColumns=True)
    merged = evidence.groupBy(KEY).agg(
        sf.max(POSITION).alias(POSITION),
        sf.max("tombstone").alias("tombstone"),
        *(
            sf.max_by(sf.struct(_order(i)["hlc"], _order(i)["source"], f"value{i}"), _order(i)).alias(f"cell{i}")
            for i in range(len(columns))
        ),
    )
    return _visible(merged, columns)


def _order(index: int) -> SparkColumn:
    return sf.col(f"order{index}")


def _of_changes(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """What each change says: a stamp and a value per column it has, or a tombstone."""
    parsed, values = with_values(rows, columns)
    is_delete = sf.col("op") == DELETE
    written = parsed.select("*", sf.json_object_keys("columns").alias("__keys"))
    cells: list[SparkColumn] = []
    for index, (column, value) in enumerate(zip(columns, values, strict=True)):
        present = ~is_delete & sf.array_contains("__keys", column.name)
        cells.append(sf.when(present, _stamp("hlc", "source", column, value)).alias(f"order{index}"))
        cells.append(sf.when(present, value).alias(f"value{index}"))
    return written.select(
        sf.col("key").alias(KEY),
        sf.col("position").alias(POSITION),
        sf.when(is_delete, sf.struct("hlc", "source")).alias("tombstone"),
        *cells,
    )


def _of_old_rows(old_rows: DataFrame, columns: Sequence[Column], since: Mapping[str, LogPosition]) -> DataFrame:
    """What a stored row says: its own stamp for every column it had then, or the stamps it carries."""
    clocked = old_rows.select("*", sf.from_json(CLOCKS, "map<string, array<string>>").alias("__clocks"))
    cells: list[SparkColumn] = []
    for index, column in enumerate(columns):
        value = sf.col(quoted(column.stored))
        clock = sf.try_element_at("__clocks", sf.lit(column.name))
        had = sf.col(POSITION) > sf.lit(int(since.get(column.name, 0)))
        stamp = sf.when(
            sf.col(CLOCKS).isNull(), sf.when(had, _stamp(HLC, SOURCE, column, value))
        ).when(
            clock.isNotNull(),
            sf.struct(
                clock[0].cast("long").alias("hlc"), clock[1].alias("source"), _tie(column, value).alias("tie")
            ),
        )
        cells.append(stamp.alias(f"order{index}"))
        cells.append(value.alias(f"value{index}"))
    return clocked.select(
        sf.col(KEY),
        sf.lit(None).cast("long").alias(POSITION),
        sf.lit(None).cast("struct<hlc: bigint, source: string>").alias("tombstone"),
        *cells,
    )


def _of_tombstones(tombstones: DataFrame) -> DataFrame:
    return tombstones.select(
        sf.col(KEY),
        sf.lit(None).cast("long").alias(POSITION),
        sf.struct(sf.col(HLC).alias("hlc"), sf.col(SOURCE).alias("source")).alias("tombstone"),
    )


def _stamp(hlc: str, source: str, column: Column, value: SparkColumn) -> SparkColumn:
    return sf.struct(sf.col(hlc).alias("hlc"), sf.col(source).alias("source"), _tie(column, value).alias("tie"))


def _tie(column: Column, value: SparkColumn) -> SparkColumn:
    """One source never writes a column twice with one clock; if it does, the greater JSON text wins, as in Python."""
    if column.type == VARIANT:
        text = sf.to_json(value)
    elif column.type == STRING and column.kind is not Kind.JSON:
        text = sf.concat(sf.lit('"'), value, sf.lit('"'))
    else:
        text = value.cast("string")
    return sf.coalesce(text, sf.lit("null"))


def _visible(merged: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Drop what is not newer than its key's tombstone; rows of which nothing is left are not there."""
    alive = merged.select(
        KEY,
        POSITION,
        *(
            sf.when(
                sf.col("tombstone").isNull() | (_stamp_of(sf.col(f"cell{i}")) > sf.col("tombstone")), sf.col(f"cell{i}")
            ).alias(f"cell{i}")
            for i in range(len(columns))
        ),
    )
    cells = [sf.col(f"cell{i}") for i in range(len(columns))]
    stamps = sf.array(*(sf.when(cell.isNotNull(), _stamp_of(cell)) for cell in cells))
    stamped = alive.select("*", stamps.alias("__stamps")).select("*", sf.array_max("__stamps").alias("__stamp"))
    uniform = sf.forall("__stamps", lambda stamp: stamp.isNotNull() & (stamp == sf.col("__stamp")))
    return stamped.where(sf.col("__stamp").isNotNull()).select(
        *(sf.col(f"cell{i}")[f"value{i}"].alias(column.stored) for i, column in enumerate(columns)),
        sf.col(KEY),
        sf.col("__stamp")["hlc"].alias(HLC),
        sf.col("__stamp")["source"].alias(SOURCE),
        sf.col(POSITION),
        sf.when(~uniform, _clocks(columns)).alias(CLOCKS),
    )


def _stamp_of(cell: SparkColumn) -> SparkColumn:
    return sf.struct(cell["hlc"].alias("hlc"), cell["source"].alias("source"))


def _clocks(columns: Sequence[Column]) -> SparkColumn:
    """JSON {column: [hlc, source]} of the columns that the row has."""
    entries = []
    for index, column in enumerate(columns):
        cell = sf.col(f"cell{index}")
        name = json.dumps(column.name, ensure_ascii=False)
        source = sf.substring(sf.to_json(sf.array(cell["source"])), 2, 2**31 - 1)
        entries.append(sf.when(cell.isNotNull(), sf.concat(sf.lit(f"{name}:["), cell["hlc"], sf.lit(","), source)))
    return sf.concat(sf.lit("{"), sf.concat_ws(",", *entries), sf.lit("}"))
