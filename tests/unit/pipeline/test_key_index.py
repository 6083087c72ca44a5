"""The index of keys does what a dict from key to place does, whatever the order of puts and drops."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from mainstem.pipeline.keyindex import KeyHashes, KeyIndex, Places, in_file, sorted_by_path


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
            file = index.number_of(f"file-{number}")
            index.put(_hashes(keys), in_file(file, len(keys)))
            model |= {key: (file, row) for row, key in enumerate(keys)}
        found = index.find(_hashes(list(range(61))))
        assert sorted(zip(found.files.tolist(), found.rows.tolist(), strict=True)) == sorted(model.values())


def test_many_new_keys_join_the_sorted_run() -> None:
    index = KeyIndex()
    for number in range(5):
        keys = np.arange(number * 40_000, (number + 1) * 40_000, dtype=np.uint64)
        index.put(
            KeyHashes(keys * np.uint64(0x9E3779B97F4A7C15), keys), in_file(index.number_of(str(number)), len(keys))
        )
    wanted = np.array([0, 39_999, 40_000, 199_999, 200_000], np.uint64)
    found = index.find(KeyHashes(wanted * np.uint64(0x9E3779B97F4A7C15), wanted))
    assert sorted(zip(found.files.tolist(), found.rows.tolist(), strict=True)) == [
        (0, 0), (0, 39_999), (1, 0), (4, 39_999)
    ]  # fmt: skip
    assert len(index) == 200_000


def test_places_are_sorted_by_path_and_row() -> None:
    places = Places(np.array([2, 0, 2, 1], np.int32), np.array([5, 1, 3, 0], np.int32))
    ordered, paths = sorted_by_path(places, ["c", "b", "a", "unused"])
    assert [(paths[file], row) for file, row in zip(ordered.files, ordered.rows, strict=True)] == [
        ("a", 3), ("a", 5), ("b", 0), ("c", 1)
    ]  # fmt: skip
