"""`/v1/compaction` against a live server: what it promises, what it does, and that the rows stay what they were."""

import os
from typing import Any

import httpx
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert
from tests.harness.judge import read_history, read_state

pytestmark = pytest.mark.timeout(900)

BATCHES = 6
ROWS = 50


async def _fill(server: ServerProcess, table: str) -> dict[str, int]:
    """Batches that overwrite each other's rows; returns the value that each key must have."""
    expected: dict[str, int] = {}
    async with CdcClient(server.ws_url, source=table) as client:
        for number in range(BATCHES):
            events = [insert(table, str(key), {"n": number, "k": key}) for key in range(number, ROWS)]
            await client.send([*events, delete(table, str(number))])
            await client.flush()
            expected |= {str(key): number for key in range(number, ROWS)}
            del expected[str(number)]
    return expected


async def _ask(server: ServerProcess, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=180) as http:
        answer = await http.request(method, server.url + path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _candidate(server: ServerProcess, table: str) -> dict[str, Any]:
    (found,) = (await _ask(server, "GET", f"/v1/compaction/candidates?namespace=default&table={table}"))["candidates"]
    return dict(found)


async def test_a_dry_run_tells_the_truth_and_a_run_keeps_every_row(live_server: ServerProcess) -> None:
    expected = await _fill(live_server, "compacted")
    before = await _candidate(live_server, "compacted")
    assert before["dataFiles"] >= BATCHES and before["deleteFiles"] >= BATCHES - 1
    body = {"namespace": "default", "table": "compacted", "waitS": 150}
    dry = await _ask(live_server, "POST", "/v1/compaction/run", body | {"dryRun": True})
    assert dry["jobs"] == []
    assert [group["files"] for group in dry["plan"][0]["groups"]] == [before["dataFiles"]]
    assert await _candidate(live_server, "compacted") == before

    (job,) = (await _ask(live_server, "POST", "/v1/compaction/run", body))["jobs"]
    assert job["state"] == "done", job
    assert job["progress"]["compact"]["filesRead"] == before["dataFiles"]
    after = await _candidate(live_server, "compacted")
    assert (after["dataFiles"], after["deleteFiles"]) == (dry["plan"][0]["filesAfter"], 0) == (1, 0)
    assert {key: row["n"] for key, row in read_state(live_server.url, "compacted").items()} == expected
    assert len(read_history(live_server.url, "compacted")) == sum(ROWS - n + 1 for n in range(BATCHES))

    # Old snapshots and what only they had go; then what nothing has, like the file that a crash left here.
    stray = live_server.data / "warehouse" / "default" / "compacted" / "data" / "stray.parquet"
    stray.write_bytes(b"PAR1")
    # A minute ago: what is of this very millisecond is not old yet.
    os.utime(stray, (stray.stat().st_mtime - 60,) * 2)
    asked = {**body, "steps": ["expire", "orphans"], "snapshotAgeS": 0, "orphanAgeS": 0}
    (job,) = (await _ask(live_server, "POST", "/v1/compaction/run", asked))["jobs"]
    assert job["state"] == "done", job
    assert job["progress"]["expire"]["snapshots"] >= BATCHES
    assert job["progress"]["orphans"]["files"] >= 1
    assert not stray.exists()
    assert (await _candidate(live_server, "compacted"))["snapshots"] == 1
    assert {key: row["n"] for key, row in read_state(live_server.url, "compacted").items()} == expected
    # The ingest goes on where it was: nothing is counted twice.
    async with CdcClient(live_server.ws_url, source="after") as client:
        await client.send([insert("compacted", "20", {"n": 99, "k": 20})])
        await client.flush()
    rows = {key: row["n"] for key, row in read_state(live_server.url, "compacted").items()}
    assert rows == expected | {"20": 99}

    metrics = await _ask(live_server, "GET", "/v1/compaction/metrics")
    assert metrics["tables"]["default.compacted"]["runs"] == 2
    assert metrics["tables"]["default.compacted"]["failures"] == 0
    assert metrics["auto"] is True and metrics["intervalS"] == 3600


async def test_auto_takes_what_is_over_the_thresholds(live_server: ServerProcess) -> None:
    await _fill(live_server, "by_itself")
    async with CdcClient(live_server.ws_url, source="few") as client:
        await client.send([insert("too_few", "1", {"n": 1})])
        await client.flush()
    dry = await _ask(live_server, "POST", "/v1/compaction/auto", {"dryRun": True})
    tables = {plan["table"] for plan in dry["plan"]}
    assert {"by_itself", "by_itself_history"} <= tables and "too_few" not in tables
    jobs = (await _ask(live_server, "POST", "/v1/compaction/auto"))["jobs"]
    (job,) = (job for job in jobs if job["table"] == "default.by_itself_history")
    # The same again is the same job.
    again = (await _ask(live_server, "POST", "/v1/compaction/auto"))["jobs"]
    assert job["id"] in {each["id"] for each in again} | {
        each["id"] for each in await _jobs(live_server) if each["state"] == "done"
    }
    async with httpx.AsyncClient(timeout=30) as http:
        while (found := (await http.get(f"{live_server.url}/v1/compaction/jobs/{job['id']}")).json())["state"] in (
            "queued",
            "running",
        ):
            pass
    assert found["state"] == "done", found
    assert (await _candidate(live_server, "by_itself_history"))["dataFiles"] == 1


async def _jobs(server: ServerProcess) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=30) as http:
        jobs: list[dict[str, Any]] = (await http.get(server.url + "/v1/compaction/jobs")).json()
    return jobs


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/v1/compaction/run", {"table": "no_such_table"}, 404),
        ("POST", "/v1/compaction/run", {"table": "t", "steps": ["melt"]}, 400),
        ("POST", "/v1/compaction/run", {"table": "t", "minFiles": 1}, 400),
        ("POST", "/v1/compaction/run", {"tabel": "t"}, 400),
        ("GET", "/v1/compaction/candidates?table=no_such_table", None, 404),
        ("GET", "/v1/compaction/jobs/none", None, 404),
        ("DELETE", "/v1/compaction/jobs/none", None, 404),
    ],
)
async def test_bad_requests_get_a_named_error(
    live_server: ServerProcess, method: str, path: str, body: Any, code: int
) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        answer = await http.request(method, live_server.url + path, json=body)
    assert answer.status_code == code, answer.text
