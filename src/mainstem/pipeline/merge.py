"""The merge rule in Spark: what a batch makes of a table's rows. `mainstem.model.merge` is the same rule in Python.

Two ways to the same rows. Where every row of the batch is whole and newer than all the table has seen, the last row
of each key simply is the new row. Otherwise each column is merged on its own by (clock, source), with the old rows of
the batch's keys and the deletes that may be newer than a late change.

Per column the general way carries an `order` (clock, source, and a text that decides ties) and a `value`; a null order
says that the column is not there, which is not the same as a null value.
"""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from mainstem.model.position import LogPosition
from mainstem.pipeline.changes import literal, with_values
from mainstem.pipeline.lake import quoted
from mainstem.tables.evolution import Column
from mainstem.tables.layout import CLOCKS, HLC, KEY, POSITION, SOURCE
from mainstem.tables.types import STRING, VARIANT, Kind

DELETE = "delete"
_NO_TOMBSTONE = "CAST(NULL AS struct<hlc: bigint, source: string>) AS tombstone"


def latest_rows(rows: DataFrame, last: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The new rows of a batch of whole rows whose clocks grow with their positions: each key's last row.

    `last` holds the `_position` of each key's last change. It is broadcast, so the JSON of the losers is never parsed.
    """
    upserts = rows.where(f"op != '{DELETE}'").join(last, rows["position"] == last[POSITION], "left_semi")
    parsed, values = with_values(upserts, columns)
    return parsed.selectExpr(
        *(f"{value} AS {quoted(column.stored)}" for column, value in zip(columns, values, strict=True)),
        f"key AS {KEY}",
        f"hlc AS {HLC}",
        f"source AS {SOURCE}",
        f"position AS {POSITION}",
        f"CAST(NULL AS string) AS {CLOCKS}",
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
    # Grouping in SQL text: see `changes` on the cost of building expressions.
    cells = [
        f"max_by(struct(order{i}.hlc AS hlc, order{i}.source AS source, value{i} AS value), order{i}) AS cell{i}"
        for i in range(len(columns))
    ]
    merged = evidence.sparkSession.sql(
        f"SELECT {KEY}, max({POSITION}) AS {POSITION}, max(tombstone) AS tombstone, {', '.join(cells)}"
        f" FROM {{evidence}} GROUP BY {KEY}",
        evidence=evidence,
    )
    return _visible(merged, columns)


def _of_changes(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """What each change says: an order and a value per column it has, or a tombstone."""
    parsed, values = with_values(rows, columns)
    is_delete = f"op = '{DELETE}'"
    cells = []
    for i, (column, value) in enumerate(zip(columns, values, strict=True)):
        present = f"NOT {is_delete} AND array_contains(__keys, {literal(column.name)})"
        order = f"struct(hlc, source, {_tie(column, value)} AS tie)"
        cells.append(f"CASE WHEN {present} THEN {order} END AS order{i}")
        cells.append(f"CASE WHEN {present} THEN {value} END AS value{i}")
    return parsed.selectExpr("*", "json_object_keys(columns) AS __keys").selectExpr(
        f"key AS {KEY}",
        f"position AS {POSITION}",
        f"CASE WHEN {is_delete} THEN struct(hlc, source) END AS tombstone",
        *cells,
    )


def _of_old_rows(old_rows: DataFrame, columns: Sequence[Column], since: Mapping[str, LogPosition]) -> DataFrame:
    """What a stored row says: its own stamp for every column it had then, or the stamps it carries."""
    cells = []
    for i, column in enumerate(columns):
        value = quoted(column.stored)
        tie = f"{_tie(column, value)} AS tie"
        own = f"struct({HLC} AS hlc, {SOURCE} AS source, {tie})"
        if column.name in since:
            own = f"CASE WHEN {POSITION} > {int(since[column.name])}L THEN {own} END"
        clock = f"try_element_at(__clocks, {literal(column.name)})"
        carried = f"struct(CAST({clock}[0] AS bigint) AS hlc, {clock}[1] AS source, {tie})"
        cells.append(
            f"CASE WHEN {CLOCKS} IS NULL THEN {own} WHEN {clock} IS NOT NULL THEN {carried} END AS order{i}"
        )
        cells.append(f"{value} AS value{i}")
    clocked = old_rows.selectExpr("*", f"from_json({CLOCKS}, 'map<string, array<string>>') AS __clocks")
    return clocked.selectExpr(KEY, f"CAST(NULL AS bigint) AS {POSITION}", _NO_TOMBSTONE, *cells)


def _of_tombstones(tombstones: DataFrame) -> DataFrame:
    stamp = f"struct({HLC} AS hlc, {SOURCE} AS source) AS tombstone"
    return tombstones.selectExpr(KEY, f"CAST(NULL AS bigint) AS {POSITION}", stamp)


def _tie(column: Column, value: str) -> str:
    """One source never writes a column twice with one clock; if it does, the greater JSON text wins, as in Python."""
    if column.type == VARIANT:
        text = f"to_json({value})"
    elif column.type == STRING and column.kind is not Kind.JSON:
        text = f"concat('\"', {value}, '\"')"
    else:
        text = f"CAST({value} AS string)"
    return f"coalesce({text}, 'null')"


def _visible(merged: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Drop what is not newer than its key's tombstone; rows of which nothing is left are not there."""
    alive = merged.selectExpr(
        KEY,
        POSITION,
        *(
            f"CASE WHEN tombstone IS NULL OR struct(cell{i}.hlc AS hlc, cell{i}.source AS source) > tombstone"
            f" THEN cell{i} END AS cell{i}"
            for i in range(len(columns))
        ),
    )
    stamps = [
        f"CASE WHEN cell{i} IS NOT NULL THEN struct(cell{i}.hlc AS hlc, cell{i}.source AS source) END"
        for i in range(len(columns))
    ]
    stamped = alive.selectExpr("*", f"array({', '.join(stamps)}) AS __stamps")
    stamped = stamped.selectExpr("*", "array_max(__stamps) AS __stamp").where("__stamp IS NOT NULL")
    uniform = "forall(__stamps, stamp -> stamp IS NOT NULL AND stamp = __stamp)"
    return stamped.selectExpr(
        *(f"cell{i}.value AS {quoted(column.stored)}" for i, column in enumerate(columns)),
        KEY,
        f"__stamp.hlc AS {HLC}",
        f"__stamp.source AS {SOURCE}",
        POSITION,
        f"CASE WHEN NOT {uniform} THEN {_clocks(columns)} END AS {CLOCKS}",
    )


def _clocks(columns: Sequence[Column]) -> str:
    """JSON {column: [hlc, source]} of the columns that the row has."""
    entries = []
    for i, column in enumerate(columns):
        name = literal(json.dumps(column.name, ensure_ascii=False) + ":[")
        source = f"substring(to_json(array(cell{i}.source)), 2)"
        entries.append(f"CASE WHEN cell{i} IS NOT NULL THEN concat({name}, cell{i}.hlc, ',', {source}) END")
    return f"concat('{{', concat_ws(',', {', '.join(entries)}), '}}')"
