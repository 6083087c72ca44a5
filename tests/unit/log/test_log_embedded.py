"""The log as the parts above see it."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log import Log, LogSettings, SegmentInfo
from mainstem.log.disk import OsDisk
from mainstem.log.seal.children import SealRequest
from mainstem.log.seal.sealer import seal
from mainstem.model.batch import Admitted
from mainstem.model.errors import Conflict, Corrupt, Invalid, Overloaded
from mainstem.model.hlc import pack
from mainstem.model.position import LogId, LogPosition
from mainstem.runtime.clock import ManualClock
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, event, quiet, raw_batch


async def opened(settings: LogSettings, companion: Diary | None = None, clock: ManualClock | None = None) -> Log:
    return await Log.open(settings, companion=companion, sealer=InlineSealer(), clock=clock)


async def test_positions_are_dense_in_the_order_of_calls(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    sizes = [3, 1, 2, 5]
    appends = [log.append(batch(n, [event(i) for i in range(size)])) for n, size in enumerate(sizes)]
    placed = await asyncio.gather(*appends)
    assert [(one.first, one.last) for one in placed] == [(1, 3), (4, 4), (5, 6), (7, 11)]
    assert [one.hlc_first for one in placed] == sorted(one.hlc_first for one in placed)
    assert log.durable == 11
    await log.close()


async def test_clocks_and_positions_go_on_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await opened(quiet(tmp_path), clock=clock)
    before = await log.append(batch(1, [event(1), event(2)]))
    await log.close()
    # The wall clock went back meanwhile.
    clock.set_wall(clock.now_ms() - 3_600_000)
    log = await opened(quiet(tmp_path), clock=clock)
    after = await log.append(batch(2))
    assert after.first == before.last + 1
    assert after.hlc_first > before.hlc_first + 1
    await log.close()


async def test_what_is_stamped_comes_after_every_clock_that_was_brought(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await opened(quiet(tmp_path), clock=clock)
    ahead = pack(clock.now_ms() + 4_000, 7)
    brought = await log.append(Admitted(msgspec.structs.replace(batch(1).batch, hlc_max=ahead)))
    after = await log.append(batch(2))
    assert ahead < brought.hlc_first < after.hlc_first
    await log.close()
    log = await opened(quiet(tmp_path), clock=clock)
    assert (await log.append(batch(3))).hlc_first > after.hlc_first
    await log.close()


async def test_nothing_is_used_again_after_everything_was_dropped(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await opened(quiet(tmp_path), Diary(), clock)
    first = await log.append(batch(1, [event(1), event(2)]))
    await log.flush()
    clock.advance(1)
    assert len(await log.drop_segments(lambda _: True, older_than_ms=0)) == 1
    assert log.segments() == []
    assert list((tmp_path / "segments").iterdir()) == []
    await log.close()
    clock.set_wall(clock.now_ms() - 3_600_000)
    diary = Diary()
    log = await opened(quiet(tmp_path), diary, clock)
    assert diary.seen == [("app", 1, 1, 2)]
    assert log.sealed == log.durable == 2
    second = await log.append(batch(2))
    assert second.first == 3
    assert second.hlc_first > first.hlc_first + 1
    await log.close()


async def test_a_flush_seals_what_was_appended_before_it(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    seen: list[SegmentInfo] = []
    stop_listening = log.on_sealed(seen.append)
    appends = [log.append(batch(n)) for n in range(5)]
    assert await log.flush() == 5
    assert all(append.done() for append in appends)
    assert await log.flush() == 5
    stop_listening()
    await log.append(batch(6))
    await log.flush()
    assert [(one.first, one.last) for one in seen] == [(1, 5)]
    assert [(one.first, one.last) for one in log.segments()] == [(1, 5), (6, 6)]
    await log.close()


async def test_an_empty_log_flushes_to_nowhere(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    assert await log.flush() == 0
    assert log.segments() == []
    await log.close()


@pytest.mark.parametrize(
    "threshold", [{"seal_changes": 3}, {"seal_bytes": 300}, {"seal_interval_s": 0.05}, {"seal_age_s": 0.05}]
)
async def test_each_threshold_seals(tmp_path: Path, threshold: dict[str, float]) -> None:
    log = await opened(quiet(tmp_path, **threshold))
    sealed: asyncio.Queue[SegmentInfo] = asyncio.Queue()
    log.on_sealed(sealed.put_nowait)
    await asyncio.gather(*[log.append(batch(n)) for n in range(3)])
    async with asyncio.timeout(60):
        assert (await sealed.get()).first == 1
    await log.close()


async def test_a_sealer_that_is_behind_takes_several_files_at_once(tmp_path: Path) -> None:
    sealer = InlineSealer()
    log = await Log.open(quiet(tmp_path, file_changes=2, segment_changes_max=6), sealer=sealer)
    sealer.may_go_on.clear()
    for n in range(10):
        await log.append(batch(n))
    sealer.may_go_on.set()
    await log.flush()
    assert [(one.first, one.last) for one in log.segments()] == [(1, 2), (3, 8), (9, 10)]
    assert [len(files) for files in sealer.sealed] == [1, 3, 1]
    await log.close()


@pytest.mark.parametrize("is_asked_for", [False, True], ids=["by itself", "asked for"])
async def test_a_flood_says_that_more_is_to_come_and_a_flush_does_not(tmp_path: Path, is_asked_for: bool) -> None:
    sealer = InlineSealer()
    log = await Log.open(quiet(tmp_path, seal_changes=3), sealer=sealer)
    sealed: asyncio.Queue[SegmentInfo] = asyncio.Queue()
    log.on_sealed(sealed.put_nowait)
    sealer.may_go_on.clear()
    await log.append(batch(1, [event(n) for n in range(3)]))
    async with asyncio.timeout(60):
        while not log.stats().sealing:
            await asyncio.sleep(0.001)
    # Four times the threshold by the time that the sealer is done with the first.
    await log.append(batch(2, [event(n) for n in range(12)]))
    flush = asyncio.ensure_future(log.flush()) if is_asked_for else None
    await asyncio.sleep(0)
    sealer.may_go_on.set()
    async with asyncio.timeout(60):
        assert [(await sealed.get()).last, (await sealed.get()).last] == [3, 15]
    if flush is not None:
        assert await flush == 15
    assert sealer.said_more[-1] is not is_asked_for
    await log.close()


class SlowFirst(InlineSealer):
    """Keeps the first segment back until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__(lanes=2)
        self.others_made = asyncio.Event()

    async def seal(self, files: list[Path], scratch: Path, *, more: bool, log: LogId) -> None:
        if not self.sealed and self.may_go_on.is_set():
            self.may_go_on.clear()
            await super().seal(files, scratch, more=more, log=log)
            return
        self.sealed.append(files)
        names = [str(file) for file in files]
        await asyncio.to_thread(seal, SealRequest(files=names, scratch=str(scratch), more=more, log=log))
        self.others_made.set()


async def test_segments_that_are_made_together_are_named_in_order(tmp_path: Path) -> None:
    sealer = SlowFirst()
    log = await Log.open(quiet(tmp_path, file_changes=2, segment_changes_max=2), sealer=sealer)
    named: list[int] = []
    log.on_sealed(lambda segment: named.append(segment.first))
    for n in range(8):
        await log.append(batch(n))
    flush = asyncio.ensure_future(log.flush())
    async with asyncio.timeout(60):
        await sealer.others_made.wait()
    # The second is ready, but a reader that saw it would take the first for empty.
    assert log.sealed == 0 and not list((tmp_path / "segments").iterdir())
    sealer.may_go_on.set()
    await flush
    assert named == [1, 3, 5, 7]
    await log.close()


async def test_what_was_made_beside_a_failure_is_made_again(tmp_path: Path) -> None:
    sealer = SlowFirst()
    log = await Log.open(quiet(tmp_path, file_changes=2, segment_changes_max=2), sealer=sealer)
    for n in range(4):
        await log.append(batch(n))
    flush = asyncio.ensure_future(log.flush())
    async with asyncio.timeout(60):
        await sealer.others_made.wait()
    sealer.broken = OSError(28, "No space left on device")
    sealer.may_go_on.set()
    with pytest.raises(Overloaded, match="No space left"):
        await flush
    assert not list((tmp_path / ".scratch").iterdir())
    sealer.broken = None
    await log.flush()
    assert [(one.first, one.last) for one in log.segments()] == [(1, 2), (3, 4)]
    await log.close()


class ForgetfulFolder(OsDisk):
    """A real disk on which the names of one folder cannot be made durable."""

    folder: Path | None = None

    def sync_dir(self, path: Path) -> None:
        if path == self.folder:
            raise OSError(5, "Input/output error")
        super().sync_dir(path)


async def test_a_segment_whose_name_is_not_durable_is_not_made_again_with_more(tmp_path: Path) -> None:
    disk = ForgetfulFolder()
    log = await Log.open(quiet(tmp_path), sealer=InlineSealer(), disk=disk)
    await log.append(batch(1))
    disk.folder = tmp_path / "segments"
    with pytest.raises(Overloaded, match="sealing failed"):
        await log.flush()
    disk.folder = None
    await log.append(batch(2))
    await log.flush()
    assert [(one.first, one.last) for one in log.segments()] == [(1, 1), (2, 2)]
    await log.close()


async def test_a_seal_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    sealer = InlineSealer()
    sealer.broken = OSError(28, "No space left on device")
    log = await Log.open(quiet(tmp_path), sealer=sealer)
    await log.append(batch(1))
    with pytest.raises(Overloaded, match="No space left"):
        await log.flush()
    assert "No space left" in (log.stats().last_error or "")
    sealer.broken = None
    assert (await log.append(batch(2))).first == 2
    assert await log.flush() == 2
    assert log.stats().last_error is None
    await log.close()


async def test_the_tail_is_what_is_not_sealed(tmp_path: Path) -> None:
    sealer = InlineSealer()
    log = await Log.open(quiet(tmp_path, file_changes=2), sealer=sealer)
    await log.append(batch(1))
    await log.flush()
    # Rolled files stay in the tail as long as their segment is not there.
    sealer.may_go_on.clear()
    for n in range(2, 8):
        await log.append(batch(n))
    assert [frame.header.sequence for frame in log.tail(LogPosition(0))] == [2, 3, 4, 5, 6, 7]
    assert [frame.header.sequence for frame in log.tail(LogPosition(4))] == [5, 6, 7]
    assert list(log.tail(log.durable)) == []
    sealer.may_go_on.set()
    await log.flush()
    assert list(log.tail(LogPosition(0))) == []
    await log.close()


async def test_the_companion_is_told_before_the_appender(tmp_path: Path) -> None:
    diary = Diary()
    log = await opened(quiet(tmp_path), diary)
    seen_at_ack: list[int] = []
    append = log.append(batch(9))
    append.add_done_callback(lambda _: seen_at_ack.append(len(diary.seen)))
    await append
    await asyncio.sleep(0)
    assert seen_at_ack == [1]
    await log.close()


async def test_the_companion_hears_of_each_batch_once_over_restarts(tmp_path: Path) -> None:
    expected: list[tuple[str, int, int, int]] = []
    for life in range(4):
        diary = Diary()
        log = await opened(quiet(tmp_path, companion_interval_s=1e-9 if life % 2 else 1e6), diary)
        assert diary.seen == expected
        for n in range(3):
            await log.append(batch(life * 10 + n))
            if n == life % 3:
                await log.flush()
        expected = list(diary.seen)
        await log.close()
    assert [(sequence, first) for _, sequence, first, _ in expected] == [
        (life * 10 + n, life * 3 + n + 1) for life in range(4) for n in range(3)
    ]


async def test_retention_stops_at_the_first_segment_that_must_stay(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await opened(quiet(tmp_path), clock=clock)
    for n in range(4):
        await log.append(batch(n))
        await log.flush()
        clock.advance(10)
    # Ages are now 40, 30, 20 and 10 s.
    assert await log.drop_segments(lambda one: one.first != 1, older_than_ms=0) == []
    dropped = await log.drop_segments(lambda _: True, older_than_ms=25_000)
    assert [one.first for one in dropped] == [1, 2]
    assert [one.first for one in log.segments()] == [3, 4]
    assert len(list((tmp_path / "segments").iterdir())) == 2
    await log.close()


async def test_a_full_buffer_says_when_to_come_back(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path, pending_bytes_max=2_000))
    payload = b"[" + b" " * 1_500 + b"1]"
    first = log.append(raw_batch(1, payload, 1))
    with pytest.raises(Overloaded) as caught:
        log.append(raw_batch(2, payload, 1))
    assert (caught.value.reason, caught.value.retry_after_s) == ("buffer_full", 1.0)
    await first
    assert log.stats().pending_bytes == 0
    assert (await log.append(raw_batch(2, payload, 1))).first == 2
    await log.close()


async def test_a_sealer_that_never_comes_back_stops_appends_at_the_bound(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path, unsealed_bytes_max=100))
    await log.append(batch(1))
    with pytest.raises(Overloaded, match="sealing is behind"):
        log.append(batch(2))
    await log.flush()
    assert (await log.append(batch(2))).first == 2
    await log.close()


async def test_what_cannot_be_stored_moves_nothing(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    with pytest.raises(Invalid):
        log.append(batch(2**63))
    assert (await log.append(batch(1))).first == 1
    await log.close()


async def test_closing_finishes_what_was_appended(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    appends = [log.append(batch(n)) for n in range(20)]
    await log.close()
    assert [append.result().first for append in appends] == list(range(1, 21))
    with pytest.raises(Overloaded) as caught:
        log.append(batch(21))
    assert caught.value.reason == "shutting_down"
    await log.close()


async def test_only_one_can_have_it_open(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path))
    from mainstem.log.lock import FolderLock

    with pytest.raises(Conflict, match="open in another process"):
        await FolderLock.acquire(tmp_path / "lock", wait_s=0)
    await log.close()
    await (await opened(quiet(tmp_path))).close()


async def test_a_segment_and_its_files_both_there_drops_the_files(tmp_path: Path) -> None:
    """As after a crash between the segment's rename and the removal of the files."""
    log = await opened(quiet(tmp_path))
    await log.append(batch(1))
    await log.flush()
    kept = {path.name: path.read_bytes() for path in (tmp_path / "wal").iterdir()}
    await log.close()
    for name, data in kept.items():
        (tmp_path / "wal" / name).write_bytes(data)
    log = await opened(quiet(tmp_path))
    assert log.stats().unsealed_changes == 0
    assert (await log.append(batch(2))).first == 2
    await log.close()
    assert [path.name for path in sorted((tmp_path / "wal").iterdir())] == [f"{2:020d}.wal"]


async def test_a_missing_file_is_corrupt(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path, file_changes=1))
    await asyncio.gather(*[log.append(batch(n)) for n in range(1, 2)])
    await log.append(batch(2))
    await log.append(batch(3))
    await log.flush()
    await log.append(batch(4))
    await log.close()
    files = sorted((tmp_path / "wal").iterdir())
    kept = [path.read_bytes() for path in files]
    files[0].unlink()
    with pytest.raises(Corrupt, match="missing"):
        await opened(quiet(tmp_path))
    for path in files[1:]:
        path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        await opened(quiet(tmp_path))
    for path, data in zip(files, kept, strict=True):
        path.write_bytes(data)
    segments = sorted((tmp_path / "segments").iterdir())
    assert segments
    segments[-1].write_bytes(b"PAR1 and then nothing")
    with pytest.raises(Corrupt, match="footer"):
        await opened(quiet(tmp_path))


async def test_a_damaged_companion_is_corrupt(tmp_path: Path) -> None:
    log = await opened(quiet(tmp_path), Diary())
    await log.append(batch(1))
    await log.close()
    path = tmp_path / f"companion-{1:020d}"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="companion"):
        await opened(quiet(tmp_path), Diary())


# What happens to a log: an append of so many changes, a flush, or a crash that leaves so much of a half-written frame.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("reopen"), st.integers(0, 60)),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_any_life_keeps_every_acknowledged_change_once(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[str, int]]
) -> None:
    asyncio.run(live(tmp_path_factory.mktemp("log"), life))


async def live(folder: Path, life: list[tuple[str, int]]) -> None:
    config = quiet(folder, file_changes=3, companion_interval_s=1e-9)
    acknowledged: list[tuple[str, int, int, int]] = []
    diary = Diary()
    log = await opened(config, diary)
    for n, (step, size) in enumerate(life):
        if step == "append":
            placed = await log.append(batch(n, [event(i) for i in range(size)]))
            acknowledged.append(("app", n, placed.first, size))
        elif step == "flush":
            assert await log.flush() == log.durable
        else:
            await log.close()
            torn = sorted((folder / "wal").iterdir())[-1]
            torn.write_bytes(torn.read_bytes() + b"\x20\x00\x00\x00torn" + bytes(size))
            diary = Diary()
            log = await opened(config, diary)
            assert log.recovered is not None and log.recovered.bytes == 8 + size
        assert diary.seen == acknowledged
    await log.flush()
    assert log.durable == sum(count for *_, count in acknowledged)
    assert [n for one in log.segments() for n in range(one.first, one.last + 1)] == list(range(1, log.durable + 1))
    await log.close()
