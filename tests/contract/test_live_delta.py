"""A table in Delta's format, from a producer to a reader: acks, flush and status know of it as of any other."""

import httpx

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, delete, insert, update
from mainstem.client.delta import DeltaTable, create_storage


async def test_a_delta_table_through_the_server(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="in-delta") as client:
        await client.send([insert("in_delta", str(n), {"n": n, "doc": {"a": [n]}}) for n in range(10)])
        await client.flush()
        await client.send([update("in_delta", "1", {"n": 100}), delete("in_delta", "2")])
        await client.send([insert("in_delta", "x", {"n": 0.5})])
        # Answers once the table covers it.
        await client.flush()
    storage = create_storage(str(live_server.data / "delta"))
    rows = {row["_key"]: row["n"] for row in DeltaTable(storage, "default/in_delta").query()}
    assert rows == {str(n): float(n) for n in range(10) if n != 2} | {"1": 100.0, "x": 0.5}
    assert len(DeltaTable(storage, "default/in_delta_history").query()) == 13
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        status = (await http.get("/status")).json()["tables"]["default.in_delta"]
        listed = (await http.get("/v1/namespaces/default/generic-tables")).json()["identifiers"]
    assert (status["covered"], status["error"]) == (status["logged"], None)
    assert {"namespace": ["default"], "name": "in_delta"} in listed
