"""An embedded log as records of a log on Kafka: whatever state its folder was left in, all of it comes over, once."""

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from mainstem.log import Log, LogSettings
from mainstem.log import lineage as lineages
from mainstem.log.disk import OsDisk
from mainstem.log.kafka.hydration import Hydration
from mainstem.log.kafka.records import Claim, Moved, Reading, encode_note
from mainstem.log.kept import read_tail
from mainstem.log.leaving import records_of, survey
from mainstem.log.opening import look
from mainstem.model.errors import Corrupt
from mainstem.model.position import Lineage
from tests.harness.seeds import soak_seeds
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, event, quiet

TERM = b"t"


class There(NamedTuple):
    """What is found in a folder that was made of the records."""

    diary: Diary
    # Positions in segments, and in frames behind them; the names of segments.
    sealed: list[int]
    tail: list[int]
    names: set[str]
    lineage: Lineage
    reading: Reading


async def moved(source: Path, target: Path, *, with_segments: bool = True) -> There:
    """Read one folder, and make the other of what that gives."""
    leaving = await survey(source)
    lineage = lineages.renew(leaving.lineage, leaving.last)
    settings = LogSettings(folder=target)
    for folder in (settings.wal_folder, settings.segments_folder, settings.scratch_folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not with_segments:
        for one in (*leaving.segments, *leaving.planned):
            shutil.copy(one.path, settings.segments_folder)
    hydration, reading = Hydration(settings, OsDisk(), "t"), Reading("t", 0)
    hydration.begin()
    values = list(records_of(leaving, lineage, with_segments=with_segments))
    assert values == list(records_of(leaving, lineage, with_segments=with_segments))
    # The first run ended early, and another began anew.
    begun = values[: len(values) // 2]
    ended = encode_note(Moved(leaving.last + 1))
    for value in (encode_note(Claim("a")), *begun, *values, ended):
        hydration.take(reading.take(reading.offset, TERM, value), value)
    assert reading.moving is None and reading.next == leaving.last + 1 and not reading.ignored
    hydration.finish(reading, lineage, None)
    diary = Diary()
    found = await look(settings, diary)
    sealed: list[int] = []
    for segment in found.segments:
        sealed += sorted(pq.read_table(segment.path, columns=["position"])["position"].to_pylist())
    tail = [
        position
        for frame in read_tail(found.unsealed, found.sealed)
        for position in range(frame.header.first, frame.header.last + 1)
    ]
    # What is made of frames again is the same as it was.
    assert {one.first: one.last for one in leaving.planned} == reading.plans
    assert reading.lineage is not None
    return There(diary, sealed, tail, {one.path.name for one in found.segments}, reading.lineage, reading)


def left(folder: Path, target: Path) -> Path:
    """The folder as a kill leaves it."""
    shutil.copytree(folder, target)
    return target


@pytest.mark.parametrize("seed", soak_seeds(8, 12))
async def test_all_of_a_log_comes_over_whatever_state_it_was_left_in(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings = quiet(tmp_path / "log", file_changes=chance.choice([7, 40]), companion_interval_s=10**6)
    log = await Log.open(settings, companion=(diary := Diary()), sealer=InlineSealer())
    for number in range(60):
        await log.append(batch(number, [event(number * 10 + i) for i in range(chance.randint(1, 4))]))
        if chance.random() < 0.2:
            await log.flush()
        if chance.random() < 0.1:
            # The companion is stored, and what it covers is dropped.
            await log._keep()
        if chance.random() < 0.05:
            await log.drop_segments(lambda segment: segment.last < log.durable // 2, 0)
    expected = list(diary.seen)
    first = log.segments()[0].first if log.segments() else log.sealed + 1
    kill = left(settings.folder, tmp_path / "killed")
    durable, lineage = log.durable, log.lineage
    names = {path.name for path in (kill / "segments").iterdir()}
    await log.close()
    if chance.random() < 0.5:
        newest = max((kill / "wal").iterdir())
        newest.write_bytes(newest.read_bytes() + b"torn")
    before = {path: path.read_bytes() for path in kill.rglob("*") if path.is_file()}
    for target, with_segments in (("pieces", True), ("stored", False)):
        there = await moved(kill, tmp_path / target, with_segments=with_segments)
        assert there.diary.seen == expected
        assert sorted({*there.sealed, *there.tail}) == list(range(first, durable + 1))
        assert len(there.sealed) + len(there.tail) == durable + 1 - first
        assert there.names == names or (with_segments and there.names <= names)
        assert there.lineage.spans[:-1] == lineage.spans
        assert there.lineage.spans[-1].first == durable + 1
    assert before == {path: path.read_bytes() for path in kill.rglob("*") if path.is_file()}


async def test_an_empty_log_and_one_that_is_all_in_segments(tmp_path: Path) -> None:
    log = await Log.open(quiet(tmp_path / "log"), companion=Diary(), sealer=InlineSealer())
    await log.close()
    there = await moved(tmp_path / "log", tmp_path / "empty")
    assert (there.sealed, there.tail, there.reading.next) == ([], [], 1)
    log = await Log.open(quiet(tmp_path / "log"), companion=Diary(), sealer=InlineSealer())
    await log.append(batch(1, [event(1), event(2)]))
    await log.flush()
    await log.close()
    there = await moved(tmp_path / "log", tmp_path / "sealed")
    assert (there.sealed, there.tail, there.reading.next) == ([1, 2], [], 3)
    assert there.diary.seen == [("app", 1, 1, 2)]


async def test_a_log_from_before_there_were_identities_gets_its_first(tmp_path: Path) -> None:
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer())
    await log.append(batch(1))
    await log.close()
    (tmp_path / "log" / lineages.FILE).unlink()
    there = await moved(tmp_path / "log", tmp_path / "there")
    assert [(span.log == "", span.first) for span in there.lineage.spans] == [(True, 1), (False, 2)]


async def test_a_log_that_is_not_whole_does_not_leave(tmp_path: Path) -> None:
    settings = quiet(tmp_path / "log", file_changes=2)
    log = await Log.open(settings, sealer=InlineSealer())
    for number in range(6):
        await log.append(batch(number))
    await log.close()
    files = sorted(settings.wal_folder.iterdir())
    gone = files[0].rename(tmp_path / "gone")
    with pytest.raises(Corrupt, match="missing"):
        await survey(settings.folder)
    gone.write_bytes(gone.read_bytes()[:-1] + b"x")
    gone.rename(files[0])
    with pytest.raises(Corrupt):
        await survey(settings.folder)
