"""The TypeScript package as people get it: packed by itself, installed in an empty folder, run on a real server."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from mainstem.app.process import ServerProcess
from mainstem.client import connect_duckdb

ROOT = Path(__file__).parents[2]
TYPESCRIPT = ROOT / "clients" / "typescript"
PROGRAMS = Path(__file__).with_name("node_client")
ROWS = 50 * 20

pytestmark = [pytest.mark.spark, pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node and npm")]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the packed package installed, and the programs."""
    tree = tmp_path_factory.mktemp("tree") / "clients" / "typescript"
    listed = run("git", "ls-files", "-co", "--exclude-standard", "clients/typescript", "src/mainstem/wire", cwd=ROOT)
    for name in listed.splitlines():
        target = tree.parents[1] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    if not (TYPESCRIPT / "node_modules" / ".package-lock.json").exists():
        run("npm", "ci", "--silent", cwd=TYPESCRIPT)
    (tree / "node_modules").symlink_to(TYPESCRIPT / "node_modules")
    folder = tmp_path_factory.mktemp("node-app")
    # No build before: `prepack` is part of it.
    run("npm", "pack", "--silent", "--pack-destination", folder, cwd=tree)
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    run("npm", "install", "--silent", "--no-audit", "--no-fund", next(folder.glob("*.tgz")), "ws@8", cwd=folder)
    for program in PROGRAMS.iterdir():
        shutil.copy(program, folder)
    return folder


def run(*command: object, cwd: Path) -> str:
    """A command that must work; what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stdout


def test_the_package_has_what_it_needs_and_nothing_else(app: Path) -> None:
    installed = app / "node_modules" / "@mainstem" / "client"
    assert {each.name for each in installed.iterdir()} == {"LICENSE", "README.md", "dist", "package.json"}
    assert (installed / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    manifest = json.loads((installed / "package.json").read_text())
    assert manifest["repository"]["directory"] == "clients/typescript"
    for conditions in (each for name, each in manifest["exports"].items() if name != "./package.json"):
        assert list(conditions)[-1] == "default"
        for file in conditions.values():
            assert (installed / file).is_file()
    modules = {each.name for each in (app / "node_modules").iterdir() if not each.name.startswith(".")}
    assert modules == {"@mainstem", "ws"}


def test_a_program_in_typescript_sees_its_types(app: Path) -> None:
    for resolution in ("nodenext", "bundler"):
        module = "nodenext" if resolution == "nodenext" else "esnext"
        tsc = TYPESCRIPT / "node_modules" / ".bin" / "tsc"
        words = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2023,dom", "--types", ""]
        run(tsc, *words, "--module", module, "--moduleResolution", resolution, "typed.ts", cwd=app)


def test_every_entry_can_be_required_and_imported(app: Path) -> None:
    entries = ["@mainstem/client", "@mainstem/client/cdc", "@mainstem/client/node"]
    script = f"for (const name of {json.dumps(entries)}) if (require(name) !== await import(name)) process.exit(1)"
    loaded = "const require = (await import('node:module')).createRequire(process.cwd() + '/');" + script
    run("node", "--input-type=module", "-e", loaded, cwd=app)


def test_a_producer_in_node_loses_and_doubles_nothing(app: Path, live_server: ServerProcess) -> None:
    said = json.loads(run("node", "produce.mjs", live_server.ws_url, "from_node", cwd=app))
    assert said == {"durable": 50, "connections": 3, "reason": "Invalid", "closing": "Invalid"}
    lake = connect_duckdb(live_server.url)
    found = lake.sql("SELECT count(*), sum(n), count(*) FILTER (note = 'paid') FROM lake.default.from_node").fetchone()
    removed = [batch * 20 + 1 for batch in range(50)]
    assert found == (ROWS - 50, sum(range(ROWS)) - sum(removed), 50)
    assert lake.sql("SELECT count(*) FROM lake.default.from_node_history").fetchone() == (ROWS + 100,)


def test_an_app_in_node_keeps_its_data_in_a_file(app: Path, live_server: ServerProcess, tmp_path: Path) -> None:
    def step(name: str, file: str) -> dict[str, Any]:
        words = ["node", "sync.mjs", live_server.url, "node-app", str(tmp_path / file), name]
        done = subprocess.run(words, cwd=app, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout, done.stderr[-3000:]
        return dict(json.loads(done.stdout))

    written = step("write", "first.journal")
    assert [row["pending"] for row in written["rows"]] == [True, True]
    synced = step("sync", "first.journal")
    assert synced["client"] == written["client"]
    wanted = [{"title": "ink", "done": True}, {"title": "offline"}]
    assert [(row["values"], row["pending"]) for row in synced["rows"]] == [(each, False) for each in wanted]
    other = step("sync", "second.journal")
    assert other["client"] != written["client"]
    assert [row["values"] for row in other["rows"]] == wanted


async def test_the_door_takes_up_the_subprotocol_that_pages_offer(live_server: ServerProcess) -> None:
    """A browser closes a connection of which no subprotocol was taken up."""
    offered = [Subprotocol("mainstem.cdc.v1"), Subprotocol("bearer.none")]
    async with connect(live_server.ws_url, subprotocols=offered) as socket:
        assert socket.subprotocol == "mainstem.cdc.v1"
