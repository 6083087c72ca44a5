"""What columns answer is what the documents answer, with columns of the types that the tables infer."""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest

from mainstem.documents.values import identical, order_key
from mainstem.feeds.documents import pushing
from mainstem.model.names import TableName
from mainstem.query.overlay import text_of, widened
from mainstem.sql import duckdb_name
from mainstem.tables.types import Kind
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN, DocumentOperation, columns_of
from mainstem.wire.mongo.batches import Kind as OperationKind
from mainstem.wire.mongo.frames import encode_document
from mainstem.wire.mongo.keys import key_text
from tests.harness.mongo_dirty import GROUPS, made
from tests.unit.doors.mongo_world import Lake, World, opened


class ColumnsLake(Lake):
    """One table with the rows of documents, as the overlay of a query makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.db = duckdb.connect()
        self.types: dict[str, str] = {}
        self.asked = 0

    def fill(self, documents: list[dict[str, Any]]) -> None:
        rows = [_row(each) for each in documents]
        # As in the tables: names that differ in case only are no two columns here.
        names = sorted({name for row in rows for name in row} - {"case", "_key", DOCUMENT_COLUMN})
        self.types = {name: widened(Kind.NULL, [r[name] for r in rows if r.get(name) is not None]) for name in names}
        listed = ", ".join(f"{duckdb_name(name)} {kind}" for name, kind in self.types.items())
        self.db.execute("ATTACH ':memory:' AS lake; CREATE SCHEMA lake.db")
        self.db.execute(f"CREATE TABLE lake.db.c ({listed}, _key VARCHAR)")
        marks = ", ".join(f"CAST(? AS {kind})" for kind in self.types.values())
        self.db.executemany(
            f"INSERT INTO lake.db.c VALUES ({marks}, ?)",
            [[*(text_of(row.get(name)) for name in names), key_text(row["_id"])] for row in rows],
        )

    async def columns(self, table: TableName) -> Mapping[str, str]:  # type: ignore[override]
        return {**self.types, "case": "BIGINT"}

    async def select(self, sql: str, **_: Any) -> list[tuple[Any, ...]]:  # type: ignore[override]
        self.asked += 1
        return self.db.execute(sql).fetchall()


def _row(document: dict[str, Any]) -> dict[str, Any]:
    data = encode_document(document)
    operation = DocumentOperation(
        kind=OperationKind.INSERT, database="db", collection="c", key="", id=b"", document=data
    )
    return columns_of(operation, {}) or {}


async def answers(world: World, pipeline: list[dict[str, Any]], **options: Any) -> list[Any]:
    reply = await world.run({"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 1_000}, **options})
    assert reply["ok"] == 1.0, reply
    found = reply["cursor"]["firstBatch"]
    return list(found) if any("$sort" in stage for stage in pipeline) else sorted(found, key=order_key)


async def test_columns_answer_as_documents_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "DOCUMENTS_MIN", 1)
    chance = random.Random(17)
    documents = [made(chance, number) for number in range(300)]
    lake = ColumnsLake()
    lake.fill(documents)
    async with opened(tmp_path, lake) as world:
        await world.run({"insert": "c", "documents": documents})
        pushed = 0
        for pipeline in GROUPS:
            expected = await answers(world, pipeline, hint={"$natural": 1})
            before = lake.asked
            got = await answers(world, pipeline)
            pushed += lake.asked > before
            assert identical(got, expected), (pipeline, got[:5], expected[:5])
        assert 12 <= pushed < len(GROUPS), pushed
        for filter in ({"long": 1 << 53}, {"text": "ü", "whole": 2.0}, {"mixed": 1}, {"nan": math.inf}):
            expected = await world.documents_of("c", filter)
            hinted = await world.run({"find": "c", "filter": filter, "hint": {"$natural": 1}})
            assert identical(expected, hinted["cursor"]["firstBatch"])
