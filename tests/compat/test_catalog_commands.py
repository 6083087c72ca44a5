"""`mainstem catalog …` as a user types it, against a real server with tables that pyiceberg wrote."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mainstem.app.catalog_cli import catalog
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


def test_errors_in_one_line(server: Server) -> None:
    for words in (("show", "shop.none"), ("show", "plain"), ("diff", "shop.none", "1", "2")):
        failed = run(server, *words)
        assert failed.exit_code != 0
        assert "Traceback" not in failed.output
    elsewhere = CliRunner().invoke(catalog, ["--url", "http://127.0.0.1:1", "list"])
    assert "no answer from" in elsewhere.output
