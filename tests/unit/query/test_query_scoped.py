"""What the server reads for others opens the folders of the tables that it names, and nothing else."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from mainstem.app.mongo import LakeTables
from mainstem.app.sync.history import LakeHistory
from mainstem.model import Denied, LogPosition, TableName
from mainstem.query.dispatch import Dispatcher
from mainstem.query.engine import QueryEngine
from mainstem.query.plan import Planner
from mainstem.query.route import RouteSettings
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

STATE = ["_key", "_hlc", "_source", "_position", "_clocks", "_op", "_columns", "_before", "_sequence", "_id"]


@pytest.fixture
def thief(catalog: FolderCatalog) -> Iterator[TableName]:
    """A state and its history, both with a file that is another namespace's table's."""
    numbers = ("_hlc", "_position", "_sequence")
    columns = {name: pa.array([1], pa.int64()) if name in numbers else pa.array(["x"]) for name in STATE}
    rows = pa.table(
        {**columns, "_clocks": pa.array([None], pa.string()), "_op": ["update"], "_columns": ['{"a": "hidden"}']}
    )
    secret = catalog.create_table(("elsewhere", "kept"), schema=rows.schema)
    secret.append(rows)
    (stolen,) = [task.file.file_path for task in secret.scan().plan_files()]
    names = [("thieves", "own"), ("thieves", "own_history")]
    for name in names:
        catalog.create_table(name, schema=rows.schema).add_files([stolen], {"mainstem.position": "9"})
    yield TableName("thieves", "own")
    # Other tests share the lake, and list its tables.
    for each in (*names, ("elsewhere", "kept")):
        del catalog.locations[each]


async def test_no_history_reads_another_tables_files(
    catalog: FolderCatalog, engine: QueryEngine, thief: TableName
) -> None:
    history = LakeHistory(FolderLake(catalog), engine)
    after, through = LogPosition(0), LogPosition(9)
    with pytest.raises(Denied):
        await history.page("thieves", after=after, through=through, limit=10)
    with pytest.raises(Denied):
        await history.of_table(thief, after=after, through=through, limit=10)
    # Every start asks for these, of all tables: it goes on without that one.
    found = [ids async for ids in history.identified(LogPosition(9)) if ids]
    assert found == []


async def test_no_collection_reads_another_tables_files(
    catalog: FolderCatalog, engine: QueryEngine, thief: TableName
) -> None:
    dispatcher = Dispatcher(engine, Planner(engine.binder, engine.statements), RouteSettings())
    tables = LakeTables(FolderLake(catalog), engine, dispatcher, lambda _: LogPosition(9))
    with pytest.raises(Denied):
        [page async for page in tables.rows(thief)]
    sql = "SELECT _columns FROM lake.thieves.own"
    assert await tables.select(sql, latest=False, rows_max=10, timeout_s=30.0) is None
