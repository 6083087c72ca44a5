"""Where batches are in the log's files: found by offset, bounded over all partitions, read there, and never trusted."""

from pathlib import Path

import pytest

from mainstem.feeds.topics.places import PlaceMemory, Places
from mainstem.feeds.topics.reading import NoRows, Reader, tail_batches
from mainstem.log.kept import KeptFrames, Place
from mainstem.model.errors import Corrupt
from mainstem.model.position import LogPosition
from tests.harness.kafka import batch_of
from tests.unit.feeds.test_topics import _until_taken, _values, new_partition, opened
from tests.unit.log.log_fixtures import BrokenDisk


def _place(number: int, size: int = 100) -> Place:
    return Place(LogPosition(1), number * size, size)


def test_batches_are_found_by_offset_size_and_bound() -> None:
    places = Places(PlaceMemory(100))
    for number in range(10):
        places.add(number * 3, _place(number))
    assert places.start == 0
    # In the middle of a batch; at least one; as many as fit; none that begins at the bound.
    assert places.find(4, 1, before=30) == [_place(1)]
    assert places.find(4, 300, before=30) == [_place(1), _place(2), _place(3)]
    assert places.find(24, 1000, before=27) == [_place(8)]
    assert places.find(29, 1000, before=30) == [_place(9)]


def test_all_partitions_share_one_bound_and_the_oldest_place_goes_first() -> None:
    memory = PlaceMemory(1_000)
    one, other = Places(memory), Places(memory)
    one.add(0, _place(0))
    for number in range(3_000):
        other.add(number, _place(number))
    assert one.start is None
    assert one.find(0, 100, before=1) == []
    assert other.start == 2_000
    assert other.find(1_999, 100, before=3_000) == []
    assert other.find(2_000, 100, before=3_000) == [_place(2_000)]


async def test_batches_are_read_where_the_log_has_them_before_and_after_they_are_sealed(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1, kept_bytes=1 << 20) as topics:
        partition, other = await new_partition(topics), await new_partition(topics, "other")
        for number in range(6):
            await _until_taken(partition, batch_of([b"%d" % number] * 2))
            await _until_taken(other, batch_of([b"x"]))
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        for _ in range(2):
            for offset in range(10):
                found = await reader.read(partition, offset, 1 << 20, before=10)
                assert _values(b"".join(found))[0] == b"%d" % (offset // 2)
                # As they came: one for each that was sent.
                assert len(found) == 5 - offset // 2
            await topics.log.flush()  # type: ignore[attr-defined]
            await topics.log._keep()  # type: ignore[attr-defined]
            assert not list((tmp_path / "wal").glob("*.wal"))[:-1]


async def test_a_file_that_is_gone_is_read_from_its_segment(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        partition = await new_partition(topics)
        await _until_taken(partition, batch_of([b"a", b"b"]))
        await _until_taken(await new_partition(topics, "other"), batch_of([b"x"]))
        await topics.log.flush()  # type: ignore[attr-defined]
        await topics.log._keep()  # type: ignore[attr-defined]
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        assert partition.places.find(0, 1, before=2)
        assert _values(b"".join(await reader.read(partition, 0, 1 << 20, before=2))) == [b"a", b"b"]


async def test_bytes_that_went_bad_are_never_given_away(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        partition = await new_partition(topics)
        await _until_taken(partition, batch_of([b"good" * 10]))
        await _until_taken(await new_partition(topics, "other"), batch_of([b"x"]))
        (path,) = (tmp_path / "wal").glob("*.wal")
        data = path.read_bytes()
        path.write_bytes(data.replace(b"good" * 10, b"evil" * 10))
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        with pytest.raises(Corrupt):
            await reader.read(partition, 0, 1 << 20, before=1)


async def test_a_start_knows_the_places_of_what_is_not_sealed(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        for number in range(4):
            await _until_taken(partition, batch_of([b"%d" % number]))
    async with opened(tmp_path) as topics:
        log = topics.log  # type: ignore[attr-defined]
        found = tail_batches(log.places(log.sealed), 1)
        # There is room for the bytes of the last one only.
        assert [each.batch is None for each in found] == [True, True, True, False]
        batches = log.read_places([each.place for each in found])
        assert [_values(batch) for batch in batches] == [[b"0"], [b"1"], [b"2"], [b"3"]]


async def test_files_are_kept_up_to_a_bound_and_none_after_a_start(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1, kept_bytes=1_500) as topics:
        partition = await new_partition(topics)
        for number in range(4):
            await _until_taken(partition, batch_of([b"%d" % number * 500]))
            await topics.log.flush()  # type: ignore[attr-defined]
            await topics.log._keep()  # type: ignore[attr-defined]
        kept = sorted((tmp_path / "kept").iterdir())
        assert 0 < sum(path.stat().st_size for path in kept) <= 1_500
        await _until_taken(await new_partition(topics, "other"), batch_of([b"x"]))
        # Those whose file is gone come from their segments.
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        for number in range(4):
            found = await reader.read(partition, number, 1, before=4)
            assert _values(b"".join(found))[0] == b"%d" % number * 500
        reader.close()
    async with opened(tmp_path, kept_bytes=1_500):
        assert not list((tmp_path / "kept").iterdir())


async def test_a_disk_that_cannot_rename_only_keeps_nothing(tmp_path: Path) -> None:
    disk = BrokenDisk()
    async with opened(tmp_path, disk, tail_bytes=1, kept_bytes=1 << 20) as topics:
        partition = await new_partition(topics)
        await _until_taken(partition, batch_of([b"a"]))
        await topics.log.flush()  # type: ignore[attr-defined]
        settings, spent = topics.log._settings, topics.log._keeper._spent  # type: ignore[attr-defined]
        disk.broken = {"rename": OSError(5, "input/output error")}
        kept = KeptFrames(settings, disk)
        for file in [*spent, *spent]:
            kept.take(file)
        disk.broken = {}
        assert spent and not any(file.path.exists() for file in spent)
