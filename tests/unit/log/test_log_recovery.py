"""What is found after a crash at any byte, and after a byte went bad."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log import frames, recovery
from mainstem.log.wal.files import WalFile
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition

# Groups of batches, each batch by its count of changes.
groups = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5)


class Written:
    """A file of frames as the writer leaves it, and where each frame stands."""

    def __init__(self, groups: list[list[int]], first: int = 1) -> None:
        self.data = b""
        self.headers: list[BatchHeader] = []
        self.ends: list[int] = []
        # Per frame: where its group begins.
        self.group_starts: list[int] = []
        position = first
        for group in groups:
            group_first, start = position, len(self.data)
            for count in group:
                header = BatchHeader(
                    first=LogPosition(position),
                    count=count,
                    hlc_first=Hlc(position),
                    arrival_ms=1,
                    source=SourceId("app"),
                    sequence=position,
                    fingerprint=0,
                    encoding=Encoding.CDC_JSON,
                )
                self.data += b"".join(frames.encode(header, b"[1,2,3]" * count, LogPosition(group_first)))
                self.headers.append(header)
                self.ends.append(len(self.data))
                self.group_starts.append(start)
                position += count


def scan(data: bytes, *, is_last: bool = True) -> recovery.Scan:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{1:020d}.wal"
        path.write_bytes(data)
        return recovery.scan(WalFile(path, LogPosition(1)), is_last=is_last)


@settings(deadline=None)
@given(groups, st.data())
def test_a_crash_at_any_byte_keeps_every_whole_frame(shape: list[list[int]], data: st.DataObject) -> None:
    written = Written(shape)
    cut = data.draw(st.integers(0, len(written.data)))
    whole = [end for end in written.ends if end <= cut]
    found = scan(written.data[:cut])
    assert found.headers == written.headers[: len(whole)]
    assert found.torn_bytes == cut - (whole[-1] if whole else 0)
    assert found.file.bytes == (whole[-1] if whole else 0)


@settings(deadline=None)
@given(groups, st.data())
def test_a_bad_byte_before_the_last_group_is_corrupt(shape: list[list[int]], data: st.DataObject) -> None:
    written = Written([*shape, [1]])
    place = data.draw(st.integers(0, written.group_starts[-1] - 1))
    flipped = bytearray(written.data)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    start = max([0, *(end for end in written.ends if end <= place)])
    with pytest.raises(Corrupt) as caught:
        scan(bytes(flipped))
    assert caught.value.place.endswith(f".wal:{start}")


@settings(deadline=None)
@given(groups, st.data())
def test_the_last_group_may_reach_the_disk_in_any_order(shape: list[list[int]], data: st.DataObject) -> None:
    """A power cut can leave a later frame of a group whole and an earlier one not: it was not acknowledged."""
    written = Written([*shape, [1, 2, 3]])
    start = written.group_starts[-1]
    hole = data.draw(st.integers(start, written.ends[-2] - 1))
    torn = bytearray(written.data)
    torn[start : hole + 1] = bytes(hole + 1 - start)
    found = scan(bytes(torn))
    assert found.headers == written.headers[:-3]
    assert found.torn_bytes == len(torn) - start


@settings(deadline=None)
@given(groups, st.data())
def test_only_the_last_file_may_be_torn(shape: list[list[int]], data: st.DataObject) -> None:
    written = Written(shape)
    cut = data.draw(st.integers(1, len(written.data) - 1).filter(lambda cut: cut not in written.ends))
    with pytest.raises(Corrupt):
        scan(written.data[:cut], is_last=False)


def test_a_missing_frame_is_a_gap() -> None:
    written = Written([[1], [1], [1]])
    with pytest.raises(Corrupt, match=r"position gap. expected=2 got=3"):
        scan(written.data[: written.ends[0]] + written.data[written.ends[1] :])


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_rubbish_after_the_last_frame_is_torn(tail: bytes) -> None:
    written = Written([[1], [2]])
    assert scan(written.data + b"\x00" + tail).torn_bytes == 1 + len(tail)


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    for name in ("00000000000000000009.wal", "00000000000000000001.wal", "1.wal", "notes.txt"):
        (tmp_path / name).touch()
    assert [file.first for file in recovery.list_files(tmp_path)] == [1, 9]
