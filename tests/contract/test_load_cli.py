"""`mainstem load` on a real server: every kind of file, a folder, and a load that is run again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mainstem.app.cli.main import main
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client.direct import load_direct
from mainstem.client.loading import Target


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    process = ServerProcess(tmp_path_factory.mktemp("load"), config)
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


def durable(server: ServerProcess) -> int:
    return int(asyncio.run(server.status())["log"]["durable"])


def test_a_folder_is_loaded_once_however_often(server: ServerProcess, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(120_000), "zip": ["01234"] * 120_000}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text('id,zip\n200000,"01 2"\n200001,\n')
    (tmp_path / "c.jsonl").write_text('{"id": 300000}\n\n{"id": 300001, "zip": null}\n')
    (tmp_path / "readme.txt").write_text("not loaded")
    before = durable(server)
    words = ["load", str(tmp_path), "--table", "shop.places", "--mode", "append", "--url", server.url]
    for _ in range(2):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert "120,004 rows of 3 file(s)" in done.output
        assert durable(server) - before == 120_004


def test_a_load_by_spark_says_that_there_is_no_spark(server: ServerProcess) -> None:
    place = server.data / "load"
    place.mkdir()
    (place / "a.csv").write_text("id\n1\n")
    told = next(load_direct(str(place), Target(server.url, "shop.direct", key=("id",))))
    assert told.what == "waits for Spark, which is off"


def test_what_is_wrong_is_said_in_one_line(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id,x\n1,2\n3\n")
    (tmp_path / "array.json").write_text('[{"id": 1}]')
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "nokey.jsonl").write_text('{"id": 1}\n{"price": 2}\n')
    for name, words in (
        ("bad.csv", "bad.csv"),
        ("array.json", "object per line"),
        ("note.txt", "can be loaded"),
        ("nokey.jsonl", "nokey.jsonl"),
    ):
        given = ["load", str(tmp_path / name), "--table", "shop.bad", "--key", "id", "--url", server.url]
        done = CliRunner().invoke(main, given)
        assert done.exit_code == 1 and words in done.output.replace("\n", ""), done.output
