"""The Grafana dashboard and the alert rules: every metric that they name is one that the server has."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.auth_tokens import SECURED, bearer, token
from tests.harness.inprocess import gateway_on_socket

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "mainstem.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "guides" / "runbook.md"


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


async def test_every_metric_of_the_dashboard_is_there_and_every_metric_is_on_it(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = {name for text in expressions for name in re.findall(r"mainstem_[a-z_]+", text)}
    assert len(expressions) > 20
    alarmed = {name for rule in _rules() for name in re.findall(r"mainstem_[a-z_]+", rule["expr"])}
    async with gateway_on_socket(tmp_path, gateway_config=SECURED) as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            scrape = await http.get("/metrics", headers=bearer(token("reader")))
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(scrape.text)
    }
    assert named - there == set(), "the dashboard asks for what is not measured"
    assert alarmed and alarmed - there == set(), "an alert asks for what is not measured"
    assert there - named == set(), "what is measured is not on the dashboard"


def test_every_alert_is_in_the_runbook_and_the_runbook_has_no_other() -> None:
    names = [rule["alert"] for rule in _rules()]
    assert len(set(names)) == len(names) > 10
    assert re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE) == names
    for rule in _rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical") and rule["annotations"]["summary"]


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
                assert x < 24
