"""Rows are live rows, wherever they are told: after updates, deletes and a compaction, in both formats."""

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from mainstem.app.cli.main import main
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update

KEYS, ROUNDS, GONE = 300, 3, 10
LIVE = KEYS - ROUNDS * GONE


async def fill(server: ServerProcess, table: str) -> None:
    """Rows, then rounds in which a third of them is written again and some go."""
    async with CdcClient(server.ws_url, source=table) as client:
        await client.send([insert(table, str(key), {"n": key}) for key in range(KEYS)])
        await client.flush()
        for number in range(ROUNDS):
            again = [update(table, str(key), {"n": -key}) for key in range(100, 200)]
            gone = [delete(table, str(key)) for key in range(number * GONE, (number + 1) * GONE)]
            await client.send([*again, *gone])
            await client.flush()


def command(server: ServerProcess, *words: str) -> Any:
    """What a command of `mainstem` prints as JSON."""
    done = CliRunner().invoke(main, ["catalog", *words, "--json", "--url", server.url])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


async def told(server: ServerProcess, table: str) -> dict[str, Any]:
    """The rows of a table, by who tells them."""
    name = f"default.{table}"
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:

        async def ask(path: str) -> dict[str, Any]:
            return dict((await http.get(path)).raise_for_status().json())

        counted = await http.post("/v1/query", json={"sql": f"SELECT count(*) FROM {name}"})
        overview = {each["table"]: each for each in (await ask("/v1/overview?limit=1000"))["tables"]}
        writes = {each["table"]: each for each in (await ask("/v1/write-stats?limit=1000"))["tables"]}
        page = await ask(f"/v1/tables/{name}")
    listed = {each["name"]: each for each in command(server, "list", "default", "--long")}
    return {
        "a query": counted.json()["rows"][0][0],
        "/v1/overview": overview[name]["current"]["rows"],
        "/v1/write-stats": writes[name]["rows"],
        "the console": page["view"]["current"]["rows"],
        "mainstem catalog list": listed[name]["rows"],
    }


@pytest.mark.spark
@pytest.mark.parametrize("table", ["counted", "counted_in_delta"])
async def test_everybody_tells_the_rows_that_a_reader_sees(live_server: ServerProcess, table: str) -> None:
    await fill(live_server, table)
    before = await told(live_server, table)
    assert before == dict.fromkeys(before, LIVE)
    async with httpx.AsyncClient(base_url=live_server.url, timeout=180) as http:
        body = {"namespace": "default", "table": table, "waitS": 150}
        answer = await http.post("/v1/compaction/run", json=body)
        (job,) = answer.raise_for_status().json()["jobs"]
    assert job["state"] == "done", job
    after = await told(live_server, table)
    assert after == before


@pytest.mark.spark
async def test_a_compaction_changes_no_rows_in_the_list_of_snapshots(live_server: ServerProcess) -> None:
    await fill(live_server, "shrunk")
    async with httpx.AsyncClient(base_url=live_server.url, timeout=180) as http:
        body = {"namespace": "default", "table": "shrunk", "steps": ["compact"], "waitS": 150}
        answer = await http.post("/v1/compaction/run", json=body)
        assert answer.raise_for_status().json()["jobs"][0]["state"] == "done"
        shown = (await http.get("/v1/tables/default.shrunk/snapshots")).raise_for_status().json()["snapshots"]
    history = command(live_server, "history", "default.shrunk")
    assert (history[0]["operation"], history[0]["rows"], history[0]["change"]) == ("replace", LIVE, 0)
    assert [each["change"] for each in history[1 : 1 + ROUNDS]] == [-GONE] * ROUNDS
    assert [each["rows"] for each in shown[: 1 + ROUNDS]] == [LIVE, LIVE, LIVE + GONE, LIVE + 2 * GONE]
    facts = command(live_server, "show", "default.shrunk")
    assert (facts["rows"], facts["snapshot"]) == (LIVE, history[0]["snapshot"])
