"""Reading a table by its folder alone, without the catalog, as people do with files on their own disk."""

from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

from mainstem.catalog.files import HINT
from tests.compat.catalog_server import Server


def test_duckdb_scans_the_folder_of_a_table(tmp_path: Path) -> None:
    with Server(tmp_path, str(tmp_path / "warehouse")) as server:
        catalog = server.pyiceberg()
        catalog.create_namespace("shop")
        rows = pa.table({"a": pa.array([1, 2], pa.int64())})
        table = catalog.create_table("shop.orders", rows.schema)
        duck = duckdb.connect()
        for name in ("avro", "iceberg"):
            import_extension(name, con=duck)
            duck.load_extension(name)

        def scanned() -> list[int]:
            found = duck.execute(f"SELECT a FROM iceberg_scan('{table.location()}') ORDER BY 1").fetchall()
            return [value for (value,) in found]

        for commits in (1, 2, 3):
            table.append(rows)
            assert scanned() == sorted([1, 2] * commits)
        # A crash between a commit and its hint leaves an older one: still a version of the table.
        hint = Path(table.location()) / HINT
        old = hint.read_text()
        table.append(rows)
        hint.write_text(old)
        assert len(scanned()) == 6
        table.append(rows)
        assert len(scanned()) == 10
        # One that is registered, and none that is left behind by a purge.
        location = table.refresh().metadata_location
        catalog.drop_table("shop.orders")
        hint.unlink()
        catalog.register_table("shop.orders", location)
        assert len(scanned()) == 10
        catalog.purge_table("shop.orders")
        assert not hint.exists() and not hint.parent.exists()
