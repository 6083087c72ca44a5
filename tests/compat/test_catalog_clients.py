"""Real clients against the real server: pyiceberg's RestCatalog and DuckDB, in one warehouse on the local disk."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.types import LongType

from mainstem.model import UNNAMED, TableName
from tests.compat.catalog_server import Server

ROWS = pa.schema([("id", pa.int64()), ("note", pa.string())])


@pytest.fixture(params=["path", "uri"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    warehouse = str(tmp_path / "warehouse") if request.param == "path" else (tmp_path / "warehouse").as_uri()
    with Server(tmp_path, warehouse) as running:
        yield running


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "note": [f"n{i}" for i in ids]}, schema=ROWS)


def test_pyiceberg_writes_and_duckdb_reads(server: Server) -> None:
    table = server.pyiceberg()
    table.create_namespace("shop")
    orders = table.create_table("shop.orders", ROWS)
    orders.append(rows(1, 2, 3), snapshot_properties={"mainstem.position": "3"})
    orders.delete("id = 2")
    with orders.update_schema() as update:
        update.add_column("amount", LongType())
    orders.append(pa.table({"id": [4], "note": ["n4"], "amount": [40]}))
    found = server.duckdb().execute("SELECT id, note, amount FROM lake.shop.orders ORDER BY id").fetchall()
    assert found == [(1, "n1", None), (3, "n3", None), (4, "n4", 40)]
    assert server.heard[-1].table == TableName("shop", "orders")
    assert server.catalog.marks(TableName("shop", "orders")) == {UNNAMED: 3}


def test_duckdb_writes_and_pyiceberg_reads(server: Server) -> None:
    duck = server.duckdb()
    duck.execute("CREATE SCHEMA lake.duck")
    duck.execute("CREATE TABLE lake.duck.made AS SELECT range AS id, 'x' || range AS note FROM range(1000)")
    duck.execute("DELETE FROM lake.duck.made WHERE id % 10 = 3")
    duck.execute("UPDATE lake.duck.made SET note = 'changed' WHERE id = 4")
    table = server.pyiceberg().load_table("duck.made")
    found = {row["id"]: row["note"] for row in table.scan().to_arrow().to_pylist()}
    assert len(found) == 900
    assert found[4] == "changed"
    assert found[5] == "x5"


def test_duckdb_commits_two_tables_at_once(server: Server) -> None:
    duck = server.duckdb()
    duck.execute("CREATE SCHEMA lake.duck")
    duck.execute("CREATE TABLE lake.duck.a (id INTEGER)")
    duck.execute("CREATE TABLE lake.duck.b (id INTEGER)")
    duck.execute("BEGIN")
    duck.execute("INSERT INTO lake.duck.a VALUES (1)")
    duck.execute("INSERT INTO lake.duck.b VALUES (2)")
    duck.execute("COMMIT")
    both = "SELECT id FROM lake.duck.a UNION ALL SELECT id FROM lake.duck.b ORDER BY id"
    assert server.duckdb().execute(both).fetchall() == [(1,), (2,)]


def test_pyiceberg_namespaces(server: Server) -> None:
    catalog = server.pyiceberg()
    catalog.create_namespace("py", {"owner": "me"})
    catalog.create_namespace(("py", "deep"))
    assert catalog.list_namespaces() == [("py",)]
    assert catalog.list_namespaces("py") == [("py", "deep")]
    assert catalog.namespace_exists("py")
    assert not catalog.namespace_exists("nowhere")
    changed = catalog.update_namespace_properties("py", {"owner", "absent"}, {"team": "a"})
    assert (changed.removed, changed.updated, changed.missing) == (["owner"], ["team"], ["absent"])
    place = f"{server.catalog.warehouse}/py"
    assert catalog.load_namespace_properties("py") == {"team": "a", "location": place}
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("py")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("py")
    catalog.drop_namespace(("py", "deep"))
    catalog.drop_namespace("py")
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace("py")


def test_pyiceberg_table_life(server: Server) -> None:
    catalog = server.pyiceberg()
    catalog.create_namespace("py")
    catalog.create_namespace("other")
    table = catalog.create_table("py.t", ROWS)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("py.t", ROWS)
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("nowhere.t", ROWS)
    table.append(rows(1))
    catalog.rename_table("py.t", "other.renamed")
    assert catalog.list_tables("py") == []
    assert catalog.list_tables("other") == [("other", "renamed")]
    with pytest.raises(NoSuchTableError):
        catalog.load_table("py.t")
    # The files stay where they were, so a new table of the old name must go beside them.
    again = catalog.create_table("py.t", ROWS)
    assert again.location() != table.location()
    again.append(rows(7))
    assert catalog.load_table("other.renamed").scan().to_arrow().to_pylist() == [{"id": 1, "note": "n1"}]
    location = catalog.load_table("other.renamed").metadata_location
    catalog.drop_table("other.renamed")
    assert catalog.register_table("py.back", location).scan().to_arrow().num_rows == 1
    catalog.purge_table("py.back")
    assert not catalog.table_exists("py.back")


def test_pyiceberg_create_transaction_branches_and_tags(server: Server) -> None:
    catalog = server.pyiceberg()
    catalog.create_namespace("py")
    with catalog.create_table_transaction("py.staged", ROWS) as transaction:
        transaction.append(rows(1))
        assert not catalog.table_exists("py.staged")
    table = catalog.load_table("py.staged")
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "v1").create_branch(first.snapshot_id, "side").commit()
    table.append(rows(2), branch="side")
    with table.update_spec() as update:
        update.add_identity("note")
    table.append(rows(3))
    loaded = catalog.load_table("py.staged")
    assert loaded.refs().keys() == {"main", "v1", "side"}
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [1, 3]
    assert sorted(loaded.scan().use_ref("side").to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_stale_writer_is_refused_and_the_table_keeps_its_rows(server: Server) -> None:
    catalog = server.pyiceberg()
    catalog.create_namespace("py")
    catalog.create_table("py.t", ROWS, properties={"commit.retry.num-retries": "0"})
    one, two = catalog.load_table("py.t"), catalog.load_table("py.t")
    with pytest.raises(CommitFailedException, match="Requirement failed: branch main"), two.transaction() as late:
        late.append(rows(2))
        one.append(rows(1))
    assert catalog.load_table("py.t").scan().to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("tables", [1, 16])
def test_sixteen_writers_and_every_acknowledged_commit_is_there(tmp_path: Path, tables: int) -> None:
    """Judged by the table's own history: as many property commits as were acknowledged, no more and no fewer."""
    writers, commits_each = 16, 10
    with (
        Server(tmp_path, str(tmp_path / "warehouse")) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        client.post("/v1/namespaces", json={"namespace": ["w"]}).raise_for_status()
        schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
        for t in range(tables):
            client.post("/v1/namespaces/w/tables", json={"name": f"t{t}", "schema": schema}).raise_for_status()

        def write(writer: int) -> int:
            acknowledged = 0
            for i in range(commits_each):
                update = {"action": "set-properties", "updates": {f"w{writer}.{i}": "done"}}
                body = {"requirements": [], "updates": [update]}
                path = f"/v1/namespaces/w/tables/t{writer % tables}"
                acknowledged += client.post(path, json=body).status_code == 200
            return acknowledged

        with ThreadPoolExecutor(writers) as pool:
            acknowledged = sum(pool.map(write, range(writers)))
        assert acknowledged == writers * commits_each
        found = 0
        for t in range(tables):
            metadata = client.get(f"/v1/namespaces/w/tables/t{t}").json()["metadata"]
            found += sum(1 for key in metadata["properties"] if key.startswith("w"))
            # The codec property starts with "w" too.
            found -= 1
            assert len(metadata["metadata-log"]) == min(100, writers * commits_each // tables)
        assert found == acknowledged
