"""Where a record of a time may be: never behind it, close to it, and bounded."""

import random
from pathlib import Path

import msgspec
import pytest

from mainstem.feeds.topics.reading import NoRows, Reader
from mainstem.feeds.topics.state import PartitionState
from mainstem.feeds.topics.times import PLACES_MAX, STEP_BYTES, Times
from tests.harness.kafka import batch_of
from tests.unit.feeds.test_topics import _until_taken, new_partition, opened


@pytest.mark.parametrize("seed", range(20))
def test_no_record_of_a_time_is_before_the_place_that_is_told(seed: int) -> None:
    rng = random.Random(seed)
    noted, written, latest = Times(step_bytes=100), 0, -1
    stamps: list[int] = []
    for _ in range(rng.randint(1, 3_000)):
        # Mostly in order, as producers send them; now and then far away.
        stamps.append(rng.randrange(5_000) if rng.random() < 0.05 else len(stamps) + rng.randint(-20, 20))
        latest, written = max(latest, stamps[-1]), written + rng.randint(1, 200)
        noted.note(len(stamps), latest, written)
    assert len(noted.offsets) <= PLACES_MAX
    for wanted in [rng.randrange(-1, 5_100) for _ in range(200)]:
        first = next((offset for offset, stamp in enumerate(stamps) if stamp >= wanted), len(stamps))
        assert noted.before(wanted) <= first


def test_places_are_close_and_bounded() -> None:
    noted = Times()
    for number in range(1, 5 * PLACES_MAX):
        noted.note(number * 1_000, number, number * STEP_BYTES)
    assert PLACES_MAX // 2 <= len(noted.offsets) <= PLACES_MAX
    # Five times as many steps as there are places: each stands for eight.
    assert noted.step_bytes == 8 * STEP_BYTES
    for wanted in (1, 700, 2_000, 5 * PLACES_MAX - 1):
        assert 0 <= (wanted - 1) * 1_000 - noted.before(wanted) <= 8_000


def test_state_that_was_stored_before_there_were_times_is_read() -> None:
    stored = msgspec.msgpack.encode([7, 2, 3, 1_000, 6, {}, 5 << 20])
    state = msgspec.msgpack.decode(stored, type=PartitionState)
    assert (state.end, state.bytes, state.times) == (7, 5 << 20, Times())
    # Of what was there before only the latest time is known: it is looked through where that may have it.
    state.times.note(8, 1_001, state.bytes + 100)
    assert (state.times.before(1_001), state.times.before(1_002)) == (0, 8)


async def test_a_time_is_found_without_reading_what_is_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        partition = await new_partition(topics)
        partition.state.times.step_bytes = 1
        reader = _Counting(topics.log, NoRows())  # type: ignore[attr-defined]
        # Pages are at least one batch: each is larger than a page.
        for number in range(40):
            await _until_taken(partition, batch_of([bytes(2_000)] * 2, time_ms=10 * number))
            if number % 10 == 9:
                await topics.log.flush()  # type: ignore[attr-defined]
        found = await reader.first_at(partition, 351, before=partition.end)
        assert found == (71, 351)
        assert reader.offsets == [70]
        # A time between two batches, one before all, one behind all, and one that may not be read yet.
        assert (await reader.first_at(partition, 345, before=partition.end)) == (70, 350)
        assert (await reader.first_at(partition, -5, before=partition.end)) == (0, 0)
        assert (await reader.first_at(partition, 392, before=partition.end)) is None
        assert (await reader.first_at(partition, 351, before=70)) is None
        await topics.cut(partition.topic, 0, 75)
        assert (await reader.first_at(partition, 10, before=partition.end)) == (75, 371)


class _Counting(Reader):
    """Notes from where it was read."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.offsets: list[int] = []

    async def read(self, partition: object, offset: int, bytes_max: int, *, before: int) -> list[bytes]:
        self.offsets.append(offset)
        return await super().read(partition, offset, bytes_max, before=before)  # type: ignore[arg-type]
