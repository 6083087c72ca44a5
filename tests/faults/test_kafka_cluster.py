"""The log on three nodes of Apache Kafka, of which the one that leads it is killed. DuckDB judges its segments."""

import asyncio
from pathlib import Path

import duckdb
import msgspec
import pytest

from mainstem.app.process import ServerProcess
from mainstem.log.kafka.settings import KafkaLogSettings
from tests.faults.test_kafka_gateways import Load, config_of
from tests.faults.test_kafka_log import judge
from tests.faults.test_kafka_passing import all_get_on
from tests.harness.apachekafka import KafkaCluster

TOPIC = "cluster.log"
KEYS = 3


async def until_all_are_in_sync(cluster: KafkaCluster) -> None:
    async with asyncio.timeout(60):
        while await asyncio.to_thread(cluster.in_sync, TOPIC) != {1, 2, 3}:
            await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
async def test_the_broker_that_leads_the_log_is_killed_in_the_middle_of_appends(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path) as cluster:
        config = config_of(cluster, "cluster", str(tmp_path / "warehouse"))
        config = msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, replication=3))
        loads = [Load(f"ws://127.0.0.1:{config.server.port}/ws", f"s{number}", KEYS) for number in range(4)]
        async with asyncio.TaskGroup() as tasks, ServerProcess(tmp_path / "data", config) as gateway:
            running = [tasks.create_task(load.run()) for load in loads]
            await all_get_on(loads)
            await until_all_are_in_sync(cluster)
            async with asyncio.timeout(60):
                while (killed := await asyncio.to_thread(cluster.leader, TOPIC)) is None:
                    await asyncio.sleep(0.1)
            killed.kill()
            # The same process goes on, under a broker that leads now.
            await all_get_on(loads)
            async with asyncio.timeout(60):
                while await asyncio.to_thread(cluster.leader, TOPIC) in (None, killed):
                    await asyncio.sleep(0.1)
            for load in loads:
                load.stop.set()
            await asyncio.gather(*running)
            status = await gateway.status()
            assert (status["gateway"]["pid"], status["log"]["durable"]) == (
                gateway.pid,
                2 * sum(len(load.told) for load in loads),
            )
        diary = await judge(tmp_path / "judge", KafkaLogSettings(cluster.bootstrap, TOPIC), {}, distinct=False)
    for load in loads:
        sequences = [sequence for source, sequence, _, _ in diary.seen if source == load.source]
        assert sequences == list(range(1, len(load.told) + 1))
    found = duckdb.sql(
        "SELECT source, key, list(CAST(columns->>'n' AS INT) ORDER BY position), list(position ORDER BY position) "
        f"FROM '{tmp_path}/judge/**/*.parquet' GROUP BY ALL"
    ).fetchall()
    by_key = {(source, key): (ns, at) for source, key, ns, at in found}
    # Each batch has its change twice.
    assert {each: ns for each, (ns, _) in by_key.items()} == {
        (load.source, f"{load.source}-{key}"): [n for n in range(key, len(load.told), KEYS) for _ in range(2)]
        for load in loads
        for key in range(KEYS)
    }
    for load in loads:
        for number, places in enumerate(load.told):
            _, at = by_key[load.source, f"{load.source}-{number % KEYS}"]
            assert places is None or at[number // KEYS * 2 : number // KEYS * 2 + 2] == list(places)
