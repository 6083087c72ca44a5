"""Old records out of a topic's table, also where compaction put files together that were not neighbours."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mainstem.app.kafka.rows import TopicRows
from mainstem.client.delta import DeltaTable, create_storage
from mainstem.feeds.topics.config import read_config
from mainstem.feeds.topics.retention import first_to_keep, spent
from mainstem.formats.delta.log import DeltaLog
from mainstem.model.names import TableName
from mainstem.query.delta import DeltaVersion
from mainstem.runtime.clock import SystemClock
from mainstem.wire.kafka.opening import Record

TABLE = TableName("kafka", "old")
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
    ]
)


def rows_of(folder: Path, *files: list[int]) -> TopicRows:
    """A table whose files hold these offsets of partition 0, each as late as its offset in seconds."""
    storage = create_storage(str(folder))
    table = DeltaTable(storage, "kafka/old", clock=SystemClock())
    table.create(SCHEMA, partition_by=["partition"])
    for offsets in files:
        columns: dict[str, Any] = {
            "partition": [0] * len(offsets),
            "offset": offsets,
            "timestamp": [offset * 1_000_000 for offset in offsets],
            "key": [None] * len(offsets),
            "value": [b"%d" % offset for offset in offsets],
            "headers": [None] * len(offsets),
        }
        table.write(pa.table(columns, schema=SCHEMA))

    def delta(name: TableName) -> Any:
        state = DeltaLog(storage, "kafka/old").newest()
        return SimpleNamespace(delta=DeltaVersion(storage, "kafka/old", state))

    return TopicRows(SimpleNamespace(delta=delta))  # type: ignore[arg-type]


def read(rows: TopicRows, partition: int, offset: int) -> list[Record]:
    """As the process that reads does it: what is to be read was sent to it."""
    found = pickle.loads(pickle.dumps(rows.of(TABLE, partition, offset)))
    return [] if found is None else list(found.records(offset, 10, 1))


def test_more_files_than_one_read_looks_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.app.kafka.rows._FILES_MAX", 2)
    rows = rows_of(tmp_path, [0, 1, 6, 7], [2, 3], [4, 5], [8, 9])
    found = rows.of(TABLE, 0, 0)
    assert found is not None and len(found.files) == 2
    # 4 is in the third file: nothing from there on may be given away yet.
    assert [record.offset for record in found.records(0, 10, 1 << 20)] == [0, 1, 2, 3]


def test_no_record_is_passed_over(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [0, 1, 6, 7], [2, 3], [4, 5], [8, 9])
    for start in range(10):
        found: list[int] = []
        offset = start
        while part := read(rows, 0, offset):
            found += [record.offset for record in part]
            offset = found[-1] + 1
        assert found == list(range(start, 10))
    assert read(rows, 1, 0) == []


def test_whole_files_go_by_time_and_size(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [0, 1], [2, 3], [4, 5])
    files = rows.files(TABLE)
    assert sorted((file.first, file.last, file.max_timestamp_ms) for file in files) == [
        (0, 1, 1_000),
        (2, 3, 3_000),
        (4, 5, 5_000),
    ]
    by_time = read_config({"retention.ms": "2000"})
    assert first_to_keep(files, by_time, 0, 4_500) == 2
    by_size = read_config({"retention.ms": "-1", "retention.bytes": str(files[0].bytes)})
    assert first_to_keep(files, by_size, 0, 4_500) >= 4
    assert first_to_keep(files, read_config({"cleanup.policy": "compact"}), 0, 1 << 50) == 0
    rows.drop(TABLE, spent(files, {0: 3}), 1)
    assert [file.first for file in sorted(rows.files(TABLE))] == [2, 4]
