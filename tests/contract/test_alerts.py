"""Each alert rule on what the server tells Prometheus: it fires where its runbook begins, and nowhere else."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from mainstem.app.metrics import Refused, render_metrics
from mainstem.doors.admin.server import (
    BufferStatus,
    DeadLetterStatus,
    GatewayStatus,
    LogStatus,
    PipelineStatus,
    Status,
    TableStatus,
)
from mainstem.doors.cdc.ports import DoorStats
from mainstem.wire.reports import BreakerStatus
from tests.harness.promql import Labels, Scrape, firing, scrape

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
TARGET: Labels = frozenset({("job", "mainstem"), ("instance", "lake:8181")})
EVERY_S = 15
# More than the longest window and the longest `for` together.
LOOKS = 90 * 60 // EVERY_S
_UNITS = {"s": 1, "m": 60, "h": 3600}

RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}


class Told(NamedTuple):
    """What a scrape is made of."""

    status: Status
    door: DoorStats
    refused: Refused


def well(look: int) -> Told:
    """A server under load with which nothing is wrong, at the n-th look."""
    at = look * 1_000
    status = Status(
        state="receiving",
        gateway=GatewayStatus(version="1", pid=1, started_ms=0, uptime_s=1.0, rss_bytes=1, connections=2),
        log=LogStatus(id="l", durable=at, sealed=at, segments=1, segment_bytes=1, recovered=None, last_error=None),
        buffer=BufferStatus(
            event_count=100,
            total_size_bytes=1,
            utilization=0.01,
            oldest_batch_time=None,
            last_flush_time=None,
            next_flush_time=None,
        ),
        pipeline=PipelineStatus(
            state="running",
            running=True,
            pid=2,
            restarts=1,
            last_exit=None,
            last_exit_ms=None,
            last_lines=[],
            reported_ms=1,
            checkpointed=at,
            memory={},
            error=None,
            circuit_breaker=BreakerStatus(),
            passes=[],
            totals={},
            micro_batches=[],
            steps={},
        ),
        tables={
            "shop.orders": TableStatus(logged=at, covered=at - 100, lag_changes=100, snapshot_id=1, error=None),
            "shop.idle": TableStatus(logged=7, covered=7, lag_changes=0, snapshot_id=1, error=None),
        },
        groups={"readers": {"clicks": 10}},
        dead_letters={"shop.mended": DeadLetterStatus(total=3, replayed=3, reasons={"price": 2, "day": 1})},
        last_error=None,
    )
    door = DoorStats(changes=at, batches=look, nacks=Counter({"buffer_full": look // 100}))
    return Told(
        status, door, Refused(by_gate={"token_expired": 2}, by_status={404: look, 503: 1}, by_limit={"burst": 3})
    )


def changed(told: Told, part: str, **fields: Any) -> Told:
    inner = msgspec.structs.replace(getattr(told.status, part), **fields)
    return told._replace(status=msgspec.structs.replace(told.status, **{part: inner}))


def table(told: Told, name: str, **fields: Any) -> Told:
    tables = told.status.tables
    tables = {**tables, name: msgspec.structs.replace(tables[name], **fields)}
    return told._replace(status=msgspec.structs.replace(told.status, tables=tables))


def letters(told: Told) -> Told:
    # None of these was ever replayed.
    more = {"shop.orders": DeadLetterStatus(total=5, replayed=0, reasons={"price: '…' is not decimal(10,2)": 5})}
    return told._replace(status=msgspec.structs.replace(told.status, dead_letters={**told.status.dead_letters, **more}))


def metered(growth: Callable[[int], dict[str, Any]]) -> Callable[[Told, int], Told]:
    """Refusals that grow with the seconds."""
    return lambda told, at_s: told._replace(refused=told.refused._replace(**growth(at_s)))


# The same server with what the alert is about, so many seconds after it began.
WRONG: dict[str, Callable[[Told, int], Told]] = {
    "MainstemPipelineDown": lambda told, _: changed(told, "pipeline", running=False, state="down"),
    "MainstemPipelineRestarts": lambda told, at_s: changed(told, "pipeline", restarts=at_s // 120),
    "MainstemTableBroken": lambda told, _: table(told, "shop.idle", error="no such column"),
    "MainstemTableStandsStill": lambda told, _: table(told, "shop.idle", logged=9, lag_changes=2),
    "MainstemBufferFilling": lambda told, _: changed(told, "buffer", utilization=0.6),
    "MainstemBufferFull": lambda told, _: changed(told, "buffer", utilization=0.95),
    "MainstemDeadLetters": lambda told, _: letters(told),
    "MainstemStoreLeftAlone": lambda told, _: changed(
        told, "pipeline", circuit_breaker=BreakerStatus(state="open", openings=1)
    ),
    "MainstemBatchesRefused": lambda told, at_s: told._replace(
        door=DoorStats(nacks=Counter({"invalid_format": at_s * 2}))
    ),
    "MainstemTokensRefused": metered(lambda at_s: {"by_gate": {"token_invalid": at_s * 2}}),
    "MainstemServerErrors": metered(lambda at_s: {"by_status": {404: 5, 500: at_s}}),
    "MainstemRateLimited": metered(lambda at_s: {"by_limit": {"messages_per_s": at_s * 3}}),
    "MainstemQueriesKilled": metered(lambda at_s: {"query_processes": at_s // 60}),
    "MainstemConsumerGroupBehind": lambda told, _: told._replace(
        status=msgspec.structs.replace(told.status, groups={"readers": {"clicks": 200_000}})
    ),
}


def without_pipeline(look: int) -> Told:
    """A server that was started with `--no-pipeline`."""
    return changed(well(look), "pipeline", running=False, state="off", pid=None, restarts=0)


def looks(alert: str | None) -> list[Scrape]:
    """The scrapes of a server that is well, or of one with what the alert is about."""
    found = []
    for look in range(LOOKS):
        told = well(look)
        if alert is not None and alert != "MainstemDown":
            told = WRONG[alert](told, look * EVERY_S)
        found.append(scrape(look * EVERY_S, render_metrics(*told).decode(), TARGET))
    if alert == "MainstemDown":
        # Prometheus' own metric is all that there is of a target that does not answer.
        found = [Scrape(each.at_s, {"up": {TARGET: 0.0}}) for each in found]
    return found


def seconds(rule: Mapping[str, Any]) -> int:
    """How long it has to hold."""
    text = str(rule.get("for", "0s"))
    return int(text[:-1]) * _UNITS[text[-1]]


def alarmed(rule: Mapping[str, Any], scrapes: list[Scrape]) -> list[dict[str, str]]:
    """The labels for which a rule has held long enough."""
    first = LOOKS - seconds(rule) // EVERY_S - 1
    held = [set(firing(rule["expr"], scrapes[: look + 1])) for look in range(first, LOOKS)]
    return [dict(labels) for labels in set.intersection(*held)]


@pytest.fixture(scope="module")
def healthy() -> list[Scrape]:
    return looks(None)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_for_what_it_is_about(alert: str, healthy: list[Scrape]) -> None:
    rule = RULES[alert]
    assert alarmed(rule, healthy) == []
    (labels,) = alarmed(rule, looks(alert))
    # What its sentence names is there to be named.
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert named <= labels.keys(), (named, labels)


def test_a_table_that_catches_up_does_not_stand_still(healthy: list[Scrape]) -> None:
    """It has a lag all the time, and its position moves."""
    lag = firing("mainstem_table_lag_changes > 0", healthy)
    assert [dict(labels)["table"] for labels in lag] == ["shop.orders"]
    assert alarmed(RULES["MainstemTableStandsStill"], healthy) == []


def test_a_server_without_a_pipeline_has_none_that_is_down() -> None:
    """One that is there and down is: see above."""
    scrapes = [
        scrape(look * EVERY_S, render_metrics(*without_pipeline(look)).decode(), TARGET) for look in range(LOOKS)
    ]
    for alert in ("MainstemPipelineDown", "MainstemPipelineRestarts"):
        assert alarmed(RULES[alert], scrapes) == []
