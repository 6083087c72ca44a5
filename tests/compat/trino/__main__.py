"""Let Trino read what the other engines wrote, and write what they then read: on the local disk and on S3."""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyiceberg.types import LongType

from mainstem.client.delta import create_storage
from tests.compat.catalog_server import Server
from tests.compat.trino import delta
from tests.compat.trino.server import TrinoServer
from tests.harness.equality_deletes import delete_where_equal
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY, S3Server

ROWS = pa.schema([("id", pa.int64()), ("note", pa.string())])


def properties(server: Server, s3: S3Server | None) -> dict[str, str]:
    """A catalog of Trino's."""
    found = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": server.url,
        "iceberg.rest-catalog.warehouse": "lake",
    }
    return found | files(s3)


def files(s3: S3Server | None) -> dict[str, str]:
    """How Trino reaches files: those of this machine, or an S3 server's."""
    if s3 is None:
        return {"fs.hadoop.enabled": "true"}
    # Trino takes keys from a catalog only together with a session token, which only a token service gives out.
    return {
        "fs.native-s3.enabled": "true",
        "s3.endpoint": s3.url,
        "s3.region": REGION,
        "s3.path-style-access": "true",
        "s3.aws-access-key": ACCESS_KEY,
        "s3.aws-secret-key": SECRET_KEY,
    }


def check(trino: TrinoServer, lake: str, server: Server) -> None:
    """One table of the others', read and changed by Trino; one of Trino's, read and changed by the others."""
    iceberg, duck = server.pyiceberg(), server.duckdb()
    iceberg.create_namespace("db")
    table = iceberg.create_table("db.theirs", ROWS)
    table.append(pa.table({"id": list(range(100)), "note": [f"n{n}" for n in range(100)]}, schema=ROWS))
    with table.update_schema() as update:
        update.add_column("more", LongType())
    table.append(pa.table({"id": [100], "note": ["n100"], "more": [1]}))
    duck.execute("DELETE FROM lake.db.theirs WHERE id % 10 = 3")
    name = f"{lake}.db.theirs"
    assert trino.run(f"SELECT count(*), sum(id), sum(more) FROM {name}") == [(91, 5050 - 480, 1)]
    first = iceberg.load_table("db.theirs").snapshots()[0].snapshot_id
    assert trino.run(f"SELECT count(*) FROM {name} FOR VERSION AS OF {first}") == [(100,)]
    trino.run(f"UPDATE {name} SET note = 'changed' WHERE id = 4")
    trino.run(f"DELETE FROM {name} WHERE id < 2")
    trino.run(f"INSERT INTO {name} VALUES (200, 'of Trino', 2)")
    expected = [(90, 5050 - 480 - 1 + 200, 3)]
    assert (
        duck.execute("SELECT count(*), sum(id)::BIGINT, sum(more)::BIGINT FROM lake.db.theirs").fetchall() == expected
    )
    assert trino.run(f"SELECT count(*), sum(id), sum(more) FROM {name}") == expected
    found = iceberg.load_table("db.theirs").scan(row_filter="id in (4, 200)").to_arrow().sort_by("id").to_pylist()
    assert [row["note"] for row in found] == ["changed", "of Trino"]

    kept = iceberg.create_table("db.kept", ROWS)
    for start in range(0, 3_000, 1_000):
        numbers = list(range(start, start + 1_000))
        kept.append(pa.table({"id": numbers, "note": ["first"] * 1_000}, schema=ROWS))
    delete_where_equal(kept, "id", pa.array(range(0, 3_000, 7), pa.int64()))
    kept.refresh().append(pa.table({"id": [0], "note": ["again"]}, schema=ROWS))
    left = [(sum(1 for number in range(3_000) if number % 7) + 1, sum(number for number in range(3_000) if number % 7))]
    assert trino.run(f"SELECT count(*), sum(id) FROM {lake}.db.kept") == left
    iceberg.drop_table("db.kept")

    trino.run(f"CREATE SCHEMA {lake}.made")
    trino.run(f"CREATE TABLE {lake}.made.t WITH (partitioning = ARRAY['kind']) AS SELECT id, note AS kind FROM {name}")
    trino.run(f"ALTER TABLE {lake}.made.t ADD COLUMN size DOUBLE")
    trino.run(f"INSERT INTO {lake}.made.t VALUES (300, 'x', 0.5)")
    assert iceberg.load_table("made.t").scan().to_arrow().num_rows == 91
    duck.execute("INSERT INTO lake.made.t VALUES (301, 'y', 1.5)")
    assert trino.run(f"SELECT sum(size) FROM {lake}.made.t") == [(2.0,)]
    trino.run(f"CREATE VIEW {lake}.made.v AS SELECT id FROM {lake}.made.t WHERE size > 1")
    assert trino.run(f"SELECT id FROM {lake}.made.v") == [(301,)]
    assert iceberg.list_views("made") == [("made", "v")]
    assert sorted(trino.run(f"SHOW TABLES FROM {lake}.made")) == [("t",), ("v",)]
    trino.run(f"DROP VIEW {lake}.made.v")
    trino.run(f"DROP TABLE {lake}.made.t")
    trino.run(f"DROP SCHEMA {lake}.made")
    assert iceberg.list_namespaces() == [("db",)]


def main() -> int:
    """0 if every engine found what the others wrote."""
    with tempfile.TemporaryDirectory(prefix="mainstem-trino-") as temporary:
        folder = Path(temporary)
        with (
            S3Server(folder / "s3") as s3,
            Server(folder / "one", (folder / "warehouse").as_uri()) as disk,
            Server(folder / "two", f"{s3.make_bucket('trino')}/lake", s3.io()) as objects,
            TrinoServer(
                folder / "trino",
                {
                    "disk": properties(disk, None),
                    "s3": properties(objects, s3),
                    "delta_disk": delta.on_disk(folder),
                    "delta_s3": delta.properties(f"{s3.make_bucket('trino-tables')}/list", files(s3)),
                },
            ) as trino,
        ):
            for lake, server in (("disk", disk), ("s3", objects)):
                check(trino, lake, server)
                print(f"Trino on {lake}: reads, writes, evolves; pyiceberg and DuckDB agree", flush=True)
            keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
            bucket = s3.make_bucket("trino-delta")
            for lake, storage in (
                ("delta_disk", create_storage(str(folder / "delta"))),
                ("delta_s3", create_storage(f"{bucket}/lake", endpoint=s3.url, region=REGION, **keys)),
            ):
                print(f"Trino on {lake}: {', '.join(delta.check(trino, lake, storage))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
