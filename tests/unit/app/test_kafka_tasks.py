"""The tasks of Kafka's coordinators: what goes wrong in one ends neither it nor the server."""

import asyncio

import pytest

from mainstem.app.kafka import groups as kafka_groups


async def test_a_task_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(kafka_groups, "RESTART_S", 0.0)
    tries: list[int] = []

    async def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise KeyError("a mistake of ours")

    async with asyncio.timeout(5):
        await kafka_groups._kept_up(work)
    assert len(tries) == 3
    assert [record.message for record in caplog.records] == ["kafka.coordination_failed"] * 2
