"""What engines report of their scans and commits is added up, and shown with the metrics."""

from pathlib import Path
from typing import Any

import httpx

from mainstem.catalog.reports import Reported, Reports
from tests.contract.catalog_client import SCHEMA
from tests.harness.inprocess import gateway_on_socket


def _timer(total: Any, unit: str = "nanoseconds") -> dict[str, Any]:
    return {"count": 1, "time-unit": unit, "total-duration": total}


def test_reports_are_added_up_by_their_kind() -> None:
    reports = Reports()
    reports.add("scan-report", {"total-planning-duration": _timer(500_000_000)})
    reports.add("scan-report", {"total-planning-duration": _timer(1_500, "milliseconds")})
    reports.add("commit-report", {"total-duration": _timer(2, "seconds"), "attempts": {"unit": "count", "value": 1}})
    for unreadable in ({}, {"total-duration": 3}, {"total-duration": _timer("x")}, {"total-duration": _timer(1, "y")}):
        reports.add("a report of tomorrow", unreadable)
    assert reports.totals() == {"scan": Reported(2, 2.0), "commit": Reported(1, 2.0), "other": Reported(4, 0.0)}


async def test_the_metrics_show_them(tmp_path: Path) -> None:
    report = {
        "report-type": "scan-report",
        "table-name": "db.t",
        "snapshot-id": 1,
        "filter": True,
        "schema-id": 0,
        "projected-field-ids": [1],
        "projected-field-names": ["id"],
        "metrics": {"total-planning-duration": _timer(250_000_000)},
    }
    async with gateway_on_socket(tmp_path) as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=base, timeout=60) as client:
            (await client.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
            (await client.post("/v1/namespaces/db/tables", json={"name": "t", "schema": SCHEMA})).raise_for_status()
            answer = await client.post("/v1/namespaces/db/tables/t/metrics", json=report)
            assert (answer.status_code, answer.content) == (204, b"")
            assert (await client.post("/v1/namespaces/db/tables/no/metrics", json=report)).status_code == 404
            shown = (await client.get("/metrics")).text
    assert 'mainstem_catalog_reports_total{kind="scan"} 1.0' in shown
    assert 'mainstem_catalog_reported_seconds_total{kind="scan"} 0.25' in shown
