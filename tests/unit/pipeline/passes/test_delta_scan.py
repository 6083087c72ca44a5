"""Files of Delta tables that are written anew on the executors: every row keeps what is its own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.client.delta import create_storage
from mainstem.formats.delta.log import AddFile
from mainstem.formats.delta.values import variant
from mainstem.model import TableName
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable, create_state, state_partition
from mainstem.pipeline.passes.delta_files import write_delta_files
from mainstem.pipeline.passes.delta_scan import DeltaScan, rewrite_task
from mainstem.runtime.clock import ManualClock
from mainstem.tables.evolution import plan_evolution
from mainstem.tables.settings import TableSettings

ROWS = 5_000


def rewritten(scan: DeltaScan, groups: Sequence[Sequence[AddFile]]) -> list[dict[str, Any]]:
    """What a Spark job over the groups does, here."""
    work = pa.record_batch([[msgspec.json.encode(list(group)).decode() for group in groups]], names=["files"])
    return [json.loads(text) for batch in rewrite_task(scan, 0, iter([work])) for text in batch["file"].to_pylist()]


def filled(folder: Path, settings: TableSettings) -> DeltaLakeTable:
    """A table of documents that hold their keys."""
    table = create_state(
        DeltaLake(create_storage(str(folder)), ManualClock()), TableName("default", "documents"), settings
    )
    table.evolve(plan_evolution(table.columns(), {"doc": ["object"]}, settings), 0, rewritten)
    keys = [f"k{number}" for number in range(ROWS)]
    numbers = pa.array(range(1, ROWS + 1), pa.int64())
    documents = [dict(zip(("metadata", "value"), variant.encode({"key": key}), strict=True)) for key in keys]
    texts = pa.nulls(ROWS, pa.string())
    kind = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
    rows = {"doc": pa.array(documents, kind), "_key": keys, "_hlc": numbers, "_source": texts, "_position": numbers}
    target = table.target(table.derived_by(state_partition(settings)))
    written = write_delta_files(target, pa.table({**rows, "_clocks": texts}), {}, 0)
    table.commit(Marks(), [each.description for each in written])
    return table


@pytest.mark.parametrize("partition", [(), ("bucket(2, _key)",)])
def test_a_variant_that_becomes_text_stays_in_its_row(tmp_path: Path, partition: tuple[str, ...]) -> None:
    settings = TableSettings.from_document({"format": "delta", "nested": "variant", "partition": list(partition)})
    table = filled(tmp_path, settings)
    table.evolve(plan_evolution(table.columns(), {"doc": ["string"]}, settings), 0, rewritten)
    found = table.lake.table(table.name).query(projection=["_key", "doc"])
    assert len(found) == ROWS
    assert [row for row in found if json.loads(row["doc"]) != {"key": row["_key"]}] == []
