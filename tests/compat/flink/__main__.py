"""Let Flink read what the other engines wrote, and write what they then read: on the local disk and on S3."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.types import LongType

from tests.compat.catalog_server import Server
from tests.compat.flink.process import Flink
from tests.harness.seaweed import S3Server

ROWS = pa.schema([("id", pa.int64()), ("note", pa.string())])


def attach(flink: Flink, lake: str, server: Server) -> None:
    """A catalog of Flink's. What it needs to reach a store it is told by ours with each table, keys included."""
    options = {
        "type": "iceberg",
        "catalog-type": "rest",
        "uri": server.url,
        "warehouse": "lake",
        "cache-enabled": "false",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
    }
    if server.catalog.warehouse.startswith("s3:"):
        options["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    flink.run(f"CREATE CATALOG {lake} WITH ({listed})")


def check(flink: Flink, lake: str, server: Server) -> None:
    """One table of the others', read and appended to by Flink; one of Flink's, read and changed by the others."""
    iceberg, duck = server.pyiceberg(), server.duckdb()
    iceberg.create_namespace("db")
    table = iceberg.create_table("db.theirs", ROWS)
    table.append(pa.table({"id": list(range(100)), "note": [f"n{n}" for n in range(100)]}, schema=ROWS))
    with table.update_schema() as update:
        update.add_column("more", LongType())
    table.append(pa.table({"id": [100], "note": ["n100"], "more": [1]}))
    duck.execute("DELETE FROM lake.db.theirs WHERE id % 10 = 3")
    name = f"{lake}.db.theirs"
    assert flink.run(f"SELECT COUNT(*), SUM(id), SUM(more) FROM {name}") == [(91, 5050 - 480, 1)]
    first = iceberg.load_table("db.theirs").snapshots()[0].snapshot_id
    assert flink.run(f"SELECT COUNT(*) FROM {name} /*+ OPTIONS('snapshot-id'='{first}') */") == [(100,)]
    flink.run(f"INSERT INTO {name} VALUES (200, 'of Flink', 2)")
    expected = [(92, 5050 - 480 + 200, 3)]
    assert (
        duck.execute("SELECT count(*), sum(id)::BIGINT, sum(more)::BIGINT FROM lake.db.theirs").fetchall() == expected
    )
    assert iceberg.load_table("db.theirs").scan(row_filter="id = 200").to_arrow()["note"].to_pylist() == ["of Flink"]

    flink.run(f"CREATE DATABASE {lake}.made")
    flink.run(f"CREATE TABLE {lake}.made.t (id BIGINT, kind STRING) PARTITIONED BY (kind)")
    flink.run(f"INSERT INTO {lake}.made.t SELECT id, note FROM {name}")
    assert iceberg.load_table("made.t").scan().to_arrow().num_rows == 92
    duck.execute("INSERT INTO lake.made.t VALUES (301, 'y')")
    duck.execute("DELETE FROM lake.made.t WHERE id < 10")
    assert flink.run(f"SELECT COUNT(*), MAX(id) FROM {lake}.made.t") == [(92 - 9 + 1, 301)]
    flink.run(f"ALTER TABLE {lake}.made.t SET ('owner' = 'flink')")
    assert iceberg.load_table("made.t").properties["owner"] == "flink"
    flink.run(f"DROP TABLE {lake}.made.t")
    flink.run(f"DROP DATABASE {lake}.made")
    assert iceberg.list_namespaces() == [("db",)]


def main(wanted: Sequence[str] = ()) -> int:
    """0 if every engine found what the others wrote. `disk` or `s3` asks for one of them only."""
    with tempfile.TemporaryDirectory(prefix="mainstem-flink-") as temporary:
        folder = Path(temporary)
        with (
            S3Server(folder / "s3") as s3,
            Server(folder / "one", str(folder / "warehouse")) as disk,
            Server(folder / "two", f"{s3.make_bucket('flink')}/lake", s3.io()) as objects,
            Flink(folder / "flink") as flink,
        ):
            for lake, server in (("disk", disk), ("s3", objects)):
                if wanted and lake not in wanted:
                    continue
                attach(flink, lake, server)
                check(flink, lake, server)
                print(f"Flink on {lake}: reads, writes, creates; pyiceberg and DuckDB agree", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
