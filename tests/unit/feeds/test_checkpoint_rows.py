"""Checkpoints as Spark makes them: every row that the history has, each value as it was written."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, Lineage, LogId, LogPosition, Span
from mainstem.wire.checkpoints import CheckpointOrder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HISTORY = "_position long, _hlc long, _op string, _key string, _columns string, _source string"


def made(spark: "SparkSession", folder: Path, columns: Sequence[str | None]) -> dict[str, dict[str, str]]:
    """The rows of a checkpoint of a table with these changes, one row each: JSON text by column."""
    from mainstem.pipeline.commit.lake import Lake
    from mainstem.pipeline.upkeep.checkpoints import make_checkpoint

    name = f"t{abs(hash(tuple(columns))):x}"
    rows = [(n, 100 + n, "insert", f"r{n}", text, "app") for n, text in enumerate(columns, start=1)]
    spark.createDataFrame(rows, HISTORY).writeTo(f"lake.dirty.{name}_history").create()
    order = CheckpointOrder(
        namespace="dirty",
        tables=(name,),
        unlogged={name: {UNNAMED: LogPosition(len(rows))}},
        position=len(rows),
        folder=str(folder / "made"),
        before_folder=None,
        before_position=0,
    )
    make_checkpoint(spark, Lake(spark), order)
    return cells_in(folder / "made")


def cells_in(folder: Path) -> dict[str, dict[str, str]]:
    found = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return {row["row_id"]: {cell["column"]: cell["value"] for cell in row["cells"]} for row in found}


def test_a_row_whose_json_repeats_a_key_is_there(spark: "SparkSession", tmp_path: Path) -> None:
    texts = [
        '{"a":1,"a":2}',
        '{"a":1,"b":{"x":1,"x":2}}',
        '{"a":1,"b":[{"x":1,"x":2}],"b":3}',
        '{"a":1,"A":2}',
        '{"a":null,"a":1,"a":null}',
    ]
    found = made(spark, tmp_path, texts)
    expected = {f"r{n}": msgspec.json.decode(text) for n, text in enumerate(texts, start=1)}
    decoded = {key: {name: msgspec.json.decode(text) for name, text in row.items()} for key, row in found.items()}
    assert decoded == expected


def test_values_are_as_they_were_written(spark: "SparkSession", tmp_path: Path) -> None:
    values = [
        *("null", "true", "0", "-0.0", "1.50", "1e2", "1E-7", "0.1", "123456789.123456789", "9223372036854775808"),
        *("123456789012345678901234567890123456789012345678901234567890", "1.7976931348623157e308", '""', '"1"'),
        *('"null"', '"a\\"b\\\\c\\n\\u0001"', '"\\u00e9\\ud83d\\ude00"', '"{}"', "{}", "[]", '[1, {"b":[null]}]'),
        *('{"deep":{"er":[1.50,"x"]}}', '"\u2028/</"'),
    ]
    texts = [f'{{"c":{value},"weird \\"name\\".$[0]":{value}}}' for value in values]
    found = made(spark, tmp_path, texts)
    for number, value in enumerate(values, start=1):
        row = found[f"r{number}"]
        assert row.keys() == {"c", 'weird "name".$[0]'}
        for text in row.values():
            assert msgspec.json.decode(text) == msgspec.json.decode(value), (value, text)
            assert type(msgspec.json.decode(text)) is type(msgspec.json.decode(value)), (value, text)


def test_the_rows_of_a_table_in_delta_are_there(spark: "SparkSession", tmp_path: Path) -> None:
    from mainstem.pipeline.upkeep.checkpoints import make_checkpoint

    class NoIceberg:
        def load(self, name: TableName) -> None:
            return None

    location = (tmp_path / "t_history").as_uri()
    rows = [(1, 101, "insert", "r1", '{"a":1}', "app"), (2, 102, "insert", "r2", '{"a":2}', "app")]
    spark.createDataFrame(rows, HISTORY).write.format("delta").save(location)
    order = CheckpointOrder(
        namespace="dirty",
        tables=("t",),
        delta={"t": location},
        unlogged={"t": {UNNAMED: LogPosition(2)}},
        position=1,
        folder=str(tmp_path / "made"),
    )
    lake: Any = NoIceberg()
    make_checkpoint(spark, lake, order)
    assert cells_in(tmp_path / "made") == {"r1": {"a": "1"}}


def test_what_another_log_wrote_is_there_and_what_is_beyond_the_position_is_not(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The log was lost at 3, and the new one is at 2: the checkpoint is of position 1."""
    from mainstem.pipeline.commit.lake import Lake
    from mainstem.pipeline.upkeep.checkpoints import make_checkpoint

    ours, lost = LogId("ours"), LogId("lost")

    def change(log: str, position: int, hlc: int) -> tuple[Any, ...]:
        return position, hlc, "insert", f"{log}{position}", '{"a":1}', "app", log

    first = [change(lost, 1, 1), change(lost, 2, 2), change(lost, 3, 3), change(ours, 1, 11), change(ours, 2, 12)]
    rows = spark.createDataFrame(first, f"{HISTORY}, _log string")
    rows.writeTo("lake.dirty.twologs_history").create()
    lineage = Lineage((Span(ours, LogPosition(1)),)).spans

    def order(position: int, held: dict[LogId, LogPosition], before: int | None = None) -> CheckpointOrder:
        return CheckpointOrder(
            namespace="dirty",
            tables=("twologs",),
            lineage=lineage,
            held={"twologs": held},
            position=position,
            log=ours,
            folder=str(tmp_path / str(position)),
            before_folder=None if before is None else str(tmp_path / str(before)),
            before_position=before or 0,
        )

    lake = Lake(spark)
    make_checkpoint(spark, lake, order(1, {ours: LogPosition(2), lost: LogPosition(2)}))
    assert cells_in(tmp_path / "1").keys() == {"lost1", "lost2", "lost3", "ours1"}
    # The other one is a gateway that goes on: what came since its mark is read, whatever its position.
    spark.createDataFrame([change(lost, 4, 4)], rows.schema).writeTo("lake.dirty.twologs_history").append()
    make_checkpoint(spark, lake, order(2, {ours: LogPosition(2), lost: LogPosition(4)}, before=1))
    assert cells_in(tmp_path / "2").keys() == {"lost1", "lost2", "lost3", "lost4", "ours1", "ours2"}
