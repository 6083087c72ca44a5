"""What the gateway is told, and when."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest

from mainstem.model import Invalid, LogPosition, TableName
from mainstem.pipeline.progress import Progress, Reporter
from mainstem.pipeline.settings import PipelineSettings
from mainstem.runtime.clock import ManualClock
from mainstem.wire.reports import PassStatus

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
    while report["checkpointedPosition"] != 5:
        report = heard.get(timeout=60)
    assert (report["state"], report["batchId"], report["memory"]["jvm_heap_bytes"]) == ("running", 3, 7)
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


def test_a_micro_batch_is_told_once_however_often_spark_says_it() -> None:
    progress = Progress(ManualClock())
    for _ in range(3):
        progress.told_by_spark(4, 1_000, {"addBatch": 500, "walCommit": 20, "triggerExecution": 530})
    # A trigger that found nothing new, under the number that the next micro-batch will have.
    progress.told_by_spark(5, 0, {"latestOffset": 3, "triggerExecution": 3})
    progress.told_by_spark(5, 200, {"addBatch": 250, "triggerExecution": 300})
    report = progress.report({})
    assert [(each.batch, each.rows_in, each.steps["addBatch"]) for each in report.micro_batches] == [
        ("4", 1_000, 0.5),
        ("5", 200, 0.25),
    ]
    assert report.steps == pytest.approx({"addBatch": 0.75, "walCommit": 0.02, "triggerExecution": 0.83})
    assert report.totals["rows_in"] == 1_200


def test_settings_are_read_from_json() -> None:
    text = json.dumps(
        {
            "catalog_uri": "http://127.0.0.1:1",
            "segments_dir": "/a/log/segments",
            "checkpoint_dir": "/a/pipeline/checkpoint",
            "jars": ["/j/x.jar"],
            "master": "local[2]",
            "driver_memory": "1g",
            "trigger_s": 0.5,
            "ui_port": 0,
            "breaker_failures": 3,
            "breaker_open_s": 1.0,
            "dropped_tables": "refuse",
            "tables": {"orders": {"history": False}},
        }
    )
    settings = PipelineSettings.from_document(json.loads(text))
    assert not settings.table(ORDERS).history
    assert settings.table(TableName("default", "other")).history
    incomplete = {name: value for name, value in json.loads(text).items() if name != "trigger_s"}
    with pytest.raises(Invalid, match="trigger_s"):
        PipelineSettings.from_document(incomplete)


def test_passes_are_numbered_whatever_batch_they_are_of() -> None:
    progress = Progress(ManualClock())
    for batch, read in (("start", 5), ("7", 2), ("7", 3)):
        progress.passed(PassStatus(batch=batch, rows_read=read))
    report = progress.report({})
    assert [(each.number, each.batch) for each in report.passes] == [(1, "start"), (2, "7"), (3, "7")]
    # What was caught up is in it; Spark's own progress knows nothing of that.
    assert (report.totals["rows_read"], report.totals["rows_in"]) == (10, 0)
