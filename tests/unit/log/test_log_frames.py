"""Bytes in, values out."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log import frames
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.errors import Corrupt, Invalid
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition

GOLDEN = Path(__file__).parent / "golden_frames_v1.wal"

headers = st.builds(
    BatchHeader,
    first=st.integers(1, 2**63).map(LogPosition),
    count=st.integers(1, 2**32 - 1),
    hlc_first=st.integers(0, 2**63 - 1).map(Hlc),
    arrival_ms=st.integers(-(2**63), 2**63 - 1),
    source=st.text(max_size=40).map(SourceId),
    sequence=st.integers(-(2**63), 2**63 - 1),
    fingerprint=st.integers(0, 2**64 - 1),
    encoding=st.sampled_from(Encoding),
)


def encoded(header: BatchHeader, payload: bytes) -> bytes:
    return b"".join(frames.encode(header, payload, header.first))


def golden_batches() -> list[tuple[BatchHeader, bytes]]:
    """What the golden file was written from. Neither may ever change; a new version gets a file of its own."""
    common = {"hlc_first": Hlc(111_411_200_000_000), "arrival_ms": 1_700_000_000_000, "fingerprint": 0xDEADBEEF}
    return [
        (
            BatchHeader(
                first=LogPosition(1),
                count=2,
                source=SourceId("shop-1"),
                sequence=7,
                encoding=Encoding.CDC_JSON,
                **common,  # type: ignore[arg-type]
            ),
            b'[{"table":"orders"},{"table":"orders"}]',
        ),
        (
            BatchHeader(
                first=LogPosition(3),
                count=1,
                source=SourceId("gerät-é"),
                sequence=-1,
                encoding=Encoding.CHANGES,
                **common,  # type: ignore[arg-type]
            ),
            b"\x91\x80",
        ),
    ]


@settings(deadline=None)
@given(headers, st.binary(max_size=200), st.binary(max_size=20))
def test_a_frame_comes_back_as_it_went_in(header: BatchHeader, payload: bytes, before: bytes) -> None:
    data = before + encoded(header, payload)
    frame = frames.decode(data, len(before))
    assert isinstance(frame, frames.Frame)
    assert (frame.header, bytes(frame.payload), frame.end) == (header, payload, len(data))


@settings(deadline=None)
@given(headers, st.binary(max_size=50), st.data())
def test_a_cut_frame_needs_more(header: BatchHeader, payload: bytes, data: st.DataObject) -> None:
    whole = encoded(header, payload)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(frames.decode(whole[:cut], 0), frames.NeedMore)


@settings(deadline=None)
@given(headers, st.binary(max_size=50), st.data())
def test_a_flipped_bit_is_never_taken_for_a_frame(header: BatchHeader, payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(encoded(header, payload))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert isinstance(frames.decode(bytes(whole), 0), frames.NeedMore)
    except Corrupt:
        pass


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_have_an_answer(data: bytes, offset: int) -> None:
    try:
        frames.decode(data, offset)
    except Corrupt as error:
        assert error.place == f"buffer:{offset}"


def test_the_stored_format_does_not_change() -> None:
    data = b"".join(encoded(header, payload) for header, payload in golden_batches())
    assert data == GOLDEN.read_bytes()


def test_the_golden_file_can_be_read() -> None:
    read = [(frame.header, bytes(frame.payload)) for frame in frames.decode_all(GOLDEN.read_bytes(), "golden")]
    assert read == golden_batches()


def test_a_whole_file_may_not_end_inside_a_frame() -> None:
    data = GOLDEN.read_bytes()[:-1]
    with pytest.raises(Corrupt, match="golden:"):
        list(frames.decode_all(data, "golden"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": 0}, "count"),
        ({"count": 2**32}, "count"),
        ({"sequence": 2**63}, "sequence"),
        ({"fingerprint": -1}, "fingerprint"),
        ({"source": b"x" * 65_536}, "source"),
        ({"payload_bytes": frames.BODY_BYTES_MAX}, "payload"),
    ],
)
def test_what_no_frame_can_hold_is_refused(changed: dict[str, int], message: str) -> None:
    fits = {"source": b"app", "sequence": 1, "count": 1, "fingerprint": 0, "payload_bytes": 10}
    frames.check_storable(**fits)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=message):
        frames.check_storable(**(fits | changed))  # type: ignore[arg-type]
