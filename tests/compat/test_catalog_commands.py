"""`mainstem catalog …` as a user types it, against a real server with tables that pyiceberg wrote."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mainstem.app.cli.catalog import catalog
from tests.compat.catalog_server import Server

ROWS = pa.table({"id": [1, 2, 3]}, schema=pa.schema([("id", pa.int64())]))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, str(tmp_path / "warehouse")) as running:
        running.pyiceberg().create_namespace("shop")
        yield running


def run(server: Server, *words: str) -> Result:
    return CliRunner().invoke(catalog, ["--url", server.url, *words], env={"COLUMNS": "160"})


def test_looking_and_rolling_back(server: Server) -> None:
    table = server.pyiceberg().create_table("shop.orders", ROWS.schema)
    for position in ("10", "20"):
        table.append(ROWS, snapshot_properties={"mainstem.position": position})
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)

    listed = run(server, "list", "--long").output
    assert "shop.orders" in listed
    assert "6" in listed
    shown = run(server, "show", "shop.orders").output
    assert "long" in shown
    assert str(second) in shown
    history = run(server, "history", "shop.orders").output
    assert history.index(str(second)) < history.index(str(first)), "newest first"
    assert "append" in history
    compared = run(server, "diff", "shop.orders", str(first), str(second)).output
    assert "+3" in compared
    assert "the columns are the same" in compared

    assert run(server, "rollback", "shop.orders", str(first), "--yes").exit_code == 0
    assert table.refresh().metadata.current_snapshot_id == first
    assert "not on main" in run(server, "history", "shop.orders").output
    assert run(server, "rollback", "shop.orders", str(second), "--yes").exit_code == 0
    assert len(table.refresh().scan().to_arrow()) == 6


def test_branches_and_tags(server: Server) -> None:
    table = server.pyiceberg().create_table("shop.orders", ROWS.schema)
    assert "no snapshot yet" in run(server, "tag", "shop.orders", "empty").output
    table.append(ROWS)
    table.append(ROWS)
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert run(server, "tag", "shop.orders", "audited", str(first), "--keep-days", "7").exit_code == 0
    assert run(server, "branch", "shop.orders", "trial").exit_code == 0
    refs = table.refresh().refs()
    assert (refs["audited"].snapshot_id, refs["audited"].max_ref_age_ms) == (first, 7 * 24 * 3600 * 1000)
    assert (refs["trial"].snapshot_id, refs["trial"].max_ref_age_ms) == (second, None)
    assert len(table.scan().use_ref("audited").to_arrow()) == 3
    table.append(ROWS, branch="trial")
    # A branch may be moved; DuckDB and others then read it where it was put.
    assert run(server, "branch", "shop.orders", "trial", str(first)).exit_code == 0
    assert len(table.refresh().scan().use_ref("trial").to_arrow()) == 3
    assert "audited" in run(server, "show", "shop.orders").output
    assert run(server, "drop-ref", "shop.orders", "audited").exit_code == 0
    assert table.refresh().refs().keys() == {"main", "trial"}
    for words in (("drop-ref", "main"), ("tag", "main"), ("tag", "x", "5")):
        assert run(server, words[0], "shop.orders", *words[1:]).exit_code == 1


def test_errors_in_one_line(server: Server) -> None:
    for words in (("show", "shop.none"), ("show", "plain"), ("diff", "shop.none", "1", "2")):
        failed = run(server, *words)
        assert failed.exit_code != 0
        assert "Traceback" not in failed.output
    elsewhere = CliRunner().invoke(catalog, ["--url", "http://127.0.0.1:1", "list"])
    assert "no answer from" in elsewhere.output
