"""What every kind of log promises: one suite, run on the embedded log and on the one on Apache Kafka."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mainstem.log import Log, SegmentInfo
from mainstem.log.kafka.journal import KafkaJournal
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model.batch import Admitted
from mainstem.model.errors import Conflict, Invalid, Overloaded
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock, ManualClock
from tests.harness.apachekafka import ApacheKafka
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, event, quiet, raw_batch

_names = itertools.count()


class Kind:
    """One log, which a test may open again and again."""

    def __init__(self, folder: Path, kafka: KafkaLogSettings | None) -> None:
        self.folder = folder
        self.kafka = kafka
        self._open = AsyncExitStack()

    async def open(
        self, companion: Diary | None = None, clock: Clock | None = None, folder: str = "log", **settings: Any
    ) -> Log:
        journal = None if self.kafka is None else KafkaJournal(self.kafka)
        log = await Log.open(
            quiet(self.folder / folder, **settings),
            companion=companion,
            clock=clock,
            sealer=InlineSealer(),
            journal=journal,
        )
        self._open.push_async_callback(log.close)
        return log

    async def close(self) -> None:
        await self._open.aclose()


@pytest.fixture(params=["embedded", "kafka"])
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    kafka: KafkaLogSettings | None = None
    if request.param == "kafka":
        broker: ApacheKafka = request.getfixturevalue("broker")
        kafka = KafkaLogSettings(broker.bootstrap, f"kind{next(_names)}.log", trim_bytes=1)
    kind = Kind(tmp_path, kafka)
    yield kind
    await kind.close()


def positions(segments: list[SegmentInfo]) -> list[int]:
    found: list[int] = []
    for segment in segments:
        found += pq.read_table(segment.path, columns=["position"])["position"].to_pylist()
    return found


async def test_positions_are_dense_in_the_order_of_calls(kind: Kind) -> None:
    log = await kind.open()
    appends = [log.append(batch(n, [event(i) for i in range(size)])) for n, size in enumerate([3, 1, 2, 5])]
    placed = await asyncio.gather(*appends)
    assert [(one.first, one.last) for one in placed] == [(1, 3), (4, 4), (5, 6), (7, 11)]
    assert [one.hlc_first for one in placed] == sorted(one.hlc_first for one in placed)
    assert log.durable == 11


async def test_positions_clocks_and_the_companion_go_on_after_a_restart(kind: Kind) -> None:
    clock, diary = ManualClock(), Diary()
    log = await kind.open(diary, clock)
    placed = await asyncio.gather(*[log.append(batch(n)) for n in range(50)])
    lineage = log.lineage
    await log.close()
    # The wall clock went back meanwhile.
    clock.set_wall(clock.now_ms() - 3_600_000)
    again = Diary()
    log = await kind.open(again, clock)
    assert again.seen == diary.seen == [("app", n, n + 1, 1) for n in range(50)]
    assert log.lineage == lineage
    after = await log.append(batch(50))
    assert after.first == 51
    assert after.hlc_first > placed[-1].hlc_first


async def test_what_is_durable_is_read_from_any_position_and_any_place(kind: Kind) -> None:
    log = await kind.open(file_changes=7)
    payloads = [f'[{{"n":{n}}}]'.encode() for n in range(40)]
    await asyncio.gather(*[log.append(raw_batch(n, payload, 1)) for n, payload in enumerate(payloads)])
    for after in (0, 6, 7, 39, 40):
        frames = list(log.tail(LogPosition(after)))
        assert [bytes(frame.payload) for frame in frames] == payloads[after:]
        assert [frame.header.first for frame in frames] == list(range(after + 1, 41))
    found = [(frame.header.first, place) for frame, place in log.places(LogPosition(30))]
    assert [first for first, _ in found] == list(range(31, 41))
    read = log.read_places([place for _, place in found])
    assert all(payload in data for payload, data in zip(payloads[30:], read, strict=True))


async def test_a_flush_seals_what_was_appended_before_it(kind: Kind) -> None:
    log = await kind.open()
    seen: list[SegmentInfo] = []
    log.on_sealed(seen.append)
    for n in range(5):
        await log.append(batch(n))
    assert await log.flush() == 5
    assert await log.flush() == 5
    await log.append(batch(6))
    assert (log.sealed, log.durable) == (5, 6)
    await log.flush()
    assert [(one.first, one.last, one.log) for one in seen] == [(1, 5, log.lineage.log), (6, 6, log.lineage.log)]
    assert positions(log.segments()) == list(range(1, 7))


async def test_a_threshold_seals_by_itself(kind: Kind) -> None:
    log = await kind.open(seal_changes=3)
    sealed: asyncio.Queue[SegmentInfo] = asyncio.Queue()
    log.on_sealed(sealed.put_nowait)
    await asyncio.gather(*[log.append(batch(n)) for n in range(3)])
    async with asyncio.timeout(60):
        assert (await sealed.get()).first == 1


async def test_what_was_sealed_stays_sealed_after_a_restart(kind: Kind) -> None:
    log = await kind.open(Diary())
    await log.append(batch(1, [event(1), event(2)]))
    await log.flush()
    await log.append(batch(2))
    await log.close()
    diary = Diary()
    log = await kind.open(diary)
    assert (log.sealed, log.durable, len(log.segments())) == (2, 3, 1)
    assert [seen[1] for seen in diary.seen] == [1, 2]
    await log.flush()
    assert positions(log.segments()) == [1, 2, 3]
    assert [frame.header.first for frame in log.tail(LogPosition(0))] == []


async def test_nothing_is_used_again_after_everything_was_dropped(kind: Kind) -> None:
    clock = ManualClock()
    log = await kind.open(Diary(), clock)
    first = await log.append(batch(1, [event(1), event(2)]))
    await log.flush()
    clock.advance(1)
    assert await log.drop_segments(lambda _: False, older_than_ms=0) == []
    assert len(await log.drop_segments(lambda _: True, older_than_ms=0)) == 1
    await log.let_go(log.sealed)
    assert log.segments() == []
    await log.close()
    clock.set_wall(clock.now_ms() - 3_600_000)
    diary = Diary()
    log = await kind.open(diary, clock)
    assert diary.seen == [("app", 1, 1, 2)]
    assert log.sealed == log.durable == 2
    second = await log.append(batch(2))
    assert second.first == 3
    assert second.hlc_first > first.hlc_first + 1


async def test_letting_go_forgets_nothing_that_is_not_sealed(kind: Kind) -> None:
    log = await kind.open(Diary())
    for n in range(6):
        await log.append(batch(n))
        if n % 2:
            await log.flush()
    await log.append(batch(6))
    await log.let_go(LogPosition(4))
    await log.let_go(LogPosition(1_000))
    await log.close()
    diary = Diary()
    log = await kind.open(diary)
    assert [seen[1] for seen in diary.seen] == list(range(7))
    await log.flush()
    assert positions(log.segments()) == list(range(1, 8))


async def test_at_the_bound_an_append_is_told_to_come_back(kind: Kind) -> None:
    log = await kind.open(pending_bytes_max=2_000)
    taken: list[asyncio.Future[Any]] = []
    with pytest.raises(Overloaded) as refused:
        for n in range(100):
            taken.append(log.append(raw_batch(n, b"x" * 300, 1)))
    assert refused.value.retry_after_s > 0
    await asyncio.gather(*taken)
    await log.append(batch(1_000))
    assert log.durable == len(taken) + 1


async def test_what_no_frame_can_hold_is_refused_alone(kind: Kind) -> None:
    log = await kind.open()
    with pytest.raises(Invalid):
        log.append(Admitted(batch(1).batch.__class__(**{**_fields(batch(1)), "count": 0})))
    assert (await log.append(batch(2))).first == 1


def _fields(admitted: Admitted) -> dict[str, Any]:
    return {name: getattr(admitted.batch, name) for name in admitted.batch.__struct_fields__}


async def test_a_batch_of_many_megabytes_comes_back_as_it_was(kind: Kind) -> None:
    log = await kind.open(Diary())
    payload = bytes(range(256)) * 200_000
    await asyncio.gather(log.append(raw_batch(1, b"[]", 1)), log.append(raw_batch(2, payload, 1)))
    await log.close()
    log = await kind.open(Diary())
    assert [bytes(frame.payload) for frame in log.tail(LogPosition(0))] == [b"[]", payload]


async def test_a_new_identity_holds_from_the_next_position_on(kind: Kind) -> None:
    log = await kind.open()
    await log.append(batch(1))
    with pytest.raises(Conflict):
        await log.renew_identity()
    await log.close()
    log = await kind.open()
    before = log.lineage.log
    await log.renew_identity()
    await log.append(batch(2))
    lineage = log.lineage
    assert (lineage.log_at(LogPosition(1)), lineage.log_at(LogPosition(2))) == (before, lineage.log)
    assert before != lineage.log
    await log.close()
    log = await kind.open()
    assert log.lineage == lineage
    await log.flush()
    assert [(one.first, one.last, one.log) for one in log.segments()] == [(1, 1, before), (2, 2, lineage.log)]


async def test_two_never_append_to_one_log(kind: Kind) -> None:
    first = await kind.open(Diary())
    await first.append(batch(1))
    if kind.kafka is None:
        with pytest.raises(Conflict):
            await kind.open()
        return
    diary = Diary()
    second = await kind.open(diary, folder="elsewhere")
    assert [seen[1] for seen in diary.seen] == [1]
    with pytest.raises(Overloaded):
        await first.append(batch(2))
    async with asyncio.timeout(10):
        await first.lost.wait()
    with pytest.raises(Overloaded):
        first.append(batch(3))
    assert (await second.append(batch(4))).first == 2
    assert not second.lost.is_set()
    await second.close()
    diary = Diary()
    await kind.open(diary, folder="a third")
    assert [seen[1] for seen in diary.seen] == [1, 4]


async def test_the_status_says_how_far_it_is(kind: Kind) -> None:
    log = await kind.open()
    await log.append(batch(1, [event(1), event(2)]))
    await log.flush()
    await log.append(batch(2))
    stats = log.stats()
    assert (stats.durable, stats.sealed, stats.unsealed_batches, stats.segments) == (3, 2, 1, 1)
    assert stats.refusing is None


async def test_a_log_that_is_closing_takes_nothing_more(kind: Kind) -> None:
    log = await kind.open()
    pending = log.append(batch(1))
    await log.close()
    assert (await pending).first == 1
    with pytest.raises(Overloaded) as refused:
        log.append(batch(2))
    assert refused.value.reason == "shutting_down"
