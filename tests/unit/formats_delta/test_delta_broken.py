"""Broken tables: a named error that says which file, never a wrong answer."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, LocalStorage
from mainstem.model.errors import Corrupt, Invalid, MainstemError, NotFound


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(LocalStorage(tmp_path), "t")
    table.create(pa.schema([("_id", pa.string())]), deletion_vectors=True)
    for n in range(4):
        table.write([{"_id": f"{n}-{i}", "n": i} for i in range(10)])
    table.delete({"n": 3})
    return table


def commit(table: DeltaTable, version: int) -> Path:
    return Path(table.uri) / "_delta_log" / f"{version:020d}.json"


def cut(path: Path, keep: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def fails_at(table: DeltaTable, place: str) -> None:
    fresh = DeltaTable(table.storage, "t")
    for attempt in (fresh.query, lambda: fresh.delete({"n": 1}), lambda: fresh.upsert([{"_id": "x"}])):
        with pytest.raises(Corrupt) as error:
            attempt()
        assert place in str(error.value)


@pytest.mark.parametrize("version", [0, 2, 5])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_commit_that_is_cut_off(table: DeltaTable, version: int, keep: float) -> None:
    cut(commit(table, version), keep)
    fails_at(table, f"{version:020d}.json")


@pytest.mark.parametrize("version", [0, 3])
def test_a_missing_version(table: DeltaTable, version: int) -> None:
    commit(table, version).unlink()
    fails_at(table, f"{version:020d}.json")


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"junk"), cut, lambda path: path.write_bytes(b"")])
def test_a_bad_checkpoint(table: DeltaTable, damage: Callable[[Path], None]) -> None:
    table.checkpoint()
    (checkpoint,) = (Path(table.uri) / "_delta_log").glob("*.checkpoint.parquet")
    damage(checkpoint)
    fails_at(table, checkpoint.name)


def test_commits_before_a_checkpoint_are_not_needed(table: DeltaTable) -> None:
    table.checkpoint()
    for version in range(5):
        commit(table, version).unlink()
    fresh = DeltaTable(table.storage, "t")
    assert len(fresh.query()) == 36
    with pytest.raises(MainstemError):
        fresh.snapshot(2)


@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda path: path.write_bytes(b"PAR1 not really PAR1")])
def test_a_bad_data_file(table: DeltaTable, damage: Callable[[Path], None]) -> None:
    victim = sorted(Path(table.uri).glob("*.parquet"))[0]
    damage(victim)
    fresh = DeltaTable(table.storage, "t")
    with pytest.raises(Corrupt) as error:
        fresh.query()
    assert victim.name in str(error.value)


def test_a_missing_or_broken_vector(table: DeltaTable) -> None:
    wide = DeltaTable(table.storage, "wide")
    wide.create(pa.schema([("n", pa.int64())]), deletion_vectors=True)
    wide.write(pa.table({"n": range(5000)}))
    wide.delete({"n": {"$mod": [2, 0]}})
    (vector,) = Path(wide.uri).glob("deletion_vector_*.bin")
    content = bytearray(vector.read_bytes())
    content[50] ^= 1
    vector.write_bytes(content)
    with pytest.raises(Corrupt, match="checksum"):
        DeltaTable(table.storage, "wide").query()
    vector.unlink()
    with pytest.raises(Corrupt, match=vector.name):
        DeltaTable(table.storage, "wide").query()


def test_no_table_and_a_table_from_the_future(table: DeltaTable) -> None:
    with pytest.raises(NotFound, match="no Delta table"):
        DeltaTable(table.storage, "none").query()
    for version in range(table.version + 1):
        path = commit(table, version)
        path.write_text(path.read_text().replace('"deletionVectors"', '"telepathy"'))
    with pytest.raises(Invalid, match="telepathy"):
        DeltaTable(table.storage, "t").query()
