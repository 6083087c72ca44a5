"""A server that was started with `--no-pipeline`, and commands that ask it: each says what there is, and why."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog import load_catalog

from mainstem.app.cli.main import main
from mainstem.app.serve import check_folder
from mainstem.client import CdcClient, insert
from mainstem.model import Invalid
from tests.contract.auth_tokens import AUTH, token
from tests.harness.kafka import KafkaServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    process = KafkaServer(tmp_path_factory.mktemp("without"))
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


def run(server: KafkaServer, *words: str, **environment: str) -> Result:
    asked = {"MAINSTEM_URL": server.url, "MAINSTEM_BOOTSTRAP": server.bootstrap, "MAINSTEM_TOKEN": "", "COLUMNS": "200"}
    return CliRunner().invoke(main, words, env=asked | environment)


def test_dead_letters_of_a_table_that_is_not_there_are_an_error(server: KafkaServer) -> None:
    for words in ("list", "replay --all"):
        command, *more = words.split()
        told = run(server, "dead-letters", command, "shop.none", *more)
        assert told.exit_code == 1, told.output
        assert "404" in told.output and "table does not exist. got=shop.none" in told.output
    tables = load_catalog("c", type="rest", uri=server.url, warehouse="lake")
    tables.create_namespace("shop")
    tables.create_table("shop.there", pa.schema([("id", pa.int64())]))
    there = run(server, "dead-letters", "list", "shop.there")
    assert there.exit_code == 0 and "shop.there: 0 dead letters, 0 replayed" in there.output, there.output


def test_a_flush_says_what_it_waits_for(server: KafkaServer) -> None:
    async def send() -> None:
        async with CdcClient(server.ws_url, source="s") as client:
            await (await client.send([insert("t", "1", {"a": 1})])).durable()

    asyncio.run(send())
    told = run(server, "flush", "--timeout", "0.2")
    assert told.exit_code == 1
    assert "the pipeline is off: what is accepted waits in the log until one runs; waiting up to 0.2 s" in told.stderr
    assert "they wait for a pipeline, which this server was started without; nothing is lost" in told.stderr
    answer = json.loads(told.stdout)
    assert (answer["complete"], answer["waitsFor"]) == (False, "a pipeline, which this server was started without")


def test_no_pipeline_is_none_that_is_down(server: KafkaServer) -> None:
    """The rule itself: tests/contract/test_alerts.py."""
    told = httpx.get(f"{server.url}/metrics").text
    names = [line.partition(" ")[0] for line in told.splitlines() if not line.startswith("#")]
    assert "mainstem_log_durable_position" in names and "mainstem_pipeline_up" not in names


def test_a_token_in_the_environment_is_told_only_where_it_is_asked_for(server: KafkaServer) -> None:
    for words in (("topics", "create", "clicks"), ("topics", "list"), ("groups", "list")):
        told = run(server, *words, MAINSTEM_TOKEN="of another server")
        assert told.exit_code == 0, told.output
    assert "clicks" in run(server, "topics", "list", MAINSTEM_TOKEN="of another server").output


def test_a_door_with_logins_takes_the_token_of_the_environment(tmp_path: Path) -> None:
    server = KafkaServer(tmp_path, more={"auth": AUTH}, token=token())
    asyncio.run(server.start())
    try:
        assert run(server, "topics", "create", "clicks", MAINSTEM_TOKEN=token()).exit_code == 0
        assert "clicks" in run(server, "topics", "list", MAINSTEM_TOKEN=token()).output
        wrong = run(server, "topics", "list", MAINSTEM_TOKEN="of another server")
        assert wrong.exit_code == 1 and "clicks" not in wrong.output
        assert run(server, "topics", "list").exit_code == 1
    finally:
        asyncio.run(server.stop())


def test_a_data_folder_that_duckdb_cannot_name_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="the data folder cannot be used: DuckDB reads no path with a double quote"):
        check_folder(tmp_path / 'a "b" c')
    assert not (tmp_path / 'a "b" c').exists()
    check_folder(tmp_path / "a 'b' c")
