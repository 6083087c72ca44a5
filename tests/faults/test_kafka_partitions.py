"""Two gateways over one log on Apache Kafka, and the network between them, or between the leader and Kafka, breaks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from mainstem.app.config import Config, PeersConfig, ServerConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.app.serve import LOST_EXIT_CODE
from tests.faults.test_kafka_gateways import TAKEOVER_S_MAX, Load, config_of
from tests.faults.test_kafka_passing import all_get_on, judge_loads, passing_on, url_of
from tests.harness.apachekafka import ApacheKafka
from tests.harness.proxy import FlakyProxy


def elsewhere(config: Config) -> Config:
    """The same at another port."""
    with reserve_port("127.0.0.1") as place:
        return msgspec.structs.replace(config, server=ServerConfig(port=place.getsockname()[1]))


def load_of(config: Config, source: str) -> Load:
    return Load(f"ws://127.0.0.1:{config.server.port}/ws", source)


@pytest.fixture
def way() -> Iterator[tuple[FlakyProxy, PeersConfig]]:
    """The way to the leader's port for other gateways, and what the leader has to be told to have them take it."""
    with reserve_port("127.0.0.1") as place:
        port = place.getsockname()[1]
        with FlakyProxy(f"http://127.0.0.1:{port}") as proxy:
            yield proxy, PeersConfig(port=port, advertise=proxy.url.removeprefix("http://"))


async def test_the_way_between_the_gateways_breaks(
    tmp_path: Path, broker: ApacheKafka, way: tuple[FlakyProxy, PeersConfig]
) -> None:
    """The leader goes on, no other leads, and clients of the other go on by themselves once there is a way again."""
    proxy, peers = way
    config = config_of(broker, "between", str(tmp_path / "warehouse"))
    first, second = msgspec.structs.replace(config, peers=peers), elsewhere(config)
    by_one, by_two = load_of(first, "one"), load_of(second, "two")
    async with (
        asyncio.TaskGroup() as tasks,
        ServerProcess(tmp_path / "one", first) as one,
        passing_on(tmp_path / "two", second) as (_, leading),
        httpx.AsyncClient(base_url=url_of(second), timeout=60) as http,
    ):
        running = [tasks.create_task(by_two.run())]
        await all_get_on([by_two])
        # What is in the log is told to nobody: the answer is held, and lost with its connection.
        proxy.stall(only_answers=True)
        async with asyncio.timeout(TAKEOVER_S_MAX):
            while not proxy.held or (await one.status())["log"]["durable"] < 2 * len(by_two.told) + 2:
                await asyncio.sleep(0.01)
        proxy.cut()
        proxy.heal()
        await all_get_on([by_two])
        assert by_two.told.count(None) == 1, "the batch whose answer was lost was not known when it came again"

        running.append(tasks.create_task(by_one.run()))
        await all_get_on([by_one, by_two])
        # There is no way at all: who comes to the one that stands by hears so, and the leader's own notice nothing.
        proxy.vanish()
        told = len(by_two.told)
        await all_get_on([by_one])
        answer = await http.get("/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["reason"] == "leader_unreachable"
        assert len(by_two.told) <= told + 1
        proxy.heal()
        await all_get_on([by_one, by_two])
        # Nothing passes, and nobody is told: they wait, and go on where they were.
        proxy.stall()
        await all_get_on([by_one])
        proxy.heal()
        await all_get_on([by_one, by_two])
        assert not leading.done(), "it took the log from a leader that it could not reach"
        assert (await http.get("/status")).json()["gateway"]["pid"] == one.pid
        for load in (by_one, by_two):
            load.stop.set()
        await asyncio.gather(*running)
    await judge_loads(tmp_path / "judge", broker, "between", [by_one, by_two])


async def test_a_leader_that_is_cut_off_from_kafka_acknowledges_nothing(tmp_path: Path, broker: ApacheKafka) -> None:
    assert broker.proxy is not None
    second = config_of(broker, "cut-off", str(tmp_path / "warehouse"))
    log = msgspec.structs.replace(second.log, bootstrap_servers=broker.through)
    first = elsewhere(msgspec.structs.replace(second, log=log))
    by_one, by_two = load_of(first, "one"), load_of(second, "two")
    try:
        async with (
            asyncio.TaskGroup() as tasks,
            ServerProcess(tmp_path / "one", first) as one,
            passing_on(tmp_path / "two", second) as (two, leading),
        ):
            running = [tasks.create_task(load.run()) for load in (by_one, by_two)]
            await all_get_on([by_one, by_two])
            broker.proxy.stall()
            # It stands by until Kafka hears nothing of the leader, though that one still answers its clients.
            async with asyncio.timeout(TAKEOVER_S_MAX):
                await leading
            await all_get_on([by_two])
            before = (await two.status())["log"]["durable"]
            told = len(by_one.told)
            await all_get_on([by_two])
            assert len(by_one.told) == told, "it acknowledged what Kafka cannot have"
            # What it had sent to Kafka arrives now, behind the other's claim.
            broker.proxy.heal()
            async with asyncio.timeout(TAKEOVER_S_MAX):
                assert await one.wait() == LOST_EXIT_CODE
            assert all(last <= before for _, last in by_one.placed[told:])
            async with passing_on(tmp_path / "one", first):
                await all_get_on([by_one, by_two])
                for load in (by_one, by_two):
                    load.stop.set()
                await asyncio.gather(*running)
    finally:
        broker.proxy.heal()
    await judge_loads(tmp_path / "judge", broker, "cut-off", [by_one, by_two])
