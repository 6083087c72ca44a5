"""`/v1/query` on a running server: what is committed, and what is only durable yet."""

import httpx

from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert, update


async def test_snapshot_sees_what_is_committed_and_latest_what_is_durable(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="asked") as client:
        await client.send([insert("asked", "1", {"n": 1}), insert("asked", "2", {"n": 2})])
        await client.flush()
        # Not flushed: durable in the log only, unless the interval passes just now.
        await (await client.send([update("asked", "2", {"n": 20}), insert("asked", "3", {"n": 3})])).durable()
        query = {"sql": "SELECT _key, n FROM default.asked ORDER BY _key", "freshness": "latest"}
        async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
            latest = (await http.post("/v1/query", json=query)).json()
            assert latest["rows"] == [["1", 1], ["2", 20], ["3", 3]]
            await client.flush()
            committed = (await http.post("/v1/query", json={**query, "freshness": "snapshot"})).json()
            assert committed["rows"] == latest["rows"]
            refused = await http.post("/v1/query", json={"sql": "COPY default.asked TO '/tmp/x.csv'"})
            assert refused.status_code == 403
