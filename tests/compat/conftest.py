"""One server with the Kafka door and a pipeline for every module that needs both: Spark's start is paid once."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaServer


@pytest.fixture(scope="session")
def kafka_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Records are soon nowhere but in their tables: segments go at once, and memory is small. Tests keep apart by their
    topics' names."""
    started = KafkaServer(
        tmp_path_factory.mktemp("kafka-lake"),
        pipeline=True,
        log={"segment_retention_s": 0.0},
        tail_bytes_max=1 << 20,
        # Old records are to come from the tables.
        kept_bytes_max=0,
        retention_check_s=1.0,
    )
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())
