"""A disk that is full, fails or turns read-only: nobody is told that something is durable when it is not."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.log import Log, frames
from mainstem.model.errors import Overloaded
from tests.unit.log.log_fixtures import BrokenDisk, Diary, InlineSealer, batch, quiet

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILING = OSError(errno.EIO, os.strerror(errno.EIO))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))
# A retry may come at once: these tests send others in the place of what was refused.
SOON = 1e-6


async def refused(log: Log, sequence: int) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        await log.append(batch(sequence))
    return caught.value


async def stored(folder: Path) -> list[tuple[int, int]]:
    """What the next opening finds: (sequence, first position) of each batch."""
    diary = Diary()
    log = await Log.open(quiet(folder), companion=diary, sealer=InlineSealer())
    await log.close()
    return [(sequence, first) for _, sequence, first, _ in diary.seen]


@pytest.mark.parametrize(
    ("broken", "torn_bytes"),
    [
        ({"write": FULL}, 0),
        ({"write": FULL}, 50),
        ({"sync": FAILING}, 0),
        ({"write": FULL, "truncate": FAILING}, 50),
        ({"sync": FAILING, "truncate": FAILING}, 0),
        ({"sync": FAILING, "create": FULL}, 0),
        ({"sync": FAILING, "sync_dir": FAILING}, 0),
        ({"write": READ_ONLY, "truncate": READ_ONLY, "create": READ_ONLY, "sync_dir": READ_ONLY}, 0),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("before", [0, 2])
async def test_refused_while_it_is_broken_and_whole_afterwards(
    tmp_path: Path, broken: dict[str, OSError], torn_bytes: int, before: int
) -> None:
    disk = BrokenDisk()
    diary = Diary()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), companion=diary, disk=disk, sealer=InlineSealer())
    for n in range(before):
        await log.append(batch(n))
    disk.broken, disk.torn_bytes = broken, torn_bytes
    for n in range(10, 13):
        error = await refused(log, n)
        assert error.reason == "internal_error"
        assert error.retry_after_s > 0
        assert any(str(cause.strerror) in str(error) for cause in broken.values())
        assert log.durable == before
    disk.broken = {}
    for n in range(20, 22):
        assert (await log.append(batch(n))).first == before + n - 19
    expected = [*((n, n + 1) for n in range(before)), (20, before + 1), (21, before + 2)]
    assert [(sequence, first) for _, sequence, first, _ in diary.seen] == expected
    await log.close()
    assert await stored(tmp_path) == expected


async def test_the_whole_group_is_refused(tmp_path: Path) -> None:
    disk = BrokenDisk()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), disk=disk, sealer=InlineSealer())
    disk.broken = {"sync": FAILING}
    outcomes = await asyncio.gather(*[log.append(batch(n)) for n in range(8)], return_exceptions=True)
    assert all(isinstance(outcome, Overloaded) for outcome in outcomes)
    assert log.stats().pending_bytes == 0
    assert "Input/output error" in (log.stats().refusing or "")
    disk.broken = {}
    assert (await log.append(batch(9))).first == 1
    assert log.stats().refusing is None
    await log.close()


async def test_bytes_of_a_failed_sync_are_cut_from_the_disk(tmp_path: Path) -> None:
    """The kernel may have dropped them from its cache, or not: they must not come back as a batch."""
    disk = BrokenDisk()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), companion=Diary(), disk=disk, sealer=InlineSealer())
    await log.append(batch(1))
    (file,) = (tmp_path / "wal").iterdir()
    durable_bytes = file.stat().st_size
    disk.broken = {"sync": FAILING}
    await refused(log, 2)
    assert file.stat().st_size == durable_bytes
    disk.broken = {}
    await log.append(batch(3))
    await log.close()
    assert await stored(tmp_path) == [(1, 1), (3, 2)]


async def test_killed_while_it_could_not_be_cut(tmp_path: Path) -> None:
    """The refused batch is still whole in the file: it is kept, the companion knows it, and a retry is a duplicate."""
    disk = BrokenDisk()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), disk=disk, sealer=InlineSealer())
    await log.append(batch(1))
    disk.broken = {"sync": FAILING, "truncate": FAILING}
    await refused(log, 2)
    left = [(path.name, path.read_bytes()) for path in (tmp_path / "wal").iterdir()]
    disk.broken = {}
    await log.close()
    other = tmp_path / "as-if-killed"
    (other / "wal").mkdir(parents=True)
    for name, data in left:
        (other / "wal" / name).write_bytes(data)
    assert await stored(other) == [(1, 1), (2, 2)]


async def test_a_roll_that_fails_does_not_leave_a_file_behind_the_log(tmp_path: Path) -> None:
    """The next file's name was taken, but the folder could not be synced: appends must not go on in the old one."""
    disk = BrokenDisk()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), companion=Diary(), disk=disk, sealer=InlineSealer())
    await log.append(batch(1))
    disk.broken = {"sync_dir": FAILING}
    with pytest.raises(Overloaded, match="Input/output error"):
        await log.flush()
    await refused(log, 2)
    disk.broken = {}
    await log.append(batch(3))
    await log.close()
    assert await stored(tmp_path) == [(1, 1), (3, 2)]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir"])
async def test_a_companion_that_cannot_be_stored_keeps_the_files(tmp_path: Path, operation: str) -> None:
    disk = BrokenDisk()
    diary = Diary()
    log = await Log.open(quiet(tmp_path, retry_after_s=SOON), companion=diary, disk=disk, sealer=InlineSealer())
    await log.append(batch(1))
    await log.flush()
    disk.broken = {operation: FULL}
    with pytest.raises(OSError, match="No space"):
        await log.drop_segments(lambda _: True, older_than_ms=-1_000)
    assert len(log.segments()) == 1
    await log.close()
    assert await stored(tmp_path) == [(1, 1)]


FILL = """
import asyncio, sys
from pathlib import Path
from mainstem.log import Log
from mainstem.model.errors import Overloaded
from tests.unit.log.log_fixtures import Diary, InlineSealer, quiet, raw_batch

async def main() -> None:
    log = await Log.open(quiet(Path(sys.argv[1]), retry_after_s=1e-6), companion=Diary(), sealer=InlineSealer())
    payload = b"[" + b" " * 20_000 + b"1]"
    for n in range(8):
        try:
            print("ack", n, (await log.append(raw_batch(n, payload, 1))).first, flush=True)
        except Overloaded as error:
            print("nack", n, error, flush=True)
    await log.close()

asyncio.run(main())
"""


def limited(file_bytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))


async def test_a_real_limit_of_the_system(tmp_path: Path) -> None:
    """Files may not grow past 50,000 bytes: each third batch is refused by the kernel in the middle of its write."""
    ran = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)],
        preexec_fn=limited(50_000),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = [line.split(maxsplit=2) for line in ran.stdout.splitlines()]
    assert [kind for kind, *_ in answers] == ["ack", "ack", "nack"] * 2 + ["ack", "ack"]
    assert all("File too large" in rest for kind, _, rest in answers if kind == "nack")
    acknowledged = [(int(sequence), int(rest)) for kind, sequence, rest in answers if kind == "ack"]
    assert [first for _, first in acknowledged] == list(range(1, 7))
    assert await stored(tmp_path) == acknowledged
    for path in (tmp_path / "wal").iterdir():
        list(frames.decode_all(path.read_bytes(), path.name))
