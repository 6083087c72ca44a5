"""The code of the README and the guides, run as it stands there: what a reader pastes must work.

Each page has a folder of its own, and all have one server with every door open; the addresses in them are replaced by
that server's. The `python` blocks of a page are one program; then its `sh` blocks run under `set -e`, in their order,
without the lines that start a server or install something; then its `sql` blocks, by DuckDB. `toml` blocks must be
configurations that the server takes. A block that is not run here is in `ELSEWHERE`, with the test that runs it, or
what it is.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
import pytest_asyncio
from duckdb_extensions import import_extension

from mainstem.app.config import Config, LogConfig, MongoConfig, PipelineConfig, ServerConfig, load_config
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "clients" / "python" / "README.md", *(ROOT / "docs" / "guides").glob("*.md")])
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_RUN_HERE = {"python", "sh", "sql", "toml", "json"}
_CONNECT = "tests/compat/test_kafka_connect.py has the same settings"
_SERVER = "tests/compat/test_debezium_server.py"
# By page and how the block begins.
ELSEWHERE = {
    ("README.md", ".venv/bin/pyspark"): "tests/compat/test_guides.py",
    ("README.md", " producers, apps"): "a drawing",
    ("catalog.md", "make compat"): "runs of an hour",
    ("catalog.md", "mainstem catalog diff"): "of snapshots that are made up; tests/compat/test_catalog_commands.py",
    ("debezium.md", "debezium.sink"): _SERVER,
    ("debezium.md", "debezium.source"): _SERVER,
    ("debezium.md", "SELECT _key, _op"): _SERVER,
    ("deploying.md", "make wheels"): "needs Docker; tests/compat/test_deploy.py starts the same without it",
    ("deploying.md", "kubectl"): "needs Kubernetes; tests/compat/test_deploy.py checks its files",
    ("kafka-connect.md", "bootstrap.servers"): _CONNECT,
    ("kafka-connect.md", "name=shop"): _CONNECT,
    ("kafka-connect.md", "SELECT id"): "tests/compat/test_kafka_connect.py asks the same table",
    ("kafka.md", "# The connector's own settings"): "a part of kafka-connect.md's file",
    ("several-machines.md", "mainstem migrate"): "needs a Kafka; tests/faults/test_migrate_doors.py",
    ("spark-cluster.md", "$SPARK_HOME"): "needs machines; tests/faults/test_spark_cluster.py has a cluster on this one",
    ("spark-cluster.md", "python -m venv"): "packs an environment of a gigabyte",
}  # fmt: skip
_LEFT_OUT = re.compile(r"^\s*(mainstem serve|make |sudo |pip |docker |\.venv/bin/mainstem serve|git )", re.MULTILINE)
# Lasts until Ctrl-C.
_ENDLESS = re.compile(r"^(mainstem sync .* watch .*)$", re.MULTILINE)
# Their commands are for the data folder of a server that was stopped: `data`.
_STOPPED = {"backup.md", "operations.md", "upgrading.md"}
RUN_S_MAX = 200


def blocks(page: Path, *languages: str) -> list[str]:
    """The page's blocks in these languages that are run here."""
    return [text for language, text in every_block(page) if language in languages and elsewhere(page, text) is None]


def every_block(page: Path) -> list[tuple[str, str]]:
    return [
        (language, textwrap.dedent(text) if indent else text)
        for indent, language, text in _BLOCK.findall(page.read_text())
    ]


def elsewhere(page: Path, text: str) -> tuple[str, str] | None:
    """The block's entry among those that are run elsewhere."""
    return next((key for key in ELSEWHERE if key[0] == page.name and text.startswith(key[1])), None)


def pages(*languages: str) -> list[Any]:
    """The pages that have blocks in a language, each as a parameter of a test."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, *languages)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """One server for all pages; what the pages name, and what it has."""
    folder = tmp_path_factory.mktemp("guides")
    with reserve_port("127.0.0.1") as kafka, reserve_port("127.0.0.1") as mongo:
        ports = [place.getsockname()[1] for place in (kafka, mongo)]
        config = Config(
            server=ServerConfig(port=0),
            log=LogConfig(flush_interval_s=1.0),
            kafka=KafkaConfig(enabled=True, port=ports[0]),
            mongo=MongoConfig(port=ports[1]),
        )
        async with ServerProcess(folder, config) as server:
            await fill(server)
            here = server.url.removeprefix("http://")
            yield {
                "127.0.0.1:8181": here,
                "localhost:8181": here,
                "https://lake.example.com": server.url,
                "wss://lake.example.com": f"ws://{here}",
                "127.0.0.1:9092": f"127.0.0.1:{ports[0]}",
                "127.0.0.1:27017": f"127.0.0.1:{ports[1]}",
                "data/load": f"{folder}/load",
                "data/delta": f"{folder}/delta",
            }


async def fill(server: ServerProcess) -> None:
    """The table that most pages ask for something."""
    rows = [{"id": "o0", "amount": 1.0, "status": "open"}]
    async with httpx.AsyncClient(timeout=60) as http:
        (await http.post(f"{server.url}/v1/ingest/default/orders?key=id", json=rows)).raise_for_status()
    assert (await server.flush())["complete"]


async def leave_a_folder(data: Path) -> None:
    """What a server leaves that accepted some rows and was stopped."""
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    async with ServerProcess(data, config) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{server.url}/v1/ingest/default/orders?key=id", json=[{"id": "o1", "amount": 1.0}])
        answer.raise_for_status()


def here(text: str, addresses: dict[str, str]) -> str:
    for named, real in addresses.items():
        text = text.replace(named, real)
    return text


def run(command: list[str], folder: Path, typed: str = "") -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # A session of its own has no terminal: what is asked for is read from `typed`.
    done = subprocess.run(
        command, cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=RUN_S_MAX,
        check=False, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_here_or_elsewhere(page: Path) -> None:
    for language, text in every_block(page):
        assert language in _RUN_HERE or elsewhere(page, text) is not None, f"nothing runs this:\n{text}"
    # Code that is only indented would be run by nobody.
    assert re.findall(r"\n\n {4,}\S.*", _BLOCK.sub("", page.read_text())) == []


def test_what_is_run_elsewhere_is_there() -> None:
    found = {elsewhere(page, text) for page in PAGES for _, text in every_block(page)}
    assert found - {None} == ELSEWHERE.keys()
    for where in ELSEWHERE.values():
        for name in re.findall(r"tests/\S+?\.py", where):
            assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", pages("toml"))
def test_configurations_are_taken(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text.replace("…", "x" * 48))
        load_config(path)


@pytest.mark.parametrize("page", pages("json"))
def test_json_is_json(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("page", pages("python", "sh", "sql"))
async def test_a_page_runs(
    page: Path, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{addresses['127.0.0.1:8181']}"
    monkeypatch.setenv("MAINSTEM_URL", url)
    monkeypatch.setenv("MAINSTEM_BOOTSTRAP", addresses["127.0.0.1:9092"])
    if any("MAINSTEM_TOKEN" in text for _, text in every_block(page)):
        # The server asks for none.
        monkeypatch.setenv("MAINSTEM_TOKEN", "any")
    if page.name in _STOPPED:
        await leave_a_folder(tmp_path / "data")
    if program := "\n".join(blocks(page, "python")):
        (tmp_path / "page.py").write_text(here(program, addresses))
        run([sys.executable, "page.py"], tmp_path)
    for text in blocks(page, "sh"):
        if "kcat" in text and shutil.which("kcat") is None:
            pytest.skip("there is no kcat")
        # What is typed where a command asks: a new password twice, or whether it is meant.
        typed = "a password\n" * 2 if "mainstem password" in text else "y\n" * 2
        run(["bash", "-euo", "pipefail", "-c", script_of(text, addresses)], tmp_path, typed)
    if statements := blocks(page, "sql"):
        async with httpx.AsyncClient(timeout=150) as http:
            (await http.post(f"{url}/flush?timeoutS=120")).raise_for_status()
        with duckdb.connect() as connection:
            import_extension("delta", con=connection)
            connection.load_extension("delta")
            for text in statements:
                assert connection.sql(here(text, addresses)).fetchall(), text


def script_of(text: str, addresses: dict[str, str]) -> str:
    kept = "\n".join(line for line in text.splitlines() if not _LEFT_OUT.match(line))
    kept = _ENDLESS.sub(
        r"code=0; timeout 5 \1 || code=$?; test $code = 124", here(kept, addresses).replace("  #", "\n#")
    )
    # -f: an answer that says no is a failure; the pages need not say so.
    return re.sub(r"\bcurl ", "curl -sSf ", kept)


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="module")
async def test_spark_s_own_shell_reads_what_the_readme_says(
    addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As at a terminal, though there is none.
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON_OPTS", "-i")
    (block,) = [text for _, text in every_block(README) if "bin/pyspark" in text]
    command, _, typed = here(block, addresses).partition(">>> ")
    pyspark = Path(sys.executable).with_name("pyspark")
    said = run(["bash", "-c", command.replace(".venv/bin/pyspark", str(pyspark))], tmp_path, typed)
    assert "|o0|" in said.replace(" ", ""), said
