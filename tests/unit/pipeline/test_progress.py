"""What the gateway is told, and when."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest

from mainstem.model import LogPosition, TableName
from mainstem.pipeline.progress import Progress, Reporter
from mainstem.pipeline.settings import PipelineSettings
from mainstem.runtime.clock import ManualClock

ORDERS = TableName("default", "orders")


@pytest.fixture
def gateway() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    heard: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/report", heard
    server.shutdown()
    server.server_close()


def test_a_change_is_reported_at_once(gateway: tuple[str, "Queue[dict[str, Any]]"]) -> None:
    url, heard = gateway
    progress = Progress(ManualClock())
    reporter = Reporter(progress, url, lambda: {"jvm_heap_bytes": 7})
    reporter.start()
    progress.enter("running")
    progress.covers(ORDERS, LogPosition(5))
    progress.checkpointed(3, LogPosition(5))
    report = heard.get(timeout=60)
    while report["checkpointed_position"] != 5:
        report = heard.get(timeout=60)
    assert (report["state"], report["batch_id"], report["memory"]["jvm_heap_bytes"]) == ("running", 3, 7)
    assert report["tables"]["default.orders"]["covered"] == 5
    progress.enter("stopped")
    reporter.stop()
    while report["state"] != "stopped":
        report = heard.get(timeout=60)


def test_a_gateway_that_is_away_does_no_harm() -> None:
    progress = Progress(ManualClock())
    reporter = Reporter(progress, "http://127.0.0.1:1/report", dict)
    reporter.start()
    progress.enter("running")
    reporter.stop()


def test_failures_are_counted_until_one_attempt_succeeds() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    assert progress.failed(ORDERS, "a") == 1
    first_ms = clock.now_ms()
    clock.advance(5)
    assert progress.failed(ORDERS, "b") == 2
    table = progress.report({}).tables["default.orders"]
    assert (table.error, table.since_ms, table.attempts) == ("b", first_ms, 2)
    progress.covers(ORDERS, LogPosition(9))
    table = progress.report({}).tables["default.orders"]
    assert (table.covered, table.error, table.since_ms) == (9, None, None)


def test_settings_are_read_from_json() -> None:
    text = json.dumps(
        {
            "catalog_uri": "http://127.0.0.1:1",
            "segments_dir": "/a/log/segments",
            "checkpoint_dir": "/a/pipeline/checkpoint",
            "jars": ["/j/x.jar"],
            "tables": {"orders": {"history": False}},
        }
    )
    settings = PipelineSettings.from_json(text)
    assert not settings.table(ORDERS).history
    assert settings.table(TableName("default", "other")).history
