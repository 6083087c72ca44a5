"""Deletion vectors that share a file, which DuckDB would misread: refused by the engine, sent to Spark by the route."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from mainstem.model import Invalid
from mainstem.query.engine import EngineSettings, QueryEngine, QueryRequest
from mainstem.query.plan import Planner, PlanRequest
from mainstem.query.route import EngineName, Reason, Router, RouteSettings
from tests.unit.query.folder_lake import FolderCatalog, FolderLake


class DeleteManifest(ManifestWriterV2):
    """What pyiceberg does not write: a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def add_vectors(catalog: FolderCatalog, table: Table, files: list[str]) -> None:
    """Commit, by hand, a snapshot of format 3 with one deletion vector per entry, each in the file named."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    folder = Path(table.location()) / "metadata"
    output = table.io.new_output(str(folder / "deletes.avro"))
    with DeleteManifest(table.spec(), table.schema(), output, snapshot.snapshot_id, "deflate") as writer:
        for file in files:
            vector = DataFile.from_args(
                content=DataFileContent.POSITION_DELETES,
                file_path=f"{table.location()}/data/{file}",
                file_format=FileFormat.PUFFIN,
                partition=Record(),
                record_count=1,
                file_size_in_bytes=10,
                spec_id=0,
            )
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot.snapshot_id, sequence_number=2, data_file=vector
            )
            writer.add_entry(entry)
    listed = [*read_manifest_list(table.io.new_input(snapshot.manifest_list)), writer.to_manifest_file()]
    path = str(folder / "snap.avro")
    with write_manifest_list(2, table.io.new_output(path), snapshot.snapshot_id, None, 2, "deflate") as manifests:
        manifests.add_manifests(listed)
    name = ("default", "t")
    document: dict[str, Any] = json.loads(Path(catalog.locations[name]).read_bytes())
    document["format-version"] = 3
    document["next-row-id"] = 0
    document["snapshots"][-1]["manifest-list"] = path
    document["snapshots"][-1]["summary"]["total-delete-files"] = str(len(files))
    Path(catalog.locations[name]).write_text(json.dumps(document))


@pytest.mark.parametrize(("files", "shared"), [(["a.puffin", "a.puffin"], True), (["a.puffin", "b.puffin"], False)])
async def test_vectors_that_share_a_file(tmp_path: Path, files: list[str], shared: bool) -> None:
    catalog = FolderCatalog(tmp_path)
    table = catalog.create_table(("default", "t"), pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    add_vectors(catalog, catalog.load_table(("default", "t")), files)
    engine = QueryEngine(FolderLake(catalog), EngineSettings(folder=f"{tmp_path}/"))
    planner = Planner(engine.binder, engine.statements)
    route = await Router(planner, RouteSettings()).route(PlanRequest(sql="SELECT * FROM t"))
    assert (route.engine is EngineName.SPARK) is shared
    assert (route.reason is Reason.DELETION_VECTORS) is shared
    try:
        with pytest.raises(Exception) as caught:
            async with engine.open(QueryRequest(sql="SELECT * FROM t")) as running:
                assert [batch async for batch in running.batches()]
        refused = isinstance(caught.value, Invalid) and caught.value.reason == "needs_spark"
        assert refused is shared
    finally:
        await engine.close()
