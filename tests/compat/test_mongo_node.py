"""The Node driver, mongoose and mongosh, unmodified, against the Mongo door. `mongo_node` locks their versions."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.mongo_server import MongoServer

HERE = Path(__file__).parent / "mongo_node"


async def said(folder: Path, *command: str) -> Any:
    """What a program printed as JSON."""
    # Its settings and its log go where the test's files are.
    environment = os.environ | {"HOME": str(folder)}
    ran = await asyncio.to_thread(
        subprocess.run, command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(shutil.which("npm") is None, reason="the clients are installed with npm")
async def test_the_node_driver_mongoose_and_mongosh_work(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("node_modules"))
    # What is optional, and what has to be built, is for encryption and Kerberos.
    install = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--omit=optional", "--ignore-scripts"]
    await asyncio.to_thread(subprocess.run, install, cwd=folder, check=True, timeout=300)
    async with MongoServer(tmp_path / "data") as server:
        url = f"mongodb://127.0.0.1:{server.port}/"
        driver = await said(folder, "node", "app.js", url)
        shell = await said(folder, "node_modules/.bin/mongosh", "--quiet", "--norc", f"{url}shell", "shell.js")
    assert shell == {
        "found": [{"_id": 2}],
        "grouped": [{"_id": None, "n": 1}, {"_id": 2026, "n": 1}],
        "plan": "IXSCAN",
        "modified": 11,
        "bulk": 1,
        "outside": 0,
        "committed": 1,
        "aborted": 1,
        "changed": {"y": 1},
        "code": 11000,
        "collections": ["a", "b"],
        "indexes": ["_id_", "x_1"],
        "count": 3,
        "databases": True,
        "tools": [1] * 6,
        "dropped": ["a"],
    }
    assert driver == {
        "driver": {
            "found": [{"_id": 2, "x": 2}],
            "grouped": [{"_id": None, "n": 3}],
            "committed": {"_id": 3},
            "changed": {"y": 1},
            "deleted": 1,
        },
        "models": {
            "age": 4,
            "code": 11000,
            "grouped": [{"_id": "tom", "n": 4}],
            "failed": "given up",
            "changed": "kit",
            "deleted": 1,
            "left": ["kit", "tom"],
        },
    }
