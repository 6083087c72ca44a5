"""The code of the README and the guides, run as it stands there: what a reader pastes must work.

Blocks of one page run in their order, in one folder, against one server with every door open; the addresses in them are
replaced by that server's. `python` blocks of a page are one program. `sh` blocks run under `set -e`; lines that start a
server or install something are left out. `toml` blocks must be configurations that the server takes.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from mainstem.app.config import Config, LogConfig, MongoConfig, ServerConfig, load_config
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "clients" / "python" / "README.md", *(ROOT / "docs" / "guides").glob("*.md")]
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Diagrams, what a command prints, and statements for an engine that the page names: read, not run.
_SHOWN = {"text", "sql", "ts", "properties", "mermaid", "java", "js", "ini"}
_LEFT_OUT = re.compile(r"^\s*(mainstem serve|make |sudo |pip |docker |\.venv/bin/mainstem serve|git )", re.MULTILINE)
RUN_S_MAX = 200


def blocks(page: Path, *languages: str) -> list[str]:
    """The page's blocks in these languages."""
    return [text for language, text in _BLOCK.findall(page.read_text()) if language in languages]


def pages(*languages: str) -> list[Any]:
    """The pages that have blocks in a language, each as a parameter of a test."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, *languages)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """One server for all pages; the addresses that the pages name, and the ones that it has."""
    with reserve_port("127.0.0.1") as kafka, reserve_port("127.0.0.1") as mongo:
        ports = [place.getsockname()[1] for place in (kafka, mongo)]
        config = Config(
            server=ServerConfig(port=0),
            log=LogConfig(flush_interval_s=1.0),
            kafka=KafkaConfig(enabled=True, port=ports[0]),
            mongo=MongoConfig(port=ports[1]),
        )
        async with ServerProcess(tmp_path_factory.mktemp("guides"), config) as server:
            await fill(server)
            here = server.url.removeprefix("http://")
            yield {
                "127.0.0.1:8181": here,
                "localhost:8181": here,
                "127.0.0.1:9092": f"127.0.0.1:{ports[0]}",
                "127.0.0.1:27017": f"127.0.0.1:{ports[1]}",
            }


async def fill(server: ServerProcess) -> None:
    """The table that most pages ask for something."""
    rows = [{"id": "o0", "amount": 1.0, "status": "open"}]
    async with httpx.AsyncClient(timeout=60) as http:
        (await http.post(f"{server.url}/v1/ingest/default/orders?key=id", json=rows)).raise_for_status()
    assert (await server.flush())["complete"]


def here(text: str, addresses: dict[str, str]) -> str:
    for named, real in addresses.items():
        text = text.replace(named, real)
    return text


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    known = {"python", "sh", "toml", "json", *_SHOWN}
    assert {language for language, _ in _BLOCK.findall(page.read_text())} <= known


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
@pytest.mark.parametrize("page", pages("python"))
async def test_python_runs(page: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text(here("\n".join(blocks(page, "python")), addresses))
    run([sys.executable, str(program)], tmp_path)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("page", pages("sh"))
async def test_commands_run(page: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    for text in blocks(page, "sh"):
        kept = [line for line in text.splitlines() if not _LEFT_OUT.match(line)]
        # -f: an answer that says no is a failure; the pages need not say so.
        script = re.sub(r"\bcurl ", "curl -sSf ", here("\n".join(kept), addresses))
        run(["bash", "-euo", "pipefail", "-c", script], tmp_path)
