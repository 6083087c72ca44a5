"""Storages: how they are named, and that of many writers of one file one wins, on disk and on a real S3 server."""

import gc
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mainstem.client.delta import DeltaTable, LocalStorage, MemoryStorage, S3Storage, Storage, create_storage
from mainstem.model.errors import Conflict, Invalid, NotFound
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY


@pytest.fixture(params=["memory", "disk", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return create_storage("memory://")
    if request.param == "disk":
        return create_storage(str(tmp_path / "lake"))
    server = request.getfixturevalue("s3_server")
    server.make_bucket("delta-storage")
    return create_storage(
        f"s3://delta-storage/{tmp_path.name}",
        endpoint=server.url,
        region=REGION,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    default = create_storage()
    assert isinstance(default, LocalStorage)
    assert default.folder == tmp_path / ".deltalake"
    assert create_storage(type="filesystem", path="x").root == str(tmp_path / "x")
    assert isinstance(create_storage(type="memory"), MemoryStorage)
    s3 = create_storage("s3://bucket/some/prefix/", region="eu-north-1")
    assert isinstance(s3, S3Storage)
    assert (s3.root, s3.region) == ("s3://bucket/some/prefix", "eu-north-1")
    r2 = create_storage(type="r2", bucket="b", account_id="acc", access_key_id="k", secret_access_key="s")
    assert isinstance(r2, S3Storage)
    assert (r2.endpoint, r2.region) == ("https://acc.r2.cloudflarestorage.com", "auto")


@pytest.mark.parametrize(
    "build",
    [
        lambda: create_storage("ftp://x"),
        lambda: create_storage(type="tape"),
        lambda: create_storage(type="r2", bucket="b"),
        lambda: create_storage(type="s3", buckets="b"),
        lambda: create_storage("/x", type="memory"),
    ],
)
def test_a_wrong_name_says_so(build: Callable[[], Any]) -> None:
    with pytest.raises(Invalid):
        build()


def test_of_many_writers_one_wins(storage: Storage) -> None:
    def write(n: int) -> int | None:
        try:
            storage.put_if_absent("t/_log/1", str(n).encode() * 1000)
        except Conflict:
            return None
        return n

    with ThreadPoolExecutor(16) as threads:
        won = [n for n in threads.map(write, range(16)) if n is not None]
    assert len(won) == 1
    assert storage.read("t/_log/1") == str(won[0]).encode() * 1000
    # Nothing half-written is left beside it.
    assert [entry.path for entry in storage.entries("t/_log")] == ["t/_log/1"]


def test_files(storage: Storage) -> None:
    with pytest.raises(NotFound):
        storage.read("t/none")
    assert storage.entries("t/none") == ()
    storage.put("t/a/x y=é", b"1")
    storage.put("t/a/x y=é", b"22")
    assert storage.read("t/a/x y=é") == b"22"
    assert [(entry.path, entry.size_bytes) for entry in storage.entries("t/a")] == [("t/a/x y=é", 2)]
    assert storage.folders("t") == ("t/a",)
    storage.delete("t/a/x y=é")
    storage.delete("t/a/x y=é")
    assert not storage.exists("t/a/x y=é")


def test_a_folder_that_another_makes_meanwhile_is_listed_and_no_error(tmp_path: Path) -> None:
    lake = create_storage(str(tmp_path / "lake"))
    log = tmp_path / "lake" / "orders" / "_delta_log"
    with ThreadPoolExecutor(2) as threads:
        made = threads.submit(_make_and_remove, log, 5_000)
        while not made.done():
            assert lake.entries("orders/_delta_log") == ()
            assert set(lake.folders("orders")) <= {"orders/_delta_log"}
        made.result()


def _make_and_remove(folder: Path, times: int) -> None:
    for _ in range(times):
        folder.mkdir(parents=True)
        folder.rmdir()
        folder.parent.rmdir()


@pytest.mark.parametrize("vectors", [False, True])
def test_a_table_lives_anywhere(storage: Storage, vectors: bool) -> None:
    table = DeltaTable(storage, f"nested/table{vectors}")
    rows = [{"_id": str(n), "n": n, "p": "a b"[n % 3]} for n in range(30)]
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    table.write(rows, partition_by=["p"], properties=properties)
    table.upsert([{"_id": "1", "n": 100, "p": "a"}, {"_id": "x", "n": -1, "p": "c"}])
    table.update({"n": {"$gte": 28}}, {"$set": {"seen": True}})
    table.delete({"n": 3})
    assert len(table.query()) == 30
    assert table.query({"seen": True, "p": "b"}) == [{**rows[29], "seen": True}]
    assert table.query({"_id": "1"}) == [{"_id": "1", "n": 100, "p": "a", "seen": True}]
    table.optimize()
    table.checkpoint()
    assert len(DeltaTable(storage, table.name).query()) == 30


def test_memory_is_given_back_with_its_storage() -> None:
    storage = create_storage("memory://")
    assert isinstance(storage, MemoryStorage)
    folder = storage.folder
    table = DeltaTable(storage, "t")
    table.write([{"_id": 1}])
    assert table.query({"_id": 1}) and folder.exists()
    del table, storage
    gc.collect()
    assert not folder.exists()


class Watched(LocalStorage):
    """A folder that writes down what was made durable, in order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.durable: list[str] = []

    def sync(self, paths: Iterable[str]) -> None:
        listed = list(paths)
        super().sync(listed)
        self.durable += listed

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        self.durable.append(path)


def test_data_is_durable_before_the_commit_that_names_it(tmp_path: Path) -> None:
    storage = Watched(tmp_path)
    table = DeltaTable(storage, "t")
    table.write([{"_id": n, "p": n % 2} for n in range(10)], partition_by=["p"])
    table.upsert([{"_id": 3, "p": 0}, {"_id": 11, "p": 1}])
    for version in range(2):
        commit = storage.durable.index(f"t/_delta_log/{version:020d}.json")
        added = [action.add.path for action in table._log.actions(version) if action.add is not None]
        assert len(added) >= 2
        assert all(storage.durable.index(f"t/{path}") < commit for path in added)
    # delta-rs commits by itself; then both are durable before the write returns.
    table.write([{"_id": 12, "p": 0}])
    assert {f"t/{path}" for path, _ in table.state().files} < set(storage.durable)
    assert storage.durable[-1] == "t/_delta_log/00000000000000000002.json"
