"""Sixteen writers, and servers that are killed under them: every acknowledged commit is in the history, exactly once.

A writer that loses its answer sends the same request again under the same idempotency key. One that loses a race looks
at the table and tries again with a new one.
"""

import asyncio
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.catalog.settings import CatalogSettings
from tests.contract.catalog_client import SCHEMA, new_database

pytestmark = pytest.mark.timeout(900)

WRITERS = 16
COMMITS = 3
KILLS = 3
# A server that was killed takes long to come back where the machine has much to do.
COMMIT_S_MAX = 240.0


class Run:
    """What the writers did, and where they send their requests."""

    def __init__(self, servers: Sequence[ServerProcess]) -> None:
        self.servers = servers
        self.acknowledged: list[str] = []
        self._progress = threading.Condition()

    def acknowledge(self, name: str) -> None:
        with self._progress:
            self.acknowledged.append(name)
            self._progress.notify_all()

    def wait_for(self, count: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: len(self.acknowledged) >= count, COMMIT_S_MAX), self.acknowledged

    def write(self, writer: int, table: str) -> None:
        with httpx.Client(timeout=30) as http:
            for number in range(COMMITS):
                name = f"{writer}-{number}"
                self._commit(http, writer, table, name)
                self.acknowledge(name)

    def _commit(self, http: httpx.Client, writer: int, table: str, name: str) -> None:
        body, key = None, ""
        until_s = time.monotonic() + COMMIT_S_MAX
        for attempt in itertools.count():
            assert time.monotonic() < until_s, f"{name} was never committed"
            # A writer stays with its server and goes to another one when it gets no answer.
            url = f"{self.servers[(writer + attempt) % len(self.servers)].url}/v1/namespaces/db/tables/{table}"
            try:
                if body is None:
                    body = next_commit(http.get(url).raise_for_status().json()["metadata"], name)
                    key = str(uuid.uuid4())
                answer = http.post(url, json=body, headers={"Idempotency-Key": key})
            except httpx.HTTPError:
                threading.Event().wait(0.01)
                continue
            if answer.status_code == 200:
                return
            if answer.status_code == 409:
                body = None
            else:
                assert answer.status_code in (500, 503), answer.text


def next_commit(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    parent = metadata["refs"].get("main", {}).get("snapshot-id")
    snapshot_id = uuid.uuid4().int >> 65
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{metadata['location']}/metadata/{snapshot_id}.avro",
        "summary": {"operation": "append", "name": name},
        "schema-id": 0,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id},
        ],
    }


def history(url: str, table: str) -> Counter[str]:
    metadata = httpx.get(f"{url}/v1/namespaces/db/tables/{table}", timeout=30).raise_for_status().json()["metadata"]
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    found: Counter[str] = Counter()
    current = metadata["refs"]["main"]["snapshot-id"]
    while current is not None:
        found[snapshots[current]["summary"]["name"]] += 1
        current = snapshots[current].get("parent-snapshot-id")
    assert found.total() == len(snapshots), "every snapshot is on main"
    return found


async def race(servers: Sequence[ServerProcess], tables: Sequence[str]) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        url = f"{servers[0].url}/v1/namespaces"
        (await http.post(url, json={"namespace": ["db"]})).raise_for_status()
        for table in tables:
            (await http.post(f"{url}/db/tables", json={"name": table, "schema": SCHEMA})).raise_for_status()
    run = Run(servers)
    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [threads.submit(run.write, n, tables[n % len(tables)]) for n in range(WRITERS)]
        for kill in range(KILLS):
            await asyncio.to_thread(run.wait_for, (kill + 1) * WRITERS * COMMITS // (KILLS + 2))
            victim = servers[kill % len(servers)]
            victim.kill()
            await victim.start()
        for writer in writers:
            await asyncio.to_thread(writer.result)
    found: Counter[str] = Counter()
    for table in tables:
        views = {server.url: history(server.url, table) for server in servers}
        assert len({tuple(sorted(view.items())) for view in views.values()}) == 1, "every gateway tells the same"
        found += views[servers[0].url]
    assert found == Counter(run.acknowledged)
    assert found.total() == WRITERS * COMMITS
    assert set(found.values()) == {1}


def config(catalog: CatalogSettings) -> Config:
    return Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), catalog=catalog)


@pytest.mark.parametrize("table_count", [1, WRITERS])
async def test_writers_on_one_server_that_is_killed(tmp_path: Path, table_count: int) -> None:
    async with ServerProcess(tmp_path / "data", config(CatalogSettings())) as server:
        await race([server], [f"t{number}" for number in range(table_count)])


@pytest.mark.parametrize("table_count", [1, WRITERS])
async def test_writers_on_two_gateways_over_one_postgresql(tmp_path: Path, table_count: int) -> None:
    shared = config(CatalogSettings(postgres=new_database(), warehouse=str(tmp_path / "warehouse")))
    async with ServerProcess(tmp_path / "one", shared) as one, ServerProcess(tmp_path / "two", shared) as two:
        await race([one, two], [f"t{number}" for number in range(table_count)])
