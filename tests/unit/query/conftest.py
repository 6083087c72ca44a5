"""Real Iceberg tables on local files, and an engine over them."""

import datetime as dt
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.query.engine import EngineSettings, QueryEngine
from mainstem.query.sandbox.processes import Sandboxes
from mainstem.query.sandbox.session import SandboxSettings
from tests.unit.query.folder_lake import FolderCatalog, FolderLake

ROWS = 1_000


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> FolderCatalog:
    """default.orders (5 files, one row deleted), default.empty, and a namespace of somebody else."""
    folder: Path = tmp_path_factory.mktemp("warehouse")
    catalog = FolderCatalog(folder)
    start = dt.datetime(2024, 1, 1)
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "name": [f"n{number:04d}" for number in range(ROWS)],
            "placed": pa.array([start + dt.timedelta(hours=number) for number in range(ROWS)], pa.timestamp("us")),
            "price": pa.array([number / 4 for number in range(ROWS)], pa.float64()),
        }
    )
    orders = catalog.create_table(("default", "orders"), schema=rows.schema)
    for part in range(5):
        orders.append(rows.slice(part * ROWS // 5, ROWS // 5), snapshot_properties={"mainstem.position": str(part + 1)})
    orders.delete("id = 7")
    catalog.create_table(("default", "empty"), schema=rows.schema)
    secret = catalog.create_table(("other", "secrets"), schema=pa.schema([("word", pa.string())]))
    secret.append(pa.table({"word": ["hidden"]}))
    return catalog


SANDBOX = SandboxSettings(memory_bytes_max=256 * 1024 * 1024, threads=1)


@pytest.fixture(scope="session")
def sandboxes(catalog: FolderCatalog) -> Iterator[Sandboxes]:
    """Real processes, for all engines of these tests."""
    sandboxes = Sandboxes(SANDBOX, f"{catalog.folder}/", 3)
    yield sandboxes
    sandboxes.close()


@pytest.fixture
async def engine(catalog: FolderCatalog, sandboxes: Sandboxes) -> AsyncIterator[QueryEngine]:
    """Two at a time, two more waiting, in 256 MB each."""
    settings = EngineSettings(folder=f"{catalog.folder}/", running_max=2, waiting_max=2, sandbox=SANDBOX)
    engine = QueryEngine(FolderLake(catalog), settings, sandboxes=sandboxes)
    yield engine
    await engine.close()
