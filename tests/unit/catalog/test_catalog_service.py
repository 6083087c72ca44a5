"""The catalog as a whole, on a real SQLite file and real folders: commits, the fence, races, failures, purges."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstem.catalog import (
    AlreadyExists,
    Catalog,
    Commit,
    CommitFailed,
    Committed,
    NewTable,
    NoSuchNamespace,
    NoSuchTable,
    SqliteStore,
    TableIdent,
)
from mainstem.catalog.files import LocalFiles, RoutedFiles, local_path
from mainstem.catalog.metadata.documents import Documents, next_location
from mainstem.catalog.names import folder_of
from mainstem.catalog.stores.sqlite import MIGRATIONS
from mainstem.catalog.stores.store import Pointer, Swap
from mainstem.model import (
    UNNAMED,
    Corrupt,
    Invalid,
    LogId,
    LogPosition,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    TableName,
)
from mainstem.runtime.clock import ManualClock
from mainstem.tables.marks import position_mark

Document = dict[str, Any]

SCHEMA: Document = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
NEW = NewTable(SCHEMA)
T = TableIdent(("ns",), "t")


class Room:
    """A catalog in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[Committed] = []
        self.store = SqliteStore(folder / "catalog.db")
        self.catalog = self.open(self.store, RoutedFiles())
        self.catalog.create_namespace(("ns",), {})

    def open(self, store: Any, files: Any) -> Catalog:
        catalog = Catalog(store=store, files=files, warehouse=str(self.folder / "warehouse"), clock=ManualClock())
        catalog.on_commit(self.heard.append)
        return catalog

    def append(self, number: int, parent: int | None = None, position: int | None = None) -> list[Document]:
        summary = {"operation": "append"} | ({} if position is None else {"mainstem.position": str(position)})
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": str(self.folder / "warehouse/ns/t/metadata/none.avro"),
            "summary": summary,
        } | ({} if parent is None else {"parent-snapshot-id": parent})
        return [{"action": "add-snapshot", "snapshot": snapshot}, main_to(number)]

    def metadata_files(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*.metadata.json")}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.catalog.close()


def properties(**values: str) -> list[Document]:
    return [{"action": "set-properties", "updates": values}]


def main_to(number: int) -> Document:
    return {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}


def test_a_commit_is_on_disk_before_it_is_told(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    done = room.catalog.commit_table(Commit(T, [], room.append(1, position=41)))
    assert done.metadata_location is not None
    on_disk = msgspec.json.decode(Path(done.metadata_location).read_bytes())
    assert on_disk["current-snapshot-id"] == 1
    assert room.heard[-1] == Committed(TableName("ns", "t"), 1, {UNNAMED: LogPosition(41)}, done.metadata_location)
    again = Room.open(room, SqliteStore(room.folder / "catalog.db"), RoutedFiles())
    assert again.load_table(T).stored.raw == done.stored.raw
    assert again.marks(TableName("ns", "t")) == {UNNAMED: 41}
    assert [(s.table, s.snapshot_id, s.marks) for s in again.tables()] == [(TableName("ns", "t"), 1, {UNNAMED: 41})]
    again.close()


def test_a_failed_requirement_leaves_nothing_behind(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    before = room.metadata_files()
    with pytest.raises(CommitFailed):
        room.catalog.commit_table(Commit(T, [{"type": "assert-table-uuid", "uuid": "no"}], properties(a="b")))
    assert room.metadata_files() == before
    assert len(room.heard) == 1


def test_a_commit_without_effect_writes_nothing(room: Room) -> None:
    made = room.catalog.create_table(T.namespace, T.name, NEW)
    done = room.catalog.commit_table(Commit(T, [], []))
    assert done.metadata_location == made.metadata_location
    assert len(room.heard) == 1


def test_the_fence(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.commit_table(Commit(T, [], room.append(1, position=10)))
    room.catalog.commit_table(Commit(T, [], room.append(2, 1, position=20)))
    # A commit that knows nothing of positions (a compaction) keeps what its parents cover.
    room.catalog.commit_table(Commit(T, [], room.append(3, 2)))
    assert room.catalog.marks(TableName("ns", "t")) == {UNNAMED: 20}
    removal = {"action": "remove-snapshot-ref", "ref-name": "main"}
    for backwards in (room.append(4, 3, position=19), [main_to(1)], [removal]):
        with pytest.raises(CommitFailed, match="covered position would go backwards"):
            room.catalog.commit_table(Commit(T, [], backwards))
    # Expiring the snapshot that carries the marker would make the pipeline apply its changes again.
    with pytest.raises(CommitFailed, match="covered position would go backwards"):
        room.catalog.commit_table(Commit(T, [], [{"action": "remove-snapshots", "snapshot-ids": [1, 2]}]))
    room.catalog.commit_table(Commit(T, [], [{"action": "remove-snapshots", "snapshot-ids": [1]}]))
    room.catalog.commit_table(Commit(T, [], room.append(4, 3, position=20)))
    assert room.catalog.marks(TableName("ns", "t")) == {UNNAMED: 20}


def test_a_rollback_that_says_so_is_allowed(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.commit_table(Commit(T, [], room.append(1, position=10)))
    room.catalog.commit_table(Commit(T, [], room.append(2, 1, position=20)))
    deliberate = properties(**{"mainstem.rollback-to-position": "10"})
    room.catalog.commit_table(Commit(T, [], [main_to(1), *deliberate]))
    assert room.catalog.marks(TableName("ns", "t")) == {UNNAMED: 10}


def two_logs(room: Room, number: int, parent: int | None, **positions: int) -> list[Document]:
    marks = {position_mark(LogId(log)): str(position) for log, position in positions.items()}
    updates = room.append(number, parent)
    updates[0]["snapshot"]["summary"] |= marks
    return updates


def test_the_fence_holds_for_each_log_by_itself(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.commit_table(Commit(T, [], two_logs(room, 1, None, aaaa=900)))
    # A second log begins far below the first, and neither stands in the other's way.
    room.catalog.commit_table(Commit(T, [], two_logs(room, 2, 1, aaaa=900, bbbb=5)))
    assert room.catalog.marks(TableName("ns", "t")) == {"aaaa": 900, "bbbb": 5}
    refused = {
        "it forgets the other log": two_logs(room, 3, 2, bbbb=6),
        "it knows too little of the other log": two_logs(room, 3, 2, aaaa=899, bbbb=6),
        "its own log goes back": two_logs(room, 3, 2, aaaa=900, bbbb=4),
        "a log without a name is another log": room.append(3, 2, position=1000),
    }
    for why, backwards in refused.items():
        with pytest.raises(CommitFailed, match="covered position would go backwards"):
            room.catalog.commit_table(Commit(T, [], backwards))
            pytest.fail(why)
    deliberate = properties(**{"mainstem.rollback-to-position": "aaaa=900"})
    room.catalog.commit_table(Commit(T, [], [main_to(1), *deliberate]))
    assert room.catalog.marks(TableName("ns", "t")) == {"aaaa": 900}


def test_what_is_no_position_is_no_mark(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.commit_table(Commit(T, [], room.append(1, position=10)))
    nonsense = room.append(2, 1)
    nonsense[0]["snapshot"]["summary"]["mainstem.position"] = "abc"
    room.catalog.commit_table(Commit(T, [], nonsense))
    assert room.catalog.marks(TableName("ns", "t")) == {UNNAMED: 10}


def test_a_transaction_is_all_or_nothing(room: Room) -> None:
    other = TableIdent(("ns",), "other")
    for ident in (T, other):
        room.catalog.create_table(ident.namespace, ident.name, NEW)
    bad = Commit(other, [{"type": "assert-table-uuid", "uuid": "no"}], properties(a="2"))
    with pytest.raises(CommitFailed):
        room.catalog.commit_transaction([Commit(T, [], properties(a="1")), bad])
    assert "a" not in room.catalog.load_table(T).stored.document["properties"]
    room.catalog.commit_transaction([Commit(T, [], properties(a="1")), Commit(other, [], properties(a="2"))])
    assert room.catalog.load_table(other).stored.document["properties"]["a"] == "2"
    with pytest.raises(Invalid, match="twice"):
        room.catalog.commit_transaction([Commit(T, [], properties(a="1")), Commit(T, [], properties(a="2"))])


class Meddling:
    """A store in which somebody else commits just before each of our first swaps."""

    def __init__(self, store: SqliteStore, rival: Catalog, times: int) -> None:
        self._store, self._rival, self._times = store, rival, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        if self._times:
            self._times -= 1
            self._rival.commit_table(Commit(T, [], properties(**{f"rival{self._times}": "was here"})))
        return self._store.swap(swaps)


def test_a_lost_race_is_run_again_on_the_new_state(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    ours = room.open(Meddling(room.store, room.catalog, 2), RoutedFiles())
    done = ours.commit_table(Commit(T, [], properties(ours="yes")))
    found = done.stored.document["properties"]
    assert {"rival0", "rival1", "ours"} <= found.keys()
    # One file for the creation, two of the rival, one of ours: the losers' files are gone.
    assert len(room.metadata_files()) == 4


def test_a_race_lost_for_ever_is_a_conflict(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    ours = room.open(Meddling(room.store, room.catalog, 100), RoutedFiles())
    with pytest.raises(CommitFailed, match="lost the race"):
        ours.commit_table(Commit(T, [], properties(ours="yes")))
    assert "ours" not in room.catalog.load_table(T).stored.document["properties"]


class Uncertain:
    """A store that commits and then cannot say so."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        self._store.swap(swaps)
        raise OutcomeUnknown("the wire was cut")


def test_where_the_outcome_is_unknown_the_files_stay(room: Room) -> None:
    room.catalog.create_table(T.namespace, T.name, NEW)
    with pytest.raises(OutcomeUnknown):
        room.open(Uncertain(room.store), RoutedFiles()).commit_table(Commit(T, [], properties(a="b")))
    assert room.catalog.load_table(T).stored.document["properties"]["a"] == "b"


class FullDisk(LocalFiles):
    """A disk with no room for another file."""

    def write_new(self, location: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_changes_nothing_and_says_when_to_come_back(room: Room) -> None:
    made = room.catalog.create_table(T.namespace, T.name, NEW)
    with pytest.raises(Overloaded, match="No space left"):
        room.open(room.store, FullDisk()).commit_table(Commit(T, [], properties(a="b")))
    assert room.catalog.load_table(T).metadata_location == made.metadata_location


class FillingDisk(LocalFiles):
    """A disk with room for so many files more."""

    def __init__(self, room: int) -> None:
        self._left = room
        self._lock = threading.Lock()
        self.written: list[str] = []

    def write_new(self, location: str, data: bytes) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise OSError(28, "No space left on device")
        super().write_new(location, data)
        self.written.append(location)


def test_of_a_transaction_that_fills_the_disk_nothing_is_left(room: Room) -> None:
    """Its files are written side by side: those that had room go as well, once all of them are done."""
    tables = [TableIdent(T.namespace, f"t{number}") for number in range(40)]
    made = {each: room.catalog.create_table(each.namespace, each.name, NEW).metadata_location for each in tables}
    files = FillingDisk(25)
    with pytest.raises(Overloaded, match="No space left"):
        room.open(room.store, files).commit_transaction([Commit(each, [], properties(a="b")) for each in tables])
    assert len(files.written) == 25 and not any(Path(path).exists() for path in files.written)
    assert {each: room.catalog.load_table(each).metadata_location for each in tables} == made


def test_a_listener_that_fails_does_not_fail_the_commit(room: Room) -> None:
    def broken(_: Committed) -> None:
        raise RuntimeError("listener")

    catalog = Catalog(store=room.store, warehouse=str(room.folder / "w"))
    catalog.on_commit(broken)
    assert catalog.create_table(("ns",), "other", NEW).metadata_location is not None


def test_staging_creates_folders_but_no_table(room: Room) -> None:
    staged = room.catalog.stage_table(T.namespace, T.name, NEW)
    assert staged.metadata_location is None
    assert not room.catalog.table_exists(T)
    assert (room.folder / "warehouse" / "ns" / "t" / "data").is_dir()
    # A staged table that is never committed leaves no files, so its folder is free.
    made = room.catalog.create_table(T.namespace, T.name, NEW)
    assert made.stored.document["location"] == staged.stored.document["location"]


def test_a_dropped_table_leaves_its_files_and_the_next_one_goes_beside(room: Room) -> None:
    first = room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.drop_table(T, purge=False)
    second = room.catalog.create_table(T.namespace, T.name, NEW)
    assert second.stored.document["location"].startswith(first.stored.document["location"] + "~")
    assert Path(str(first.metadata_location)).exists()


def test_a_purge_takes_the_files_and_spares_the_neighbours(room: Room) -> None:
    first = room.catalog.create_table(T.namespace, T.name, NEW)
    room.catalog.create_namespace(("ns", "t"), {})
    room.catalog.create_table(("ns", "t"), "data", NEW)
    room.catalog.create_table(("ns", "t"), "inner", NEW)
    room.catalog.drop_table(T, purge=True)
    assert not Path(str(first.metadata_location)).exists()
    for name in ("data", "inner"):
        assert room.catalog.load_table(TableIdent(("ns", "t"), name)).stored.document
        assert len(list((room.folder / "warehouse").rglob("*.metadata.json"))) == 2


def test_a_purge_outside_of_the_warehouse_removes_no_strangers_files(room: Room, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (elsewhere / "data" / "letters.txt").write_text("mine")
    room.catalog.create_table(T.namespace, T.name, NewTable(SCHEMA, location=str(elsewhere)))
    room.catalog.drop_table(T, purge=True)
    assert (elsewhere / "data" / "letters.txt").read_text() == "mine"


def test_old_metadata_files_go_where_the_table_asks_for_it(room: Room) -> None:
    wanted = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    room.catalog.create_table(T.namespace, T.name, NewTable(SCHEMA, properties=wanted))
    for number in range(6):
        room.catalog.commit_table(Commit(T, [], properties(n=str(number))))
    assert len(room.metadata_files()) == 3


def test_register_reads_gzip_and_refuses_what_is_no_metadata(room: Room, tmp_path: Path) -> None:
    made = room.catalog.create_table(
        T.namespace, T.name, NewTable(SCHEMA, properties={"write.metadata.compression-codec": "gzip"})
    )
    assert str(made.metadata_location).endswith(".gz.metadata.json")
    assert Path(str(made.metadata_location)).read_bytes().startswith(b"\x1f\x8b")
    fresh = room.open(room.store, RoutedFiles())
    fresh.drop_table(T, purge=False)
    again = fresh.register_table(("ns",), "again", str(made.metadata_location), overwrite=False)
    assert again.stored.raw == made.stored.raw
    with pytest.raises(AlreadyExists):
        fresh.register_table(("ns",), "again", str(made.metadata_location), overwrite=False)
    fresh.register_table(("ns",), "again", str(made.metadata_location), overwrite=True)
    for number, text in enumerate(("[]", "{", '{"format-version": 2}', '{"format-version": 2, "location": "/x"}')):
        bad = tmp_path / f"bad{number}.json"
        bad.write_text(text)
        with pytest.raises(Invalid):
            fresh.register_table(("ns",), "bad", str(bad), overwrite=False)
    with pytest.raises(Invalid, match="metadata file is missing"):
        fresh.register_table(("ns",), "bad", str(tmp_path / "absent.json"), overwrite=False)


def test_lost_metadata_is_reported_with_its_place(room: Room) -> None:
    made = room.catalog.create_table(T.namespace, T.name, NEW)
    Path(str(made.metadata_location)).unlink()
    # By the catalog that still has it at hand too: every other engine finds the table broken.
    for catalog in (room.catalog, room.open(room.store, RoutedFiles())):
        with pytest.raises(NotFound, match=str(made.metadata_location)):
            catalog.load_table(T)


def test_missing_things(room: Room) -> None:
    with pytest.raises(NoSuchTable, match=r"Table does not exist: ns\.t"):
        room.catalog.load_table(T)
    with pytest.raises(NoSuchTable):
        room.catalog.commit_table(Commit(T, [], []))
    with pytest.raises(NoSuchNamespace, match=r"Namespace does not exist: a\.b"):
        room.catalog.create_table(("a", "b"), "t", NEW)
    with pytest.raises(NoSuchNamespace):
        room.catalog.commit_table(Commit(TableIdent(("a",), "t"), [{"type": "assert-create"}], []))
    assert room.catalog.marks(TableName("ns", "t")) == {}


def test_unregister_forgets_and_keeps_the_files(room: Room) -> None:
    made = room.catalog.create_table(T.namespace, T.name, NEW)
    assert room.catalog.unregister_table(T).metadata_location == made.metadata_location
    assert not room.catalog.table_exists(T)
    assert Path(str(made.metadata_location)).exists()


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    documents = Documents(LocalFiles(), cache_bytes_max=1_000)
    for number in range(10):
        document = {"format-version": 2, "location": "/w/t", "schemas": [SCHEMA], "pad": "x" * 300}
        place = str(tmp_path / f"{number}.metadata.json")
        documents.keep(place, documents.write(place, document))
    assert documents.cached_bytes <= 1_000
    assert documents.read(str(tmp_path / "0.metadata.json")).document["pad"] == "x" * 300


def test_names_become_folders_that_stay_inside_the_warehouse() -> None:
    assert folder_of(TableIdent(("a", "b"), "t")) == "a/b/t"
    for odd in ("..", ".", "a/b", "ä", "a b", "a%2Fb"):
        folder = folder_of(TableIdent(("ns",), odd))
        assert folder.startswith("ns/")
        assert folder.count("/") == 1
        assert folder.split("/")[1].strip(".")
    assert folder_of(TableIdent(("ns",), "a b")) != folder_of(TableIdent(("ns",), "a/b"))


def test_metadata_file_names_count_up() -> None:
    document = {"location": "/w/t", "properties": {}}
    assert next_location(document, None, "u") == "/w/t/metadata/00000-u.metadata.json"
    assert next_location(document, "/w/t/metadata/00041-x.metadata.json", "u") == "/w/t/metadata/00042-u.metadata.json"
    assert next_location(document, "/w/t/metadata/v7.metadata.json", "u") == "/w/t/metadata/00008-u.metadata.json"
    assert local_path("file:///w/a%20b") == Path("/w/a b")
    with pytest.raises(Invalid, match="not absolute"):
        local_path("w/t")


def test_the_store_refuses_a_later_version_and_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    SqliteStore(path).close()
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        connection.execute("PRAGMA user_version=999")
    with pytest.raises(Corrupt, match="later version"):
        SqliteStore(path)


def test_a_swap_of_several_pointers_is_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "catalog.db")
    store.create_namespace(("ns",), {})
    one = Pointer("/1", "/w", None, {})
    assert store.swap([Swap(T, None, one)])
    two = Swap(TableIdent(("ns",), "u"), None, one)
    assert not store.swap([two, Swap(T, "/other", Pointer("/2", "/w", None, {}))])
    assert store.entry(two.ident) is None
    store.close()
