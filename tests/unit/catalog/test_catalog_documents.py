"""Encoding a metadata document from the bytes of the version before it: always the same as encoding it whole."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainstem.catalog.metadata.documents import Stored, encode_document
from mainstem.formats.iceberg.snapshots import ancestry

entries = st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2), max_size=4)


@given(entries, st.integers(0, 4), st.integers(0, 4), entries, st.dictionaries(st.text(), st.text()))
def test_a_document_made_from_its_base_has_the_bytes_of_one_made_anew(
    first: list[Any], gone: int, kept: int, added: list[Any], properties: dict[str, str]
) -> None:
    before = {"properties": {}, "snapshots": first, "location": "x", "snapshot-log": []}
    raw, spans = encode_document(before, None)
    assert msgspec.json.decode(raw) == before
    base = Stored(before, raw, spans)
    after = {"properties": properties, "snapshots": [*first[gone:kept], *added], "location": "x", "snapshot-log": added}
    raw, spans = encode_document(after, base)
    assert msgspec.json.decode(raw) == after
    assert raw == encode_document(after, None)[0]
    for key, (start, end) in spans.items():
        assert msgspec.json.decode(raw[start:end]) == after[key]


def snapshot(number: int, parent: int | None) -> dict[str, Any]:
    return {"snapshot-id": number, "parent-snapshot-id": parent}


def test_ancestry_in_order_out_of_order_and_in_a_circle() -> None:
    def walk(snapshots: list[dict[str, Any]], start: int) -> list[int]:
        return [found["snapshot-id"] for found in ancestry({"snapshots": snapshots}, start)]

    chain = [snapshot(1, None), snapshot(2, 1), snapshot(9, 1), snapshot(3, 2)]
    assert walk(chain, 3) == [3, 2, 1]
    assert walk(list(reversed(chain)), 3) == [3, 2, 1]
    assert walk([snapshot(2, 1)], 2) == [2], "its parent has expired"
    assert walk([snapshot(1, 2), snapshot(2, 1)], 2)[:2] == [2, 1]
    assert len(walk([snapshot(1, 2), snapshot(2, 1)], 2)) < 5
