"""Dead letters are seen, mended and sent again: once, under the clock that they had."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from mainstem.app.cli.main import main
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert, update
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.contract.test_auth_gate import SCHEMA
from tests.harness.inprocess import gateway_on_socket
from tests.harness.judge import read, read_state

NOT_A_PRICE = "price: '…' is not decimal(10,2)"


async def ask(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> Any:
    answer = await http.request(method, path, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def counted(http: httpx.AsyncClient, table: str, **wanted: int) -> dict[str, Any]:
    """The status of the table's dead letters, once it says what is wanted."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await ask(http, "GET", "/status"))["deadLetters"].get(table, {})
            if found and all(found[name] == value for name, value in wanted.items()):
                return found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("table", ["letters", "letters_in_delta"])
async def test_they_are_counted_listed_mended_and_replayed_once(live_server: ServerProcess, table: str) -> None:
    lake = live_server.url if table == "letters" else live_server.data / "delta"
    async with CdcClient(live_server.ws_url, source=table) as client:
        bad = [insert(table, "a", {"price": "abc", "note": "first"}), insert(table, "b", {"price": 5})]
        await client.send([*bad, insert(table, "c", {"price": "x'y", "note": "old", "extra": "e"})])
        # What is written later stays, whatever is replayed.
        await client.send([update(table, "c", {"price": 7, "note": "newer"})])
        await client.flush()
    path = f"/v1/tables/default.{table}/dead-letters"
    async with httpx.AsyncClient(base_url=live_server.url, timeout=120) as http:
        found = await ask(http, "GET", path)
        assert (found["total"], found["replayed"], found["reasons"]) == (2, 0, {NOT_A_PRICE: 2})
        later, first = found["letters"]
        assert (first["key"], first["columns"]["price"], first["replayed"]) == ("a", "abc", False)
        assert (later["key"], later["reason"]) == ("c", "price: 'x'y' is not decimal(10,2)")
        assert (await counted(http, f"default.{table}", total=2))["reasons"] == {NOT_A_PRICE: 2}
        metrics = (await http.get("/metrics")).text
        assert f'mainstem_dead_letters{{reason="{NOT_A_PRICE}",table="default.{table}"}} 2.0' in metrics

        mend = {"letters": [{"id": first["id"], "columns": {"price": 1.5}, "drop": ["note"]}]}
        assert (await ask(http, "POST", f"{path}/replay", json=mend))["replayed"] == 1
        again = await ask(http, "POST", f"{path}/replay", json=mend)
        assert (again["replayed"], again["duplicates"], again["failures"]) == (0, 1, [])
        other = {"letters": [{"id": first["id"], "columns": {"price": 2}}, {"id": "7-abc"}]}
        failures = (await ask(http, "POST", f"{path}/replay", json=other))["failures"]
        assert {each["id"] for each in failures} == {first["id"], "7-abc"}
        assert "was used for other changes" in str(failures)

        command = ["dead-letters", "--url", live_server.url, "replay", f"default.{table}", "--all", "--set", "price=9"]
        told = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert told.output == "1 replayed, 0 had been before\n", told.output
        told = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert told.output == "0 replayed, 0 had been before\n", told.output
        await live_server.flush()
        listed = await ask(http, "GET", path)
        assert [each["replayed"] for each in listed["letters"]] == [True, True] and listed["replayed"] == 2
        await counted(http, f"default.{table}", total=2, replayed=2)
    rows = read_state(lake, table).items()
    shown = {key: (str(row["price"]), row["note"], row.get("extra")) for key, row in rows}
    assert shown == {"a": ("1.50", None, None), "b": ("5.00", None, None), "c": ("7.00", "newer", "e")}
    assert read(lake, "count(*)", f"{table}_history")[1] == [(4,)], "each replay is one change of the history"


async def test_nobody_replays_what_it_may_not_write(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url),
        httpx.AsyncClient(base_url=ws_url.replace("ws://", "http://").removesuffix("/ws"), timeout=60) as http,
    ):
        path = "/v1/tables/shop.orders/dead-letters"
        asked: Any = {"json": {"all": True}}
        for who in ("reader", "writer"):
            assert (await http.get(path, headers=bearer(token(who)))).status_code == 404
        await ask(http, "POST", "/v1/namespaces", headers=bearer(token()), json={"namespace": ["shop"]})
        table = {"name": "orders", "schema": SCHEMA}
        await ask(http, "POST", "/v1/namespaces/shop/tables", headers=bearer(token()), json=table)
        empty = await ask(http, "GET", path, headers=bearer(token("reader")))
        assert (empty["letters"], empty["total"]) == ([], 0)
        assert (await http.post(f"{path}/replay", headers=bearer(token("reader")), **asked)).status_code == 403
        elsewhere = bearer(token("writer", "billing"))
        assert (await http.get(path, headers=elsewhere)).status_code == 404
        assert (await http.post(f"{path}/replay", headers=elsewhere, **asked)).status_code == 404
        nothing = await ask(http, "POST", f"{path}/replay", headers=bearer(token("writer")), **asked)
        assert (nothing["replayed"], nothing["remaining"]) == (0, False)
        both: Any = {"json": {"all": True, "reason": "x"}}
        assert (await http.post(f"{path}/replay", headers=bearer(token("writer")), **both)).status_code == 400
