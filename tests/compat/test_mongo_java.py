"""The Java driver, unmodified, against the Mongo door: fetched by its Maven coordinates."""

import asyncio
import json
import subprocess
from pathlib import Path

from tests.compat.downloads import Artifact, cached, fetch
from tests.compat.mongo_server import MongoServer

_VERSION = "5.6.1"
_SOURCE = Path(__file__).parent / "mongo_java" / "App.java"


def _make(folder: Path) -> None:
    fetch(
        [Artifact("org.mongodb", name, _VERSION) for name in ("mongodb-driver-sync", "mongodb-driver-core", "bson")],
        folder,
    )


async def test_the_java_driver_works(tmp_path: Path) -> None:
    jars = await asyncio.to_thread(cached, f"mongodb-driver-sync-{_VERSION}", _make)
    async with MongoServer(tmp_path / "data") as server:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", str(_SOURCE), server.mongo_url]
        ran = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "found": [{"_id": 2, "x": 2}],
        "same": True,
        "grouped": [{"_id": None, "n": 3}],
        "modified": 11,
        "code": 11000,
        "deleted": 1,
        "committed": 1,
        "changed": '{"y": 1}',
        "full": {"_id": 3, "y": 1},
    }
