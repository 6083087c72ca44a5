"""The Node driver and mongoose, unmodified, against the Mongo door. Their versions are locked in `mongo_node`."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.mongo_server import MongoServer

HERE = Path(__file__).parent / "mongo_node"


@pytest.mark.skipif(shutil.which("npm") is None, reason="the clients are installed with npm")
async def test_the_node_driver_and_mongoose_work(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
    await asyncio.to_thread(subprocess.run, install, cwd=folder, check=True, timeout=300)
    async with MongoServer(tmp_path / "data") as server:
        command = ["node", "app.js", f"mongodb://127.0.0.1:{server.port}/"]
        ran = await asyncio.to_thread(
            subprocess.run, command, cwd=folder, check=False, capture_output=True, text=True, timeout=120
        )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "driver": {
            "found": [{"_id": 2, "x": 2}],
            "grouped": [{"_id": None, "n": 3}],
            "committed": {"_id": 3},
            "changed": {"y": 1},
        },
        "models": {"age": 4, "code": 11000},
    }
