"""The index of keys does what a dict from key to place does, whatever the order of puts and drops."""

import hashlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.pipeline.commit.keyindex import DataFile, KeyHashes, KeyIndex, Places, by_file, in_file
from mainstem.pipeline.passes.kernel import hash_keys


def _hashes(keys: list[int]) -> KeyHashes:
    # Few different first hashes, so that keys share them, and only the second tells them apart.
    numbers: npt.NDArray[np.uint64] = np.array(keys, np.uint64)
    return KeyHashes(numbers % np.uint64(7), numbers)


steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop"]), st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True)),
    max_size=12,
)


@given(steps)
def test_agrees_with_a_dict(history: list[tuple[str, list[int]]]) -> None:
    index = KeyIndex()
    model: dict[int, tuple[int, int]] = {}
    for number, (step, keys) in enumerate(history):
        if step == "drop":
            index.drop(_hashes(keys))
            for key in keys:
                model.pop(key, None)
        else:
            file = index.number_of(DataFile(f"file-{number}"))
            index.put(_hashes(keys), in_file(file, len(keys)))
            model |= {key: (file, row) for row, key in enumerate(keys)}
        found = index.find(_hashes(list(range(61))))
        assert sorted(zip(found.files.tolist(), found.rows.tolist(), strict=True)) == sorted(model.values())


def test_many_new_keys_join_the_sorted_run() -> None:
    index = KeyIndex()
    for number in range(5):
        keys = np.arange(number * 40_000, (number + 1) * 40_000, dtype=np.uint64)
        file = index.number_of(DataFile(str(number)))
        index.put(KeyHashes(keys * np.uint64(0x9E3779B97F4A7C15), keys), in_file(file, len(keys)))
    wanted = np.array([0, 39_999, 40_000, 199_999, 200_000], np.uint64)
    found = index.find(KeyHashes(wanted * np.uint64(0x9E3779B97F4A7C15), wanted))
    assert sorted(zip(found.files.tolist(), found.rows.tolist(), strict=True)) == [
        (0, 0), (0, 39_999), (1, 0), (4, 39_999)
    ]  # fmt: skip
    assert len(index) == 200_000


def test_places_are_sorted_by_file_and_row() -> None:
    places = Places(np.array([2, 0, 2, 1], np.int32), np.array([5, 1, 3, 0], np.int32))
    assert {file: rows.tolist() for file, rows in by_file(places).items()} == {0: [1], 1: [0], 2: [3, 5]}
    assert by_file(Places(np.empty(0, np.int32), np.empty(0, np.int32))) == {}


def test_hashes_of_keys_are_as_they_were_written_down_once() -> None:
    """An index that is rebuilt elsewhere, or later, must find the same keys."""
    keys = [b"", b"tenant01:item001"]
    assert hash_keys(keys).hex() == "".join(hashlib.blake2b(key, digest_size=16).hexdigest() for key in keys)
    assert len(KeyHashes.of_bytes(hash_keys([b"a", b"b", b"c"])).high) == 3


def _structured(shape: str, count: int) -> list[str]:
    """Keys that differ in few bytes, as people make them: what a weak hash takes for one another."""
    match shape:
        case "tenant":
            return [f"tenant{number // 381:02d}:item{number % 381:03d}" for number in range(count)]
        case "day":
            return [f"202601{number % 31 + 1:02d}-{number // 31:08d}" for number in range(count)]
        case "digits":
            return [f"{number % 195:08d}{number // 195:08d}" for number in range(count)]
    raise AssertionError(shape)


@pytest.mark.parametrize("shape", ["tenant", "day", "digits"])
def test_structured_keys_stay_apart(shape: str) -> None:
    keys = _structured(shape, 38_100)
    assert len(set(keys)) == 38_100
    hashes = KeyHashes.of_bytes(hash_keys([key.encode() for key in keys]))
    # Each half alone keeps them apart, so that both together are 128 bits indeed.
    assert len(np.unique(hashes.high)) == len(np.unique(hashes.low)) == 38_100
    index = KeyIndex()
    for round_number in range(3):
        found = index.find(hashes)
        assert len(found.files) == (38_100 if round_number else 0)
        index.put(hashes, in_file(index.number_of(DataFile(str(round_number))), 38_100))
    last = index.find(hashes)
    assert set(last.files.tolist()) == {2} and sorted(last.rows.tolist()) == list(range(38_100))
