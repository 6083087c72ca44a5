"""Types change midway, columns come and go, keys are of either kind: the table keeps every value, in either format."""

import datetime as dt
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import duckdb
import pytest

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update
from mainstem.wire.cdc import CdcEvent
from tests.harness.judge import Lake, read, read_state

Make = Callable[..., CdcEvent]
Table = Callable[[str], "LiveTable"]


class LiveTable:
    """A table of the live server, and whom to ask what is in it."""

    def __init__(self, server: ServerProcess, name: str, lake: Lake) -> None:
        self.name = name
        self._server = server
        self._lake = lake

        self.insert: Make = partial(insert, name)
        self.update: Make = partial(update, name)
        self.delete: Make = partial(delete, name)

    async def send(self, *batches: list[CdcEvent]) -> None:
        """Each batch is flushed on its own, so that the table has to change between them."""
        async with CdcClient(self._server.ws_url, source=self.name) as client:
            for batch in batches:
                await client.send(batch)
                await client.flush()

    def rows(self) -> dict[str, dict[str, Any]]:
        return read_state(self._lake, self.name)

    def has(self, suffix: str) -> bool:
        try:
            read(self._lake, "count(*)", self.name + suffix)
        except duckdb.Error:
            return False
        return True


@pytest.fixture(params=["iceberg", "delta"])
def table(request: pytest.FixtureRequest, live_server: ServerProcess) -> "Table":
    """By name: the table of that name in one format. Those in Delta are named so in the server's configuration."""
    if request.param == "iceberg":
        return lambda name: LiveTable(live_server, name, live_server.url)
    return lambda name: LiveTable(live_server, f"{name}_in_delta", live_server.data / "delta")


async def test_a_column_that_turns_from_number_to_text_keeps_both(table: Table) -> None:
    turns = table("turns")
    await turns.send(
        [turns.insert("1", {"v": 1}), turns.insert("2", {"v": 2})],
        [turns.insert("3", {"v": 2.5})],
        [turns.insert("4", {"v": "four"}), turns.insert("5", {"v": None}), turns.insert("6", {"v": True})],
        [turns.insert("7", {"v": {"n": [1, "x"]}}), turns.insert("8", {"v": 2**70})],
    )
    values = {key: row["v"] for key, row in turns.rows().items()}
    assert values.pop("7") is not None
    assert float(values.pop("1")) == 1 and float(values.pop("2")) == 2 and float(values.pop("3")) == 2.5
    assert values == {"4": "four", "5": None, "6": "true", "8": str(2**70)}


async def test_large_integers_survive_a_column_that_turns_to_double(table: Table) -> None:
    large, number = table("large"), 2**53 + 1
    await large.send([large.insert("1", {"v": number})], [large.insert("2", {"v": 0.5})])
    values = {key: row["v"] for key, row in large.rows().items()}
    assert int(values["1"]) == number
    assert float(values["2"]) == 0.5


async def test_texts_that_are_times_are_instants_until_another_text_comes(table: Table) -> None:
    times = table("times")
    await times.send([times.insert("a", {"at": "2026-01-31T23:59:59.5+02:00", "on": "2026-01-31T00:00:00Z"})])
    assert times.rows()["a"]["at"] == dt.datetime(2026, 1, 31, 21, 59, 59, 500_000, dt.UTC)
    await times.send([times.insert("b", {"at": None, "on": "tomorrow"})])
    found = times.rows()
    assert found["a"]["at"] == dt.datetime(2026, 1, 31, 21, 59, 59, 500_000, dt.UTC) and found["b"]["at"] is None
    assert (
        found["b"]["on"] == "tomorrow" and found["a"]["on"].startswith("2026-01-31") and not times.has("_dead_letters")
    )


async def test_columns_appear_and_vanish(table: Table) -> None:
    comes = table("comes")
    await comes.send(
        [comes.insert("1", {"a": 1, "b": "one"}), comes.insert("2", {"a": 2, "b": "two"})],
        [comes.insert("3", {"a": 3, "c": [1]}), comes.update("1", {"c": {"x": 1}})],
        [comes.update("2", {"a": 20})],
    )
    rows = comes.rows()
    assert {k: (r["a"], r["b"], r["c"] and json.loads(r["c"])) for k, r in rows.items()} == {
        "1": (1, "one", {"x": 1}),
        "2": (20, "two", None),
        "3": (3, None, [1]),
    }


async def test_keys_are_integers_or_strings(table: Table) -> None:
    keys = table("keys")
    await keys.send(
        [keys.insert(1, {"a": 1}), keys.insert("x", {"a": 2}), keys.insert(2**63, {"a": 3})],
        [keys.update(1, {"a": 10}), keys.delete("x"), keys.insert("ключ 🗝", {"a": 4})],
    )
    rows = keys.rows()
    assert {key: row["a"] for key, row in rows.items()} == {"1": 10, str(2**63): 3, "ключ 🗝": 4}


async def test_null_is_kept_apart_from_missing(table: Table) -> None:
    nulls = table("nulls")
    await nulls.send(
        [nulls.insert("1", {"a": 1, "b": 1}), nulls.insert("2", {"a": None, "b": None})],
        [nulls.update("1", {"a": None})],
    )
    rows = nulls.rows()
    assert {key: (row["a"], row["b"]) for key, row in rows.items()} == {"1": (None, 1), "2": (None, None)}


async def test_a_row_comes_back_after_its_delete_with_only_what_is_new(table: Table) -> None:
    back = table("back")
    await back.send(
        [back.insert("1", {"a": 1, "b": 1})],
        [back.delete("1")],
        [back.update("1", {"a": 2})],
    )
    rows = back.rows()
    assert {key: (row["a"], row["b"]) for key, row in rows.items()} == {"1": (2, None)}


async def test_names_that_engines_find_hard(table: Table) -> None:
    hard = table("hard")
    row = {"select": 1, "a b": 2, "a.b": 3, "ä": 4, "`": 5, '"': 6, "_hlc": 7, "Id": 8, "1st": 9}
    await hard.send([hard.insert("1", row)], [hard.update("1", {"select": 10})])
    found = hard.rows()["1"]
    assert {name: found[name] for name in ("select", "a b", "a.b", "ä", "`", '"', "Id", "1st")} == {
        "select": 10, "a b": 2, "a.b": 3, "ä": 4, "`": 5, '"': 6, "Id": 8, "1st": 9,
    }  # fmt: skip
    assert found["_hlc_"] == 7


async def test_a_table_without_history_is_complete_without_it(table: Table) -> None:
    only = table("only_state")
    await only.send([only.insert("1", {"a": 1})], [only.update("1", {"a": 2})])
    assert only.rows()["1"]["a"] == 2
    assert only.has("") and not only.has("_history")
