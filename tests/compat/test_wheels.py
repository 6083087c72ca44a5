"""The two wheels, in environments of their own outside the tree: what a user gets who has only `pip install`."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainstem.app.folder.address import read_address
from mainstem.app.process import START_S_MAX, ServerProcess

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
# What a producer and a reader do, with nothing but the thin client.
SEND = """
import asyncio, sys
from mainstem.client import CdcClient, insert

async def main():
    async with CdcClient(sys.argv[1], source="wheel") as client:
        receipt = await client.send([insert("wheels", "w1", {"id": "w1", "size": 3})])
        print("durable at", (await receipt.durable()).positions)

asyncio.run(main())
"""
HEAVY = {"pyspark", "pyarrow", "duckdb", "litestar", "deltalake", "pyiceberg"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both wheels, built from a copy of the sources: a build leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheels")
    tracked = subprocess.run(
        ["git", "ls-files", "src", "clients/python", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in tracked.stdout.splitlines():
        target = folder / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    for project in ("clients/python", "."):
        tree = folder / "tree" / project
        run(UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", folder, tree)
    return folder


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """A command that must work; what it prints."""
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def environment(folder: Path, *wanted: Path) -> Path:
    """A new environment with these wheels and what they depend on, in the versions of the lock. Returns its Python."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    constraints = folder / "constraints.txt"
    locked = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    constraints.write_text("\n".join(line.split(" \\")[0] for line in locked if line and line[0] not in " #"))
    run(UV, "pip", "install", "--quiet", "--python", python, "-c", constraints, *wanted)
    return python


def test_the_thin_client_sends_changes_without_the_server(
    wheels: Path, tmp_path: Path, live_server: ServerProcess
) -> None:
    python = environment(tmp_path / "thin", next(wheels.glob("mainstem_client-*.whl")))
    installed = {each.name.split("-")[0] for each in (tmp_path / "thin").rglob("*.dist-info")}
    assert not HEAVY & installed
    assert sum(file.stat().st_size for file in (tmp_path / "thin" / "lib").rglob("*") if file.is_file()) < 60 << 20
    said = run(python, "-c", SEND, live_server.ws_url, cwd=tmp_path)
    assert said.startswith("durable at (")


@pytest.fixture(scope="module")
def whole(wheels: Path) -> Path:
    """The Python of an environment with both wheels."""
    return environment(wheels / "whole", *wheels.glob("*.whl"))


def test_the_server_s_wheel_starts_a_server(whole: Path, tmp_path: Path) -> None:
    python = whole
    command = python.with_name("mainstem")
    assert "mainstem, version" in run(command, "--version", cwd=tmp_path)
    printed = run(command, "config", cwd=tmp_path)
    quiet = printed.replace("port = 8181", "port = 0", 1).replace("enabled = true", "enabled = false", 1)
    (tmp_path / "mainstem.toml").write_text(quiet)
    words = [str(command), "serve", "--config", "mainstem.toml", "--data", "data"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) as serving:
        try:
            url = address_of(serving, tmp_path / "data")
            said = run(python, "-c", SEND, url.replace("http", "ws", 1) + "/ws", cwd=tmp_path)
            assert said.startswith("durable at (")
            asked = f"import httpx; print(httpx.get('{url}/console').status_code)"
            assert run(python, "-c", asked, cwd=tmp_path).strip() == "200"
        finally:
            serving.terminate()
    assert serving.returncode == 0


def test_a_stranger_comes_from_the_wheels_to_an_answer_in_sql(wheels: Path, whole: Path) -> None:
    """The way alone, with warm caches; `make stranger` holds it to three minutes, and begins with empty ones."""
    script = ROOT / "tests" / "compat" / "stranger.py"
    said = run(sys.executable, script, wheels, "--warm", "--python", whole, "--seconds", "280")
    assert "SQL: " in said


def address_of(serving: "subprocess.Popen[bytes]", data: Path) -> str:
    """Where the server listens, once it does."""
    ends_s = time.monotonic() + START_S_MAX
    while time.monotonic() < ends_s and serving.poll() is None:
        if (address := read_address(data)) is not None:
            return address.url
        time.sleep(0.05)
    raise AssertionError(f"the server did not start. exit={serving.returncode}")
