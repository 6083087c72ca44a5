"""Tables with equality deletes, from many files: a reader must not miss one, and must not reach what is newer."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.compat.catalog_server import Server
from tests.harness.equality_deletes import delete_where_equal

ROWS = pa.schema([("id", pa.int64()), ("note", pa.string())])
FILES, PER_FILE = 6, 2_000


def rows(start: int, count: int, note: str) -> pa.Table:
    return pa.table({"id": range(start, start + count), "note": [note] * count}, schema=ROWS)


def test_duckdb_reads_them_and_what_came_after_them(tmp_path: Path) -> None:
    with Server(tmp_path, str(tmp_path / "warehouse")) as server:
        catalog = server.pyiceberg()
        catalog.create_namespace("db")
        table = catalog.create_table("db.kept", ROWS)
        for number in range(FILES):
            table.append(rows(number * PER_FILE, PER_FILE, "first"))
        count = FILES * PER_FILE
        delete_where_equal(table, "id", pa.array(range(0, count, 7), pa.int64()))
        # Some come back: the delete is older than they are.
        table.refresh()
        table.append(rows(0, 3, "again"))
        delete_where_equal(table.refresh(), "id", pa.array([1, count + 1], pa.int64()))
        expected = {number: "first" for number in range(count) if number % 7} | {0: "again", 2: "again"}
        del expected[1]
        # The row 2 was not deleted before it came again: both are there.
        found = server.duckdb().execute("SELECT id, note FROM lake.db.kept ORDER BY id, note").fetchall()
        assert len(found) == len(expected) + 1
        assert dict(reversed(found)) == expected
        assert [row for row in found if row[0] < 4] == [(0, "again"), (2, "again"), (2, "first"), (3, "first")]
        summed = server.duckdb().execute("SELECT sum(id)::BIGINT FROM lake.db.kept").fetchall()
        assert summed == [(pc.sum(pa.array(expected)).as_py() + 2,)]
