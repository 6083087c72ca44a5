"""The configuration over HTTP: checked, kept, audited, in effect at once; and what an operator looks at besides."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.tuning import CHANGES_FILE, Tuner
from mainstem.client import CdcClient, insert
from mainstem.model import Invalid, Overloaded
from mainstem.runtime.clock import ManualClock
from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

ALONE = Config(
    server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), log=LogConfig(flush_interval_s=3600.0)
)
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}


def http_url(ws_url: str) -> str:
    return ws_url.replace("ws://", "http://").removesuffix("/ws")


async def test_a_change_takes_effect_is_told_and_survives_a_kill(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, ALONE)
    async with server, httpx.AsyncClient(timeout=60) as http:
        before = (await http.get(f"{server.url}/v1/config/server")).json()
        assert before["settings"]["flushIntervalMs"] == 3_600_000
        assert (before["changed"], before["changes"]) == ([], [])
        answer = await http.patch(f"{server.url}/v1/config", json={"flushThresholdEvents": 3, "maxConnections": 7})
        assert answer.status_code == 200
        async with CdcClient(server.ws_url, source="s") as client:
            receipt = await client.send([insert("t", str(n), {"n": n}) for n in range(3)])
            await receipt.durable()
            # By the file it would wait an hour; by the change three events are enough.
            while (await server.status())["log"]["sealed"] < 3:
                await asyncio.sleep(0.05)
        server.kill()
        await server.start()
        after = (await http.get(f"{server.url}/v1/config/server")).json()
        assert after == answer.json()
        assert after["changed"] == ["flushThresholdEvents", "maxConnections"]
        (change,) = after["changes"]
        assert (change["by"], change["address"]) == ("anyone", "127.0.0.1")
        assert change["before"] == {"flushThresholdEvents": 10_000, "maxConnections": 10_000}
        assert change["after"] == {"flushThresholdEvents": 3, "maxConnections": 7}
        back = (await http.patch(f"{server.url}/v1/config", json={"flushThresholdEvents": None})).json()
        assert back["changed"] == ["maxConnections"]
        assert back["settings"]["flushThresholdEvents"] == 10_000
        # The Iceberg catalog's own configuration is where its clients look for it.
        assert "endpoints" in (await http.get(f"{server.url}/v1/config")).json()


WRONG: list[tuple[Any, str]] = [
    ({"flushThresholdEvents": 0}, "flushThresholdEvents"),
    ({"flushThresholdEvents": "many"}, "flushThresholdEvents"),
    ({"flushIntervalMs": -1}, "flushIntervalMs"),
    ({"flushThresholdBytes": 1.5}, "flushThresholdBytes"),
    ({"nonsense": 1}, "nonsense"),
    ({"enableDeduplication": False}, "count twice"),
    ({"enableFallback": False}, "the log is always there"),
    ({"maxFallbackSize": 1}, "maxBufferSize"),
    ({"deduplicationWindowMs": 1}, "however old"),
    ({"r2BucketName": "b"}, "warehouse"),
    ({"r2BasePath": "p"}, "warehouse"),
    ({"parquetCompression": "lzo"}, "parquetCompression"),
    ({"parquetRowGroupSize": 0}, "parquetRowGroupSize"),
    ({"maxPayloadSize": 1 << 30}, "maxPayloadSize"),
    ({"maxBufferSize": 1}, "maxBufferSize"),
    ({}, "nothing to change"),
    ([], "array"),
    ("x", "str"),
]


async def test_what_is_wrong_changes_nothing_and_is_told(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=ALONE) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        before = (await http.get("/v1/config/server")).json()
        for body, complaint in WRONG:
            answer = await http.patch("/v1/config", json=body)
            assert answer.status_code == 400, body
            assert complaint in answer.json()["error"]["message"]
        assert (await http.get("/v1/config/server")).json() == before
    assert not (tmp_path / CHANGES_FILE).exists()


async def test_a_bound_that_is_lowered_holds_for_the_next_one_who_comes(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=ALONE) as (gateway, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
        CdcClient(ws_url, source="first") as client,
    ):
        assert (await http.patch("/v1/config", json={"maxConnections": 1})).status_code == 200
        with pytest.raises(Overloaded):
            async with CdcClient(ws_url, source="second", open_timeout_s=0.5):
                pass
        await (await client.send([insert("t", "1", {"a": 1})])).durable()
        small = {"flushThresholdBytes": 1, "maxBufferSize": 1}
        assert (await http.patch("/v1/config", json=small)).status_code == 200
        assert gateway.carried.utilization() == 1.0


async def test_only_an_admin_of_everything_changes_and_is_named(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        change = {"flushThresholdEvents": 5}
        for text in (token("writer"), token("admin", "sales")):
            assert (await http.patch("/v1/config", json=change, headers=bearer(text))).status_code == 403
            assert (await http.get("/v1/config/server", headers=bearer(text))).status_code == 403
        changed = await http.patch("/v1/config", json=change, headers=bearer(token(sub="ann")))
        assert [entry["by"] for entry in changed.json()["changes"]] == ["ann"]


def test_a_line_that_was_cut_off_is_no_change_and_the_next_one_is_whole(tmp_path: Path) -> None:
    line = b'{"atMs":1,"by":"ann","address":null,"before":{},"after":{"flushThresholdEvents":5}}\n'
    (tmp_path / CHANGES_FILE).write_bytes(line + line[:40])
    tuner = Tuner(ALONE, tmp_path, ManualClock())
    assert tuner.config.log.flush_events == 5
    assert (tmp_path / CHANGES_FILE).read_bytes() == line


def test_what_a_later_version_wrote_is_kept_and_means_nothing(tmp_path: Path) -> None:
    (tmp_path / CHANGES_FILE).write_bytes(
        b'{"atMs":1,"by":"ann","address":null,"before":{},"after":{"warpFactor":9,"flushThresholdEvents":5}}\n'
    )
    assert Tuner(ALONE, tmp_path, ManualClock()).config.log.flush_events == 5
    (tmp_path / CHANGES_FILE).write_bytes(b"nonsense\n")
    with pytest.raises(Invalid, match=CHANGES_FILE):
        Tuner(ALONE, tmp_path, ManualClock())


async def test_what_an_operator_looks_at(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        everything, sales = bearer(token()), bearer(token("reader", "sales"))
        for namespace in ("sales", "secret"):
            await http.post("/v1/namespaces", json={"namespace": [namespace]}, headers=everything)
            body = {"name": "orders", "schema": SCHEMA}
            await http.post(f"/v1/namespaces/{namespace}/tables", json=body, headers=everything)

        async def ask(path: str, headers: dict[str, str]) -> Any:
            answer = await http.get(path, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        scaling = await ask("/v1/scaling/status", sales)
        assert scaling["state"] in ("ok", "busy", "full")
        assert {"backlog", "connections"} <= {bound["name"] for bound in scaling["bounds"]}
        memory = await ask("/v1/memory-stats", sales)
        assert memory["gateway"]["residentBytes"] > 10_000_000
        for path in ("/v1/write-stats", "/v1/overview"):
            assert [table["table"] for table in (await ask(path, everything))["tables"]] == [
                "sales.orders",
                "secret.orders",
            ]
            assert [table["table"] for table in (await ask(path, sales))["tables"]] == ["sales.orders"]
            cut = await ask(f"{path}?limit=1", everything)
            assert (len(cut["tables"]), cut["truncated"]) == (1, True)
            assert (await http.get(f"{path}?limit=0", headers=everything)).status_code == 400
        (table,) = (await ask("/v1/overview", sales))["tables"]
        assert table["columns"] == [{"name": "a", "type": "long", "required": False}]
        assert (await http.get("/v1/errors", headers=sales)).status_code == 403
        assert (await ask("/v1/errors", everything))["errors"] == []


# Every setting that the seed's documentation names, and a value for it. The rest of them are in WRONG, each with what
# took its place.
DOCUMENTED: dict[str, Any] = {
    "flushThresholdEvents": 7,
    "flushThresholdBytes": 1 << 20,
    "flushThresholdMs": 1000,
    "flushIntervalMs": 2000,
    "maxBufferSize": 1 << 27,
    "parquetRowGroupSize": 5000,
    "parquetCompression": "snappy",
    "connectionsPerSecond": 3,
    "messagesPerSecond": 4,
    "burstCapacity": 5,
    "refillRate": 6.5,
    "maxPayloadSize": 2000,
    "maxEventSize": 1000,
    "maxConnectionsPerSource": 2,
    "maxConnectionsPerIp": 3,
    "subnetRateLimitThreshold": 4,
    "whitelistedIps": ["10.0.0.0/8"],
    "backpressureThreshold": 0.5,
    "baseRetryDelayMs": 10,
    "maxRetryDelayMs": 20,
    "minFilesToCompact": 3,
    "maxFilesToCompact": 9,
    "targetFileSizeBytes": 1 << 20,
}
ELSEWHERE = {
    "r2BucketName", "r2BasePath", "enableFallback", "maxFallbackSize", "enableDeduplication", "deduplicationWindowMs",
}  # fmt: skip


async def test_every_documented_setting_can_be_changed_or_says_what_took_its_place(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "operations.md").read_text()
    async with (
        gateway_on_socket(tmp_path, gateway_config=ALONE) as (gateway, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
    ):
        for name, value in DOCUMENTED.items():
            answer = await http.patch("/v1/config", json={name: value})
            assert answer.status_code == 200, answer.text
            assert answer.json()["settings"][name] == value
            assert f"`{name}`" in guide, name
        for name in ELSEWHERE:
            answer = await http.patch("/v1/config", json={name: 1})
            assert answer.json()["error"]["reason"] == "not_changeable"
            assert f"`{name}`" in guide, name
        assert gateway.config.parquet.row_group_rows == 5000


async def test_the_same_settings_stand_in_the_file(tmp_path: Path) -> None:
    from mainstem.app.config import load_config

    file = tmp_path / "mainstem.toml"
    file.write_text(
        "[limits]\npayload_bytes_max = 2000\nevent_bytes_max = 1000\n"
        '[parquet]\ncompression = "snappy"\nrow_group_rows = 5000\n'
    )
    tuner = Tuner(load_config(file), tmp_path, ManualClock())
    settings = tuner.view().settings
    assert (settings.max_payload_size, settings.max_event_size) == (2000, 1000)
    assert (settings.parquet_compression, settings.parquet_row_group_size) == ("snappy", 5000)


async def test_sizes_that_are_lowered_hold_for_connections_that_are_open(tmp_path: Path) -> None:
    async with (
        gateway_on_socket(tmp_path, gateway_config=ALONE) as (_, ws_url),
        httpx.AsyncClient(timeout=60, base_url=http_url(ws_url)) as http,
        websockets.connect(ws_url) as socket,
    ):

        async def send(sequence: int, size: int) -> Any:
            event = {"sequence": 1, "timestamp": 1, "operation": "INSERT", "table": "t", "rowId": "1"}
            event["after"] = {"a": "x" * size}
            batch = {"type": "cdc_batch", "sourceDoId": "db", "events": [event], "sequenceNumber": sequence}
            await socket.send(json.dumps({**batch, "timestamp": 1}))
            return json.loads(await socket.recv())

        assert (await send(1, 5000))["type"] == "ack"
        assert (await http.patch("/v1/config", json={"maxEventSize": 1000})).status_code == 200
        assert (await send(2, 5000))["reason"] == "event_too_large"
        assert (await send(2, 500))["type"] == "ack"
        assert (await http.patch("/v1/config", json={"maxPayloadSize": 300})).status_code == 200
        assert (await send(3, 500))["reason"] == "payload_too_large"
        assert (await http.patch("/v1/config", json={"maxEventSize": None, "maxPayloadSize": None})).status_code == 200
        assert (await send(3, 5000))["type"] == "ack"
