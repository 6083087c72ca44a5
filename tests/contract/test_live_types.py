"""Types change midway, columns come and go, keys are of either kind: the table keeps every value."""

import json

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, connect_duckdb, delete, insert, update
from mainstem.wire.cdc import CdcEvent
from tests.harness.judge import read_state


async def _send(server: ServerProcess, source: str, *batches: list[CdcEvent]) -> None:
    """Each batch is flushed on its own, so that the table has to change between them."""
    async with CdcClient(server.ws_url, source=source) as client:
        for batch in batches:
            await client.send(batch)
            await client.flush()


async def test_a_column_that_turns_from_number_to_text_keeps_both(live_server: ServerProcess) -> None:
    await _send(
        live_server,
        "turns",
        [insert("turns", "1", {"v": 1}), insert("turns", "2", {"v": 2})],
        [insert("turns", "3", {"v": 2.5})],
        [insert("turns", "4", {"v": "four"}), insert("turns", "5", {"v": None}), insert("turns", "6", {"v": True})],
        [insert("turns", "7", {"v": {"n": [1, "x"]}}), insert("turns", "8", {"v": 2**70})],
    )
    values = {key: row["v"] for key, row in read_state(live_server.url, "turns").items()}
    assert values.pop("7") is not None
    assert float(values.pop("1")) == 1 and float(values.pop("2")) == 2 and float(values.pop("3")) == 2.5
    assert values == {"4": "four", "5": None, "6": "true", "8": str(2**70)}


async def test_large_integers_survive_a_column_that_turns_to_double(live_server: ServerProcess) -> None:
    large = 2**53 + 1
    await _send(
        live_server, "large", [insert("large", "1", {"v": large})], [insert("large", "2", {"v": 0.5})]
    )
    values = {key: row["v"] for key, row in read_state(live_server.url, "large").items()}
    assert int(values["1"]) == large
    assert float(values["2"]) == 0.5


async def test_columns_appear_and_vanish(live_server: ServerProcess) -> None:
    await _send(
        live_server,
        "comes",
        [insert("comes", "1", {"a": 1, "b": "one"}), insert("comes", "2", {"a": 2, "b": "two"})],
        [insert("comes", "3", {"a": 3, "c": [1]}), update("comes", "1", {"c": {"x": 1}})],
        [update("comes", "2", {"a": 20})],
    )
    rows = read_state(live_server.url, "comes")
    assert {k: (r["a"], r["b"], r["c"] and json.loads(r["c"])) for k, r in rows.items()} == {
        "1": (1, "one", {"x": 1}),
        "2": (20, "two", None),
        "3": (3, None, [1]),
    }


async def test_keys_are_integers_or_strings(live_server: ServerProcess) -> None:
    await _send(
        live_server,
        "keys",
        [insert("keys", 1, {"a": 1}), insert("keys", "x", {"a": 2}), insert("keys", 2**63, {"a": 3})],
        [update("keys", 1, {"a": 10}), delete("keys", "x"), insert("keys", "ключ 🗝", {"a": 4})],
    )
    rows = read_state(live_server.url, "keys")
    assert {key: row["a"] for key, row in rows.items()} == {"1": 10, str(2**63): 3, "ключ 🗝": 4}


async def test_null_is_kept_apart_from_missing(live_server: ServerProcess) -> None:
    await _send(
        live_server,
        "nulls",
        [insert("nulls", "1", {"a": 1, "b": 1}), insert("nulls", "2", {"a": None, "b": None})],
        [update("nulls", "1", {"a": None})],
    )
    rows = read_state(live_server.url, "nulls")
    assert {key: (row["a"], row["b"]) for key, row in rows.items()} == {"1": (None, 1), "2": (None, None)}


async def test_a_row_comes_back_after_its_delete_with_only_what_is_new(live_server: ServerProcess) -> None:
    await _send(
        live_server,
        "back",
        [insert("back", "1", {"a": 1, "b": 1})],
        [delete("back", "1")],
        [update("back", "1", {"a": 2})],
    )
    rows = read_state(live_server.url, "back")
    assert {key: (row["a"], row["b"]) for key, row in rows.items()} == {"1": (2, None)}


async def test_names_that_engines_find_hard(live_server: ServerProcess) -> None:
    row = {"select": 1, "a b": 2, "a.b": 3, "ä": 4, "`": 5, '"': 6, "_hlc": 7, "Id": 8, "1st": 9}
    await _send(live_server, "hard", [insert("hard", "1", row)], [update("hard", "1", {"select": 10})])
    found = read_state(live_server.url, "hard")["1"]
    assert {name: found[name] for name in ("select", "a b", "a.b", "ä", "`", '"', "Id", "1st")} == {
        "select": 10, "a b": 2, "a.b": 3, "ä": 4, "`": 5, '"': 6, "Id": 8, "1st": 9,
    }  # fmt: skip
    assert found["_hlc_"] == 7


async def test_a_table_without_history_is_complete_without_it(live_server: ServerProcess) -> None:
    await _send(live_server, "only", [insert("only_state", "1", {"a": 1})], [update("only_state", "1", {"a": 2})])
    assert read_state(live_server.url, "only_state")["1"]["a"] == 2
    tables = connect_duckdb(live_server.url).execute("SELECT table_name FROM duckdb_tables()").fetchall()
    assert ("only_state",) in tables
    assert ("only_state_history",) not in tables
