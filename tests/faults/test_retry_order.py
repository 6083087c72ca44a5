"""Failing fsyncs with retries in flight: a batch that is sent again never comes after those sent behind it."""

import asyncio
import errno
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.admission import Dedup, Gate, Intake
from mainstem.admission.turns import TurnSettings
from mainstem.doors.cdc.ports import CdcSettings
from mainstem.doors.cdc.session import CdcSession
from mainstem.doors.cdc.ws import CdcDoor
from mainstem.log import Log
from mainstem.log.disk import OsDisk
from mainstem.model.batch import BatchHeader
from mainstem.model.errors import Overloaded
from mainstem.runtime.clock import SystemClock
from tests.harness.memory_lake import MemoryLake
from tests.harness.seeds import soak_seeds
from tests.unit.log.log_fixtures import InlineSealer, batch, quiet

FAILING = OSError(errno.EIO, os.strerror(errno.EIO))
RETRY_S = 0.02


class Diary(Dedup):
    """Remembers the order in which batches became durable."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.order: dict[str, list[int]] = {}

    def record(self, header: BatchHeader) -> None:
        super().record(header)
        self.order.setdefault(header.source, []).append(header.sequence)


class MoodyDisk(OsDisk):
    """A real disk on which a sync fails now and then, by a seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.odds = 0.0

    def sync(self, fd: int) -> None:
        if self._chance.random() < self.odds:
            raise FAILING
        super().sync(fd)


class OneBadSync(OsDisk):
    """A real disk whose next sync fails once."""

    is_bad = False

    def sync(self, fd: int) -> None:
        if self.is_bad:
            self.is_bad = False
            raise FAILING
        super().sync(fd)


async def test_what_was_appended_behind_a_refused_batch_is_refused_too(tmp_path: Path) -> None:
    disk, diary = OneBadSync(), Diary()
    settings = quiet(tmp_path, group_bytes_max=1, retry_after_s=RETRY_S)
    log = await Log.open(settings, companion=diary, disk=disk, sealer=InlineSealer())
    await log.append(batch(1))
    disk.is_bad = True
    # A group of its own for each: the disk is well again by the second.
    outcomes = await asyncio.gather(*(log.append(batch(n)) for n in (2, 3, 4)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 3
    # Before the one that was refused first has come back, or its time is over, no other gets in.
    with pytest.raises(Overloaded, match="an earlier batch waits for its retry"):
        log.append(batch(3))
    other = log.append(batch(3, source="other"))
    await asyncio.gather(log.append(batch(2)), log.append(batch(3)), other)
    assert diary.order == {"app": [1, 2, 3], "other": [3]}
    await log.close()


async def test_a_batch_that_never_comes_back_holds_the_others_up_for_its_time_only(tmp_path: Path) -> None:
    disk, diary = OneBadSync(), Diary()
    log = await Log.open(quiet(tmp_path, retry_after_s=RETRY_S), companion=diary, disk=disk, sealer=InlineSealer())
    disk.is_bad = True
    with pytest.raises(Overloaded) as refused:
        await log.append(batch(1))
    await asyncio.sleep(refused.value.retry_after_s)
    await log.append(batch(2))
    assert diary.order == {"app": [2]}
    await log.close()


async def test_what_waits_for_its_turn_behind_a_refused_batch_is_refused_too(tmp_path: Path) -> None:
    disk, diary = OneBadSync(), Diary()
    log = await Log.open(quiet(tmp_path), companion=diary, disk=disk, sealer=InlineSealer())
    # So little may be on its way that each waits for the one before it.
    intake = Intake(Gate(diary), log, TurnSettings(on_the_way_bytes_max=1, share_bytes=1))
    disk.is_bad = True
    tickets = [intake.take(batch(n).batch) for n in (1, 2, 3)]
    outcomes = await asyncio.gather(*(t.outcome for t in tickets if t.outcome), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 3
    assert diary.order == {}
    await log.close()


class Producer:
    """Sends ahead without waiting, and what was refused again, in its order, once it is told that it may."""

    def __init__(self, source: str, count: int, window: int, session: "Wire") -> None:
        self._source = source
        self._to_send = list(range(1, count + 1))
        self._window = window
        self._session = session

    async def run(self) -> None:
        under_way: list[int] = []
        refused: list[int] = []
        wait_s = 0.0
        while self._to_send or under_way:
            # After a refusal nothing new is sent; what is on the wire already is, of course.
            while self._to_send and not refused and len(under_way) < self._window:
                self._session.say(self._message(self._to_send[0]))
                under_way.append(self._to_send.pop(0))
            answer = await self._session.hear()
            assert answer["sequenceNumber"] == under_way.pop(0)
            if answer["type"] == "nack":
                assert answer["shouldRetry"], answer
                refused.append(answer["sequenceNumber"])
                wait_s = max(wait_s, answer["retryDelayMs"] / 1000)
            if refused and not under_way:
                await asyncio.sleep(wait_s)
                self._to_send, refused, wait_s = [*refused, *self._to_send], [], 0.0

    def _message(self, sequence: int) -> bytes:
        event = {"operation": "UPDATE", "table": "t", "rowId": "one", "after": {"n": sequence}}
        message = {"type": "cdc_batch", "sourceDoId": self._source, "sequenceNumber": sequence, "events": [event]}
        return json.dumps(message).encode()


class Wire:
    """A session without a socket."""

    def __init__(self, intake: Intake, door: CdcDoor, lake: MemoryLake) -> None:
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._session = CdcSession(
            intake=intake,
            host=door,
            flusher=lake,
            clock=SystemClock(),
            settings=CdcSettings(),
            stats=door.stats,
            send=self._sent,
            close=self._closed,
        )

    async def run(self) -> None:
        await self._session.run(self._messages())

    async def _messages(self) -> AsyncIterator[bytes]:
        while (data := await self._inbox.get()) is not None:
            yield data

    async def _sent(self, data: str | bytes) -> None:
        answer = json.loads(data)
        if answer["type"] != "status" and answer.get("status") != "persisted":
            self._outbox.put_nowait(answer)

    async def _closed(self, code: int, reason: str) -> None:
        self._inbox.put_nowait(None)

    def say(self, message: bytes) -> None:
        self._inbox.put_nowait(message)

    def leave(self) -> None:
        self._inbox.put_nowait(None)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self._outbox.get()


async def _run(folder: Path, seed: int, count: int) -> None:
    chance = random.Random(seed)
    diary = Diary()
    disk = MoodyDisk(random.Random(seed + 1))
    settings = quiet(folder, group_bytes_max=chance.choice([1, 300, 4096]), retry_after_s=RETRY_S)
    log = await Log.open(settings, companion=diary, disk=disk, sealer=InlineSealer())
    disk.odds = 0.15
    turns = TurnSettings(on_the_way_bytes_max=chance.choice([200, 4096]), share_bytes=chance.choice([1, 400]))
    intake = Intake(Gate(diary), log, turns)
    lake = MemoryLake(diary, SystemClock())
    door = CdcDoor(intake=intake, persisted=lake, flusher=lake, status=lake, clock=SystemClock())
    wires = [Wire(intake, door, lake) for _ in range(3)]
    sessions = [asyncio.create_task(wire.run()) for wire in wires]
    producers = [Producer(f"s{n}", count, chance.choice([2, 8, 32]), wire) for n, wire in enumerate(wires)]
    await asyncio.gather(*(producer.run() for producer in producers))
    for wire in wires:
        wire.leave()
    await asyncio.gather(*sessions)
    disk.odds = 0.0
    await log.close()
    expected = list(range(1, count + 1))
    assert diary.order == {f"s{n}": expected for n in range(3)}, f"seed {seed}"
    again = Diary()
    await (await Log.open(quiet(folder), companion=again, sealer=InlineSealer())).close()
    assert {source: again.highest(source) for source in again} == {f"s{n}": count for n in range(3)}  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
async def test_the_order_of_each_source_outlives_failing_fsyncs(tmp_path: Path, seed: int) -> None:
    await _run(tmp_path, seed, count=60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", soak_seeds(100, 100))
async def test_the_order_of_each_source_outlives_failing_fsyncs_for_long(tmp_path: Path, seed: int) -> None:
    await _run(tmp_path, seed, count=1_000)
