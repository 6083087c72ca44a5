"""A warehouse on a real S3 server: other engines commit and read through the catalog, and so do queries in the gateway.

That the pipeline writes there, and what happens when the store is away, is in `tests/faults/test_load_on_s3.py`.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.spark.objectstore import duckdb_secret, spark_properties
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import connect_duckdb
from tests.harness.seaweed import S3Server


@pytest.fixture
async def server(tmp_path: Path, s3_server: S3Server) -> AsyncIterator[ServerProcess]:
    catalog = CatalogSettings(
        warehouse=s3_server.make_bucket("compat") + "/tables", io=s3_server.io(), vend_credentials=True
    )
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), catalog=catalog)
    async with ServerProcess(tmp_path, config) as process:
        yield process


async def test_tables_on_s3_are_written_and_read(server: ServerProcess, s3_server: S3Server) -> None:
    catalog = RestCatalog("lake", uri=server.url, **s3_server.io())
    catalog.create_namespace("s3")
    rows = pa.table({"id": list(range(1000)), "name": [f"n{i}" for i in range(1000)]})
    table = catalog.create_table("s3.people", schema=rows.schema)
    table.append(rows)
    assert table.location().startswith("s3://compat/tables/")
    lake = connect_duckdb(server.url)
    assert lake.execute("SELECT count(*), sum(id) FROM lake.s3.people").fetchall() == [(1000, 499500)]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        answer = await http.post("/v1/query", json={"sql": "SELECT count(*) AS n, max(name) AS m FROM s3.people"})
        assert answer.status_code == 200, answer.text
        assert "n999" in answer.text
        # The keys are the gateway's: no query sees them, and no other place of the store can be read with them.
        for sql in (
            "SELECT * FROM duckdb_secrets()",
            "SELECT * FROM read_parquet('s3://compat/elsewhere/x.parquet')",
            "SELECT * FROM which_secret('s3://compat/tables/x', 's3')",
        ):
            refused = await http.post("/v1/query", json={"sql": sql})
            assert refused.status_code in (400, 403), (sql, refused.text)
            assert s3_server.io()["s3.secret-access-key"] not in refused.text


def test_nothing_is_said_of_a_store_where_the_warehouse_is_a_folder() -> None:
    assert spark_properties(CatalogSettings()) == {}
    assert duckdb_secret(CatalogSettings(warehouse="/var/lake")) == ()


def test_a_quote_in_a_key_stays_in_the_key() -> None:
    settings = CatalogSettings(warehouse="s3://b/w", io={"s3.access-key-id": "a'b", "s3.endpoint": "http://h:1"})
    (statement,) = duckdb_secret(settings)
    assert "KEY_ID 'a''b'" in statement and "ENDPOINT 'h:1'" in statement and "USE_SSL 'false'" in statement
