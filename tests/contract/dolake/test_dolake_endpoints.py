"""DoLake's own tables, row by row: every default and every endpoint.

Each row is one promise of its documents, asked of a real server over real sockets. What needs no Spark runs against a
server without its pipeline; the few rows that need tables use the shared one. Where Mainstem differs on purpose, the
row says so and why.
"""

import time
from typing import Any

import httpx
import pytest

from mainstem.admission import DedupSettings, Limits, RateSettings
from mainstem.app.config import LogConfig, PipelineConfig
from mainstem.app.process import ServerProcess
from mainstem.tables.maintenance import MaintenanceSettings
from tests.contract.dolake.dolake_messages import a_source, an_address, batch
from tests.harness.cdcwire import Wire

# Defaults

DEFAULTS = [
    ("flushThresholdEvents", 10_000, LogConfig().flush_events),
    ("flushThresholdBytes", 33_554_432, LogConfig().flush_bytes),
    ("flushThresholdMs", 60_000, LogConfig().flush_age_s * 1000),
    ("flushIntervalMs", 30_000, LogConfig().flush_interval_s * 1000),
    # DoLake's buffer is memory, ours is the disk: 32 times its 128 MiB.
    ("maxBufferSize", 134_217_728, LogConfig().buffer_bytes_max / 32),
    ("deduplicationWindowMs", 300_000, DedupSettings().idle_ms),
    ("connectionsPerSecond", 20, RateSettings().connections_per_s),
    ("messagesPerSecond", 100, RateSettings().messages_per_s),
    ("burstCapacity", 50, RateSettings().burst),
    ("refillRate", 10, RateSettings().refill_per_s),
    ("maxPayloadSize", 4_194_304, Limits().payload_bytes_max),
    ("maxEventSize", 1_048_576, Limits().event_bytes_max),
    ("maxConnectionsPerSource", 5, RateSettings().connections_per_source),
    ("maxConnectionsPerIp", 30, RateSettings().connections_per_address),
    ("subnetRateLimitThreshold", 100, RateSettings().connections_per_subnet),
    ("backpressureThreshold", 0.8, RateSettings().pressure_threshold),
    ("baseRetryDelayMs", 100, RateSettings().retry_ms_min),
    ("maxRetryDelayMs", 30_000, RateSettings().retry_ms_max),
    ("minFilesToCompact", 5, MaintenanceSettings().min_files),
    ("maxFilesToCompact", 100, MaintenanceSettings().max_files),
    ("targetFileSizeBytes", 134_217_728, MaintenanceSettings().target_file_bytes),
    ("autoCompact", True, MaintenanceSettings().auto),
    ("compactionIntervalMs", 3_600_000, MaintenanceSettings().interval_s * 1000),
    ("circuit breaker: failures", 5, PipelineConfig().breaker_failures),
    ("circuit breaker: pause in ms", 30_000, PipelineConfig().breaker_open_s * 1000),
]


@pytest.mark.parametrize(("name", "theirs", "ours"), DEFAULTS, ids=[name for name, _, _ in DEFAULTS])
def test_defaults(name: str, theirs: float, ours: float) -> None:
    assert ours == theirs


# Endpoints

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
# In this order: what one makes the next ones need.
ENDPOINTS: list[tuple[str, str, Any, int]] = [
    ("GET", "/health", None, 200),
    ("GET", "/status", None, 200),
    ("GET", "/metrics", None, 200),
    # Nobody carries anything into tables here: it says so in time, and that nothing is lost.
    ("POST", "/flush?timeoutS=0.1", None, 504),
    ("PATCH", "/v1/config", {"flushIntervalMs": 30_000}, 200),
    ("GET", "/v1/scaling/status", None, 200),
    ("GET", "/v1/memory-stats", None, 200),
    ("GET", "/v1/write-stats", None, 200),
    ("GET", "/v1/compaction/candidates", None, 200),
    ("GET", "/v1/compaction/metrics", None, 200),
    ("POST", "/v1/compaction/auto", {}, 200),
    ("GET", "/v1/namespaces", None, 200),
    ("POST", "/v1/namespaces", {"namespace": ["rows"]}, 200),
    ("GET", "/v1/namespaces/rows", None, 200),
    ("PATCH", "/v1/namespaces/rows/properties", {"updates": {"owner": "us"}}, 200),
    ("POST", "/v1/namespaces/rows/properties", {"removals": ["owner"]}, 200),
    ("GET", "/v1/namespaces/rows/tables", None, 200),
    ("POST", "/v1/namespaces/rows/tables", {"name": "t", "schema": SCHEMA}, 200),
    ("GET", "/v1/namespaces/rows/tables/t", None, 200),
    ("POST", "/v1/namespaces/rows/tables/t/commits", {"requirements": [], "updates": []}, 200),
    ("POST", "/v1/query", {"sql": "SELECT count(*) AS n FROM rows.t"}, 200),
    ("POST", "/v1/query/plan", {"sql": "SELECT a FROM rows.t"}, 200),
    ("POST", "/v1/query/route", {"sql": "SELECT a FROM rows.t"}, 200),
    ("POST", "/v1/compaction/run", {"namespace": "rows", "table": "t", "dryRun": True}, 200),
    ("DELETE", "/v1/namespaces/rows/tables/t", None, 204),
    ("DELETE", "/v1/namespaces/rows", None, 204),
]


async def test_every_endpoint(server: ServerProcess) -> None:
    async with Wire(server.ws_url) as wire:
        await wire.ask(batch(a_source()))
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for method, path, body, status in ENDPOINTS:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == status, (method, path, answer.text)
            for name in ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"):
                assert answer.headers[name].isdecimal(), (path, name)


async def test_requests_beyond_the_limit_are_told_when_to_come_back(server: ServerProcess) -> None:
    headers = {"X-Forwarded-For": an_address()}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as http:
        answers = [await http.get("/health") for _ in range(160)]
    assert [answer.status_code for answer in answers[:100]] == [200] * 100
    remaining = [int(answer.headers["X-RateLimit-Remaining"]) for answer in answers[:100]]
    assert remaining[0] == 99
    refused = [answer for answer in answers if answer.status_code == 429]
    for answer in refused:
        assert int(answer.headers["Retry-After"]) >= 1
        assert (answer.headers["X-RateLimit-Limit"], answer.headers["X-RateLimit-Remaining"]) == ("100", "0")
        assert abs(int(answer.headers["X-RateLimit-Reset"]) - time.time()) < 60
        told = answer.json()
        assert "too many requests" in told["detail"]
        assert told["reason"] == told["error"]["reason"] == "rate_limited"
