"""Trino on Delta tables: it reads what our client and our pipeline write, and we read what it makes of them."""

import base64
import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.client.delta import DeltaTable, LocalStorage, Storage
from mainstem.formats.delta.files.engine import PLACES
from mainstem.formats.delta.transaction import Replacement
from mainstem.model.names import TableName
from mainstem.model.position import UNNAMED, LogPosition
from mainstem.pipeline.commit.marks import Marks
from mainstem.pipeline.delta.partitions import partition_columns
from mainstem.pipeline.delta.table import DeltaLake, DeltaLakeTable
from mainstem.runtime.clock import SystemClock
from mainstem.tables.evolution import plan_evolution
from mainstem.tables.layout import HISTORY_COLUMNS, STATE_COLUMNS
from mainstem.tables.settings import TableSettings
from tests.compat.test_delta_engines import FEATURES
from tests.compat.trino.server import TrinoServer

KEYS = 2_000


def on_disk(folder: Path) -> dict[str, str]:
    """A catalog over a folder of this machine, which is the root of Trino's own names."""
    return properties("local:///tables", {"fs.native-local.enabled": "true", "local.location": str(folder)})


def properties(metastore: str, files: Mapping[str, str]) -> dict[str, str]:
    """A catalog of Trino's whose list of tables is a folder."""
    return {
        "connector.name": "delta_lake",
        "hive.metastore": "file",
        "hive.metastore.catalog.dir": metastore,
        "delta.register-table-procedure.enabled": "true",
        **files,
    }


def check(trino: TrinoServer, lake: str, storage: Storage) -> list[str]:
    """Every feature of our writers, read by Trino; then Trino's own writes, read by us. Returns what was tried."""
    trino.run(f"CREATE SCHEMA {lake}.ours WITH (location = '{_url(storage, 'ours')}')")
    for make in FEATURES:
        table = DeltaTable(storage, make.__name__)
        make(table)
        _read_alike(trino, _registered(trino, lake, table), table)
    for table in _of_the_pipeline(storage):
        _read_alike(trino, _registered(trino, lake, table), table)
    done = [*(make.__name__ for make in FEATURES), "state", "history"]
    if isinstance(storage, LocalStorage):
        # Trino writes no Delta into a folder, which has no conditional writes for it.
        return done
    _written_on(trino, lake, storage)
    _made_by_trino(trino, lake, storage)
    return [*done, "written on", "made by Trino"]


def _url(storage: Storage, name: str) -> str:
    """Where a table is, as Trino says it."""
    if isinstance(storage, LocalStorage):
        return f"local:///{storage.folder.name}/{name}"
    return storage.uri(name)


def _registered(trino: TrinoServer, lake: str, table: DeltaTable) -> str:
    name = table.name.replace("/", "_")
    trino.run(f"CALL {lake}.system.register_table('ours', '{name}', '{_url(table.storage, table.name)}')")
    return f"{lake}.ours.{name}"


def _read_alike(trino: TrinoServer, name: str, table: DeltaTable) -> None:
    """Row for row and value for value, and by a filter that can skip."""
    names = table.schema.names
    listed = ", ".join(f'"{column}"' for column in names)
    found = trino.run(f"SELECT {listed} FROM {name}")
    expected = [tuple(map(_as_trino, row.values())) for row in table.query_arrow().to_pylist()]
    assert len(expected) > 100
    assert sorted(found, key=repr) == sorted(expected, key=repr), name
    number = "n" if "n" in names else "_position"
    counted = len(table.query({number: {"$gte": 100, "$lt": 120}}))
    assert trino.run(f"SELECT count(*) FROM {name} WHERE {number} >= 100 AND {number} < 120") == [(counted,)]


def _as_trino(value: Any) -> Any:
    """A value as Trino's protocol spells it. Its moments of Delta have milliseconds."""
    match value:
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(" ", "milliseconds") + " UTC"
        case dt.date() | Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return value


def _of_the_pipeline(storage: Storage) -> list[DeltaTable]:
    """A state table whose rows were replaced twice and whose columns grew, and a history; as the pipeline has them."""
    lake = DeltaLake(storage, SystemClock())
    state, history = TableName("shop", "orders"), TableName("shop", "orders_history")
    settings = TableSettings.from_document(
        {"columns": {"country": "string", "n": "long", "day": "date"}, "partition": ["country", "month(day)"]}
    )
    plan = plan_evolution((), {}, settings)
    declared = [(column.stored, column.type) for column in plan.columns]
    partition = partition_columns(settings.partition or (), {**dict(declared), **dict(STATE_COLUMNS)})
    table = lake.create(state, [*declared, *STATE_COLUMNS], of_rows=plan.columns, partition=partition, vectors=True)
    _append(table, _state_rows(range(KEYS), 1), _marks(KEYS, 1))
    for turn in (2, 3):
        keys = range(0, KEYS, turn + 1)
        _take_out(table, keys)
        _append(table, _state_rows(keys, turn), _marks(KEYS * turn, turn))
    _take_out(table, range(5, KEYS, 7))
    log = lake.create(history, HISTORY_COLUMNS)
    _append(log, _history_rows(), _marks(KEYS, 1))
    return [lake.table(state), lake.table(history)]


def _append(table: DeltaLakeTable, rows: pa.Table, marks: Marks) -> None:
    """Rows and marks in one commit, wherever the table is."""
    table._commit(Replacement([], PLACES.empty_table(), rows), marks, "WRITE")


def _state_rows(keys: range, turn: int) -> pa.Table:
    count = len(keys)
    return pa.table(
        {
            "country": pa.array([["de", "a/b c", None][key % 3] for key in keys], pa.string()),
            "n": pa.array([key * turn for key in keys], pa.int64()),
            "day": pa.array([dt.date(2026, 1 + key % 12, 1) for key in keys], pa.date32()),
            "_key": pa.array([str(key) for key in keys], pa.string()),
            "_hlc": pa.array([turn] * count, pa.int64()),
            "_source": pa.array(["s"] * count, pa.string()),
            "_position": pa.array(list(keys), pa.int64()),
            "_clocks": pa.nulls(count, pa.string()),
            "day_month": pa.array([f"2026-{1 + key % 12:02d}" for key in keys], pa.string()),
        }
    )


def _marks(position: int, hlc_max: int) -> Marks:
    return Marks({UNNAMED: LogPosition(position)}, hlc_max)


def _take_out(table: DeltaLakeTable, keys: range) -> None:
    """By deletion vectors, as the pipeline does."""
    table.lake.table(table.name).delete({"_key": {"$in": [str(key) for key in keys]}})
    table.refresh()


def _history_rows() -> pa.Table:
    moment = pa.array([dt.datetime(2026, 1, 1, 0, 0, key % 60, tzinfo=dt.UTC) for key in range(KEYS)])
    columns = {
        "_position": pa.array(range(KEYS), pa.int64()),
        "_op": pa.array(["update"] * KEYS),
        "_key": pa.array([str(key) for key in range(KEYS)]),
        "_columns": pa.array(['{"n":1}'] * KEYS),
        "_time": moment.cast(pa.timestamp("us", "UTC")),
    }
    return pa.table(columns)


def _written_on(trino: TrinoServer, lake: str, storage: Storage) -> None:
    """Trino changes a table of ours, and we go on after it."""
    table = DeltaTable(storage, "both")
    table.write([{"_id": str(n), "n": n} for n in range(1_000)], properties={"delta.enableDeletionVectors": "true"})
    table.delete({"n": {"$mod": [10, 3]}})
    name = _registered(trino, lake, table)
    trino.run(f"DELETE FROM {name} WHERE n % 10 = 4")
    trino.run(f"UPDATE {name} SET n = n + 10000 WHERE n < 10")
    trino.run(f"INSERT INTO {name} VALUES ('new', 5000)")
    trino.run(
        f"MERGE INTO {name} t USING (VALUES ('15', -1), ('more', -2)) AS s(_id, n) ON t._id = s._id"
        " WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT VALUES (s._id, s.n)"
    )
    expected = {str(n): n + 10_000 if n < 10 else n for n in range(1_000) if n % 10 not in (3, 4)}
    expected |= {"new": 5_000, "15": -1, "more": -2}
    assert {row["_id"]: row["n"] for row in table.query()} == expected
    table.upsert([{"_id": "new", "n": 5_001}])
    assert trino.run(f"SELECT count(*), sum(n) FROM {name}") == [(len(expected), sum(expected.values()) + 1)]


def _made_by_trino(trino: TrinoServer, lake: str, storage: Storage) -> None:
    """A table of Trino's own: read, found in, upserted."""
    trino.run(
        f"CREATE TABLE {lake}.ours.theirs WITH (location = '{_url(storage, 'theirs')}',"
        " partitioned_by = ARRAY['p'], change_data_feed_enabled = true) AS"
        " SELECT n, 'row ' || CAST(n AS varchar) AS s, TIMESTAMP '2026-01-01 12:00:00.000 UTC' AS t,"
        " CAST(n AS decimal(12, 2)) AS m, CAST(ROW(n, 'x') AS ROW(a integer, b varchar)) AS o, n % 3 AS p"
        " FROM UNNEST(sequence(1, 300)) AS q(n)"
    )
    table = DeltaTable(storage, "theirs")
    assert len(table.query()) == 300
    (row,) = table.query({"n": 7})
    assert (row["s"], row["m"], row["o"], row["p"]) == ("row 7", Decimal("7.00"), {"a": 7, "b": "x"}, 1)
    assert row["t"] == dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    assert table.find({"p": 2}).statistics.files_skipped > 0
    assert table.delete({"n": {"$gt": 200}}).deleted == 100
    assert trino.run(f"SELECT count(*) FROM {lake}.ours.theirs") == [(200,)]
