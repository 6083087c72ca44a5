"""A server with the Kafka door open, and record batches made by hand."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import crc32c

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.kafka.config import KafkaConfig
from mainstem.app.process import ServerProcess, reserve_port
from mainstem.wire.kafka.opening import Record, build_batch
from mainstem.wire.kafka.records import HEAD


class KafkaServer(ServerProcess):
    """`mainstem serve` with the door open on a port that stays the same over restarts."""

    def __init__(
        self,
        data: Path,
        *,
        pipeline: bool = False,
        log: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        token: str | None = None,
        **kafka: Any,
    ) -> None:
        self._kafka_place = reserve_port("127.0.0.1")
        port = self._kafka_place.getsockname()[1]
        config = Config(
            log=LogConfig(**({"flush_interval_s": 1.0} | (log or {}))),
            pipeline=PipelineConfig(enabled=pipeline),
            kafka=KafkaConfig(enabled=True, port=port, **kafka),
            **({"server": ServerConfig(port=0)} | (more or {})),
        )
        super().__init__(data, config, token=token)
        self.bootstrap = f"127.0.0.1:{port}"

    async def __aexit__(self, *exc: object) -> None:
        with closing(self._kafka_place):
            await super().__aexit__(*exc)
        # librdkafka's clients that a test has dropped, in a cycle with their callbacks, would go on looking for us.
        gc.collect()


def batch_of(
    values: Sequence[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, time_ms: int = 1_000
) -> bytes:
    """A batch as a producer sends it."""
    records = [Record(number, time_ms + number, b"k", value) for number, value in enumerate(values)]
    built = bytearray(build_batch(records))
    fields = list(HEAD.unpack_from(built))
    fields[9:12] = [producer_id, epoch, sequence]
    HEAD.pack_into(built, 0, *fields)
    built[17:21] = crc32c.crc32c(bytes(built[21:])).to_bytes(4, "big")
    return bytes(built)


async def eventually(check: Any, timeout_s: float = 30.0) -> Any:
    """Ask until the answer is true."""
    async with asyncio.timeout(timeout_s):
        while not (found := await asyncio.to_thread(check)):
            await asyncio.sleep(0.05)
        return found
