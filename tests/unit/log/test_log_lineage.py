"""Which log positions are of: a folder's identity, from its first start on."""

import shutil
from pathlib import Path

import pytest

from mainstem.log import Log, LogSettings
from mainstem.log.lineage import FILE
from mainstem.log.seal.segments import read_info
from mainstem.model.errors import Conflict, Corrupt
from mainstem.model.position import UNNAMED, LogPosition, Span
from tests.unit.log.log_fixtures import InlineSealer, batch, quiet


async def opened(folder: Path, **changed: int) -> Log:
    return await Log.open(quiet(folder, **changed), sealer=InlineSealer())


async def test_a_new_log_has_an_identity_of_its_own_from_the_first_position_on(tmp_path: Path) -> None:
    one, two = await opened(tmp_path / "one"), await opened(tmp_path / "two")
    assert len(one.lineage.log) == 16 and int(one.lineage.log, 16) >= 0
    assert one.lineage.spans == (Span(one.lineage.log, LogPosition(1)),)
    assert one.lineage.log != two.lineage.log
    await one.close()
    await two.close()


async def test_the_identity_outlives_restarts_and_moves(tmp_path: Path) -> None:
    log = await opened(tmp_path / "a")
    await log.append(batch(1))
    before = log.lineage
    await log.close()
    (tmp_path / "a").rename(tmp_path / "b")
    for _ in range(2):
        log = await opened(tmp_path / "b")
        assert log.lineage == before
        await log.close()


async def test_a_log_from_before_there_were_identities_gets_one_from_its_next_position_on(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    for sequence in range(1, 4):
        await log.append(batch(sequence))
    await log.close()
    (tmp_path / FILE).unlink()
    log = await opened(tmp_path)
    assert log.lineage.spans == (Span(UNNAMED, LogPosition(1)), Span(log.lineage.log, LogPosition(4)))
    assert log.lineage.log != UNNAMED
    await log.append(batch(4))
    await log.flush()
    # Two logs, two segments, though both waited together.
    assert [(one.first, one.last, one.log) for one in log.segments()] == [
        (1, 3, UNNAMED),
        (4, 4, log.lineage.log),
    ]
    await log.close()


async def test_a_segment_says_of_which_log_it_is(tmp_path: Path) -> None:
    log = await Log.open(LogSettings(folder=tmp_path))
    await log.append(batch(1))
    await log.flush()
    (segment,) = log.segments()
    assert read_info(segment.path).log == segment.log == log.lineage.log
    await log.close()


async def test_a_copy_of_a_log_is_another_log_from_its_next_position_on(tmp_path: Path) -> None:
    log = await opened(tmp_path / "log")
    await log.append(batch(1))
    await log.close()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    copy, log = await opened(tmp_path / "copy"), await opened(tmp_path / "log")
    assert copy.lineage.spans == (*log.lineage.spans, Span(copy.lineage.log, LogPosition(2)))
    assert copy.lineage.log != log.lineage.log
    await copy.close()
    again = await opened(tmp_path / "copy")
    assert again.lineage == copy.lineage
    await again.close()
    await log.close()


async def test_a_copy_put_back_in_place_is_another_log(tmp_path: Path) -> None:
    log = await opened(tmp_path / "log")
    await log.append(batch(1))
    await log.close()
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    log = await opened(tmp_path / "log")
    await log.append(batch(2))
    await log.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "backup", tmp_path / "log")
    restored = await opened(tmp_path / "log")
    assert restored.durable == 1
    assert restored.lineage.spans == (*log.lineage.spans, Span(restored.lineage.log, LogPosition(2)))
    await restored.close()


async def test_an_identity_is_renewed_only_before_the_first_append(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    first = log.lineage.log
    await log.renew_identity()
    assert log.lineage.log != first and log.lineage.spans[-1].first == 1
    await log.append(batch(1))
    with pytest.raises(Conflict, match="before its first append"):
        await log.renew_identity()
    await log.close()
    again = await opened(tmp_path)
    assert again.lineage == log.lineage
    await again.close()


async def test_a_lost_identity_is_never_guessed(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.append(batch(1))
    await log.flush()
    await log.close()
    kept = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).unlink()
    with pytest.raises(Corrupt, match="lineage is missing"):
        await opened(tmp_path)
    for damaged in (b"{", b'{"version":2,"spans":[],"place":""}', b'{"version":1,"spans":[],"place":""}'):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(Corrupt, match="lineage"):
            await opened(tmp_path)
    (tmp_path / FILE).write_bytes(kept.replace(b'"first":1', b'"first":1},{"log":"later","first":9'))
    with pytest.raises(Corrupt, match="ends before its identity begins"):
        await opened(tmp_path)
    (tmp_path / FILE).write_bytes(kept)
    log = await opened(tmp_path)
    await log.close()
