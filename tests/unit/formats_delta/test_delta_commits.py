"""Every write is one commit, its new columns included: all of it is there, or nothing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, LocalStorage, Storage, VersionMismatchError, create_storage
from mainstem.model.errors import Invalid, MainstemError, OutcomeUnknown

Row = dict[str, Any]


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


@pytest.fixture(params=[False, True], ids=["plain", "feed"])
def table(request: pytest.FixtureRequest, storage: Storage) -> DeltaTable:
    made = DeltaTable(storage, "t")
    made.create(pa.schema([("_id", pa.int64()), ("n", pa.int64())]), change_feed=request.param)
    made.write([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
    return made


WRITES: dict[str, Callable[[DeltaTable, int | None], object]] = {
    "write": lambda table, at: table.write([{"_id": 3, "new": "x"}], expected_version=at),
    "upsert": lambda table, at: table.upsert([{"_id": 1, "new": "x"}], expected_version=at),
    "update": lambda table, at: table.update({"_id": 1}, {"$set": {"new": "x"}}, expected_version=at),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("named", [False, True])
def test_a_new_column_comes_with_its_rows(table: DeltaTable, name: str, named: bool) -> None:
    at = table.version
    WRITES[name](table, at if named else None)
    assert table.version == at + 1
    assert "new" not in table.snapshot(at).schema.names
    assert len(table.query({"new": "x"})) == 1
    assert pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all()["new"].null_count > 0


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_refused_leaves_no_column(table: DeltaTable, name: str) -> None:
    table.add_constraint("small", "n < 100")
    at, files = table.version, table.snapshot().file_uris()
    big: dict[str, Callable[[], object]] = {
        "write": lambda: table.write([{"_id": 3, "n": 100, "new": 1}]),
        "upsert": lambda: table.upsert([{"_id": 1, "n": 100, "new": 1}]),
        "update": lambda: table.update({"_id": 1}, {"$set": {"n": 100, "new": 1}}),
    }
    with pytest.raises(Invalid, match="constraint"):
        big[name]()
    assert table.version == at
    assert table.schema.names == ["_id", "n"]
    assert sorted(str(path) for path in Path(table.uri).glob("*.parquet")) == sorted(files)


@pytest.mark.parametrize("name", WRITES)
def test_of_two_writes_on_one_version_one_is_refused(table: DeltaTable, storage: Storage, name: str) -> None:
    """Both bring a new column. The one that is late must not be laid over the other."""
    at = table.version
    other = DeltaTable(storage, "t")
    other.upsert([{"_id": 1, "n": 50, "other": True}])
    with pytest.raises(VersionMismatchError):
        WRITES[name](table, at)
    assert table.query({"_id": 1}) == [{"_id": 1, "n": 50, "other": True}]
    assert "new" not in table.schema.names


def test_the_first_upsert_makes_the_table_with_its_rows(storage: Storage) -> None:
    table = DeltaTable(storage, "first")
    with pytest.raises(Invalid):
        table.upsert([{"_id": 1, "v": "\ud800"}])
    assert not table.exists()
    changed = table.upsert([{"_id": 1}, {"_id": 1, "n": 2}], transaction=("app", 1))
    assert (changed.version, changed.inserted) == (0, 1)
    assert table.upsert([{"_id": 5}], transaction=("app", 1)).inserted == 0
    assert table.query() == [{"_id": 1, "n": 2}]


def test_a_writer_that_comes_late_keeps_its_files_and_takes_the_next_version(storage: Storage) -> None:
    """Another writer commits while a stream is being read: the stream is not read twice, and nothing is lost."""
    table, other = DeltaTable(storage, "t"), DeltaTable(storage, "t")
    table.write([{"_id": 0}])

    def rows() -> Iterator[Row]:
        yield {"_id": 1, "mine": 1}
        other.write([{"_id": 2, "theirs": 2}])
        other.upsert([{"_id": 0, "theirs": 0}])
        yield {"_id": 3, "mine": 3}

    assert table.write(rows()) == 3
    assert table.query(sort={"_id": 1}) == [
        {"_id": 0, "theirs": 0}, {"_id": 1, "mine": 1}, {"_id": 2, "theirs": 2}, {"_id": 3, "mine": 3},
    ]  # fmt: skip
    assert table.schema.names == ["_id", "theirs", "mine"]


def test_a_stream_whose_columns_another_writer_takes_is_refused(storage: Storage) -> None:
    table, other = DeltaTable(storage, "t"), DeltaTable(storage, "t")
    table.write([{"_id": 0}])

    def rows() -> Iterator[Row]:
        yield {"_id": 1, "v": 1}
        other.write([{"_id": 2, "v": "text"}])

    with pytest.raises(VersionMismatchError, match="columns changed"):
        table.write(rows())
    assert table.query(sort={"_id": 1}) == [{"_id": 0}, {"_id": 2, "v": "text"}]
    assert len(list(Path(table.uri).glob("*.parquet"))) == 2


def test_a_numbered_batch_that_another_wrote_meanwhile_is_not_written_again(storage: Storage) -> None:
    table, other = DeltaTable(storage, "t"), DeltaTable(storage, "t")
    table.write([{"_id": 0}])

    def rows() -> Iterator[Row]:
        yield {"_id": 1}
        other.write([{"_id": 1}], transaction=("app", 7))

    assert table.write(rows(), transaction=("app", 7)) == 1
    assert len(table.query({"_id": 1})) == 1
    assert len(list(Path(table.uri).glob("*.parquet"))) == 2


class _Silent(LocalStorage):
    """A store that keeps a commit and loses the answer to it."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        if path.endswith("1.json"):
            raise OutcomeUnknown("no answer")


def test_files_stay_where_nobody_knows_whether_the_commit_happened(tmp_path: Path) -> None:
    table = DeltaTable(_Silent(tmp_path), "t")
    table.write([{"_id": 0}])
    with pytest.raises(OutcomeUnknown):
        table.write([{"_id": 1}])
    assert sorted(row["_id"] for row in DeltaTable(create_storage(str(tmp_path)), "t").query()) == [0, 1]


def test_what_the_log_said_of_a_table_stays_when_a_column_comes(tmp_path: Path) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "t")
    table.create(pa.schema([("_id", pa.int64())]), properties={"mine": "kept"})
    table.write([{"_id": 1, "v": {"a": 1}}])
    said = [
        action["metaData"]
        for version in (0, 1)
        for line in (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        if "metaData" in (action := json.loads(line))
    ]
    assert [each["id"] for each in said] == [said[0]["id"]] * 2
    assert said[1]["createdTime"] == said[0]["createdTime"]
    assert said[1]["configuration"] == {"mine": "kept"}
    assert table.query() == [{"_id": 1, "v": {"a": 1}}]


def test_properties_that_ask_for_more_than_is_known_leave_no_table(storage: Storage) -> None:
    for name, value in (("delta.columnMapping.mode", "name"), ("delta.enableRowTracking", "true")):
        table = DeltaTable(storage, "asking")
        with pytest.raises(MainstemError):
            table.write([{"_id": 1}], properties={name: value})
        assert not table.exists()
    table.write(({"_id": n} for n in range(3)), properties={"delta.checkpointPolicy": "v2"})
    assert len(table.query()) == 3


def test_the_newest_version_restored_is_no_commit(table: DeltaTable) -> None:
    at = table.version
    assert table.restore(at) == at == table.version
