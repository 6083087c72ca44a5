"""What operators see of a Delta table: its versions with the totals that each of them really had."""

from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, LocalStorage
from mainstem.formats.delta.log import DeltaLog
from mainstem.maintenance.delta_inventory import described
from mainstem.model import TableName
from mainstem.query.delta import DeltaTables
from mainstem.tables.layout import delta_path
from mainstem.tables.marks import POSITION_MARK

NAME = TableName("shop", "orders")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    table = DeltaTable(storage, delta_path(NAME))
    schema = pa.schema([("_id", pa.int64()), ("p", pa.string())])
    table.create(schema, partition_by=["p"], deletion_vectors=True)
    table.write([{"_id": n, "p": "ab"[n % 2]} for n in range(100)])
    table.delete({"_id": {"$lt": 10}})
    table.upsert([{"_id": 50, "p": "b"}])
    table.write([{"_id": n, "p": "c"} for n in range(100, 120)], transaction=(POSITION_MARK, 7))
    table.write([{"_id": 120, "p": "c"}])
    return storage


def test_versions_have_the_totals_that_they_had(storage: LocalStorage) -> None:
    found = described(DeltaTables(storage).load(NAME), 100)
    log = DeltaLog(storage, delta_path(NAME))
    snapshots = found["snapshots"]
    assert [each["snapshot-id"] for each in snapshots] == list(range(log.newest().version + 1))
    for each in snapshots:
        files = log.at(each["snapshot-id"]).files.values()
        summary = each["summary"]
        assert summary["total-data-files"] == str(len(files))
        assert summary["total-files-size"] == str(sum(file.size for file in files))
        assert summary["total-delete-files"] == str(sum(file.deletionVector is not None for file in files))
        assert each["timestamp-ms"] > 0 and summary["operation"]
    rows = [each["summary"].get("total-records") for each in snapshots]
    assert rows == ["0", "100", "90", "90", "110", "111"]
    assert [each["summary"].get(POSITION_MARK) for each in snapshots][-2:] == ["7", None]
    assert [each["summary"]["added-records"] for each in snapshots] == ["0", "100", "0", "1", "20", "1"]


def test_it_is_bounded_and_a_cleaned_log_is_no_trouble(storage: LocalStorage) -> None:
    tables = DeltaTables(storage)
    assert len(described(tables.load(NAME), 2)["snapshots"]) == 2
    table = DeltaTable(storage, delta_path(NAME))
    table.checkpoint()
    for version in range(3):
        (storage.folder / delta_path(NAME) / "_delta_log" / f"{version:020d}.json").unlink()
    found = described(DeltaTables(LocalStorage(storage.folder)).load(NAME), 100)
    assert [each["snapshot-id"] for each in found["snapshots"]] == [3, 4, 5]
    (spec,) = found["partition-specs"]
    assert [field["transform"] for field in spec["fields"]] == ["identity"]
