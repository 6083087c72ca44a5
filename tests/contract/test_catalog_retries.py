"""Idempotency keys, on every store: a request that is sent twice has one effect, whatever happened in between."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainstem.catalog import SqliteStore
from mainstem.catalog.stores.sql import MARK_AGE_MS_MAX
from mainstem.catalog.stores.store import Mark, Store, Swap
from mainstem.model import OutcomeUnknown
from tests.contract.catalog_client import SCHEMA, Client, catalog_client, make_table

client = catalog_client
TABLE = "namespaces/db/tables/t"


def key() -> str:
    return str(uuid.uuid4())


def set_property(name: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {name: "1"}}]}


def properties(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.ok("GET", TABLE)["metadata"]["properties"]
    return found


def test_a_commit_that_is_sent_twice_happens_once(client: Client) -> None:
    make_table(client)
    once = key()
    first = client.send("POST", TABLE, set_property("a"), idempotency_key=once)
    between = client.ok("POST", TABLE, set_property("b"))
    again = client.send("POST", TABLE, set_property("a"), idempotency_key=once.upper())
    assert (first.status, again.status) == (200, 200)
    told = msgspec.json.decode(again.body)
    assert told["metadata-location"] == between["metadata-location"], "nothing new was committed"


def test_creating_dropping_and_renaming_are_echoed(client: Client) -> None:
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    rename = {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "u"}}
    calls: list[tuple[str, str, Any, int]] = [
        ("POST", "namespaces", {"namespace": ["n", "m"]}, 200),
        ("POST", "namespaces/db/properties", {"updates": {"a": "1"}}, 200),
        ("POST", "namespaces/db/tables", {"name": "t", "schema": SCHEMA}, 200),
        ("POST", "tables/rename", rename, 204),
        ("DELETE", "namespaces/db/tables/u", None, 204),
        ("DELETE", "namespaces/db", None, 204),
    ]
    for method, target, body, status in calls:
        once = key()
        answers = []
        for _ in range(2):
            answers.append(client.send(method, target, body, idempotency_key=once))
            if target == "namespaces/db/tables":
                assert msgspec.json.decode(answers[-1].body)["metadata"]["schemas"]
        assert [answer.status for answer in answers] == [status, status], target


def test_a_refusal_stays_a_refusal(client: Client) -> None:
    once = key()
    first = client.send("POST", "namespaces/db/tables", {"name": "t", "schema": SCHEMA}, idempotency_key=once)
    client.ok("POST", "namespaces", {"namespace": ["db"]})
    again = client.send("POST", "namespaces/db/tables", {"name": "t", "schema": SCHEMA}, idempotency_key=once)
    assert (first.status, again.status) == (404, 404)
    assert again.body == first.body


def test_a_key_belongs_to_one_request(client: Client) -> None:
    make_table(client)
    once = key()
    client.send("POST", TABLE, set_property("a"), idempotency_key=once)
    assert client.send("POST", TABLE, set_property("b"), idempotency_key=once).status == 400
    assert client.send("POST", TABLE, set_property("b"), idempotency_key="not a key").status == 400
    assert "b" not in properties(client)


class Unsure:
    """A store that swaps, and then cannot say so: as if the connection broke during the commit."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def swap(self, swaps: Sequence[Swap]) -> bool:
        self._store.swap(swaps)
        raise OutcomeUnknown("the connection broke")


def test_an_unknown_outcome_is_found_out_by_the_retry(client: Client) -> None:
    make_table(client)
    catalog = client.catalog
    store = catalog._store
    catalog._store = Unsure(store)
    once = key()
    unsure = client.send("POST", TABLE, set_property("a"), idempotency_key=once)
    catalog._store = store
    assert unsure.status in (200, 500)
    again = client.send("POST", TABLE, set_property("a"), idempotency_key=once)
    assert again.status == 200
    assert properties(client)["a"] == "1"


def test_keys_are_let_go_after_their_time(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    store.remember(Mark("a", "r", 200, b"", 1000))
    store.remember(Mark("b", "r", 200, b"", 1001 + MARK_AGE_MS_MAX))
    assert store.mark("a") is None
    assert store.mark("b") is not None
    store.close()
