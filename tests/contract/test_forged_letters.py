"""A table of dead letters is a table like others: whoever may write its namespace may have filled it, with anything.

Replayed, such rows go into the log that all tenants share. No row may move the log's clock, take the form of what the
log cannot read again, or reach a table that the caller may not write otherwise.
"""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

FORGER = token("writer", "sales")
HLC = 1_700_000_000_000 << 16
GOOD: dict[str, Any] = {
    "_position": 7,
    "_hlc": HLC,
    "_op": "insert",
    "_key": "k",
    "_columns": '{"a": 1}',
    "_before": None,
    "_source": "db",
    "_sequence": 1,
    "_id": None,
    "_time": None,
    "_source_time": None,
    "_metadata": None,
    "_reason": "made up",
}
TYPES: dict[str, pa.DataType] = {
    name: pa.int64() if name in ("_position", "_hlc", "_sequence") else pa.string() for name in GOOD
} | {"_time": pa.timestamp("us", "UTC"), "_source_time": pa.timestamp("us", "UTC")}
# What is forged, and the types of its columns where they are not the usual ones.
FORGED: dict[str, tuple[dict[str, Any], dict[str, pa.DataType]]] = {
    "the last clock there is": ({"_hlc": (1 << 63) - 1}, {}),
    "a clock of next year": ({"_hlc": HLC + (10**12 << 16)}, {}),
    "a clock below zero": ({"_hlc": -5}, {}),
    "a clock that is text": ({"_hlc": "soon"}, {"_hlc": pa.string()}),
    "a clock that is a fraction": ({"_hlc": 1.5}, {"_hlc": pa.float64()}),
    "no clock": ({"_hlc": None}, {}),
    "a key that is a number": ({"_key": 5}, {"_key": pa.int64()}),
    "a key that is bytes": ({"_key": b"\xff"}, {"_key": pa.binary()}),
    "no key": ({"_key": None}, {}),
    "an id that is a number": ({"_id": 5}, {"_id": pa.int64()}),
    "a sequence that is text": ({"_sequence": "one"}, {"_sequence": pa.string()}),
    "a sequence that is a fraction": ({"_sequence": 1.5}, {"_sequence": pa.float64()}),
    "a position below zero": ({"_position": -1}, {}),
    "a position that is text": ({"_position": "x"}, {"_position": pa.string()}),
    "no position": ({"_position": None}, {}),
    "an operation that is none": ({"_op": "drop"}, {}),
    "an operation that is a number": ({"_op": 1}, {"_op": pa.int64()}),
    "columns that are bytes": ({"_columns": b"\xff\xfe"}, {"_columns": pa.binary()}),
    "columns that are a number": ({"_columns": 5}, {"_columns": pa.int64()}),
    "a time that is text": ({"_time": "x"}, {"_time": pa.string()}),
    "a source's time that is text": ({"_source_time": "x"}, {"_source_time": pa.string()}),
    "metadata that are a number": ({"_metadata": 5}, {"_metadata": pa.int64()}),
    "a source that is bytes": ({"_source": b"\xff"}, {"_source": pa.binary()}),
    "a reason that is a number": ({"_reason": 5}, {"_reason": pa.int64()}),
}


def forge(url: str, table: str, row: dict[str, Any], types: dict[str, pa.DataType]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyiceberg.catalog.rest import RestCatalog

        catalog = RestCatalog("lake", uri=url, token=FORGER)
        values = pa.table({name: pa.array([row[name]], (TYPES | types)[name]) for name in row})
        catalog.create_table(f"sales.{table}_dead_letters", values.schema).append(values)


async def test_a_forged_letter_harms_nobody(tmp_path: Path) -> None:
    headers = bearer(FORGER)
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (gateway, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            made = await http.post("/v1/namespaces", json={"namespace": ["sales"]}, headers=bearer(token()))
            assert made.status_code == 200, made.text
            for number, (forged, (values, types)) in enumerate(FORGED.items()):
                await asyncio.to_thread(forge, url, f"t{number}", GOOD | values, types)
                path = f"/v1/tables/sales.t{number}/dead-letters"
                listed = await http.get(path, headers=headers)
                assert listed.status_code in (200, 400), (forged, listed.text)
                replayed = await http.post(f"{path}/replay", json={"all": True}, headers=headers)
                assert replayed.status_code in (200, 400), (forged, replayed.text)
                # Others go on, under clocks that are the time, and what they send is sealed.
                row = await http.post("/v1/ingest/hr/pay?key=id", json={"id": number}, headers=bearer(token()))
                assert row.status_code == 200, (forged, row.text)
                position = await asyncio.wait_for(gateway._log.flush(), 30)
                assert gateway._log.sealed == position, (forged, gateway._log.stats().last_error)
                # The clocks of a batch are above every one that came before.
                assert gateway._log.segments()[-1].hlc_last >> 16 < gateway._clock.now_ms() + 5_000, forged
            # The rules of a sync gateway are not for a writer, and no letter brings them.
            path = "/v1/tables/sales.sync_rules/dead-letters/replay"
            assert (await http.post(path, json={"all": True}, headers=headers)).status_code == 403
            admin = bearer(token("admin", "sales"))
            refused = await http.post(path, json={"all": True}, headers=admin)
            assert refused.status_code == 400 and "reserved" in refused.text


async def test_a_letter_as_deep_as_they_come_is_listed(tmp_path: Path) -> None:
    deep = '{"a": ' + "[" * 5_000 + "]" * 5_000 + "}"
    values = {"_columns": deep, "_before": deep, "_metadata": deep}
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=bearer(token())) as http:
            await http.post("/v1/namespaces", json={"namespace": ["sales"]})
            await asyncio.to_thread(forge, url, "orders", GOOD | values, {})
            path = "/v1/tables/sales.orders/dead-letters"
            listed = (await http.get(path)).json()
            assert [each["columns"] for each in listed["letters"]] == [deep]
            whole = (await http.post(f"{path}/replay", json={"all": True})).json()
            assert (whole["replayed"], len(whole["failures"])) in ((0, 1), (1, 0)), whole
            mended = (await http.post(f"{path}/replay", json={"all": True, "columns": {"a": 1}})).json()
            assert (mended["replayed"] + whole["replayed"], mended["failures"]) == (1, []), mended
