"""Every requirement of the protocol, where it holds and where it does not, with the words that clients match on."""

from typing import Any

import pytest

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata.requirements import check, is_create
from mainstem.model import Invalid

Document = dict[str, Any]

TABLE: Document = {
    "table-uuid": "abc-1",
    "last-column-id": 4,
    "current-schema-id": 2,
    "last-partition-id": 1001,
    "default-spec-id": 1,
    "default-sort-order-id": 3,
    "refs": {"main": {"type": "branch", "snapshot-id": 7}, "v1": {"type": "tag", "snapshot-id": 5}},
}


@pytest.mark.parametrize(
    "requirement",
    [
        {"type": "assert-table-uuid", "uuid": "ABC-1"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
        {"type": "assert-ref-snapshot-id", "ref": "absent", "snapshot-id": None},
        {"type": "assert-ref-snapshot-id", "ref": "absent"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
        {"type": "assert-current-schema-id", "current-schema-id": 2},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1001},
        {"type": "assert-default-spec-id", "default-spec-id": 1},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 3},
    ],
)
def test_holds(requirement: Document) -> None:
    check([requirement], TABLE)


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ({"type": "assert-create"}, "table already exists"),
        ({"type": "assert-table-uuid", "uuid": "other"}, "UUID does not match: expected other != abc-1"),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 6},
            "branch main has changed: expected id 6 != 7",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "v1", "snapshot-id": None}, "tag v1 was created concurrently"),
        (
            {"type": "assert-ref-snapshot-id", "ref": "absent", "snapshot-id": 1},
            "branch or tag absent is missing, expected 1",
        ),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
            "last assigned field id changed: expected id 9 != 4",
        ),
        ({"type": "assert-current-schema-id", "current-schema-id": 9}, "current schema changed: expected id 9 != 2"),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
            "last assigned partition id changed: expected id 9 != 1001",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 9},
            "default partition spec changed: expected id 9 != 1",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 9},
            "default sort order changed: expected id 9 != 3",
        ),
    ],
)
def test_fails(requirement: Document, message: str) -> None:
    with pytest.raises(CommitFailed) as caught:
        check([requirement], TABLE)
    assert str(caught.value) == f"Requirement failed: {message}"


@pytest.mark.parametrize("requirement", [{"type": "assert-luck"}, {}, {"type": 3}, {"type": "assert-table-uuid"}])
def test_unknown_or_incomplete_is_invalid(requirement: Document) -> None:
    with pytest.raises(Invalid):
        check([requirement], TABLE)


def test_create() -> None:
    check([{"type": "assert-create"}], None)
    assert is_create([{"type": "assert-create"}])
    assert not is_create([{"type": "assert-table-uuid", "uuid": "u"}])
    with pytest.raises(Invalid, match="Invalid create requirements"):
        is_create([{"type": "assert-create"}, {"type": "assert-table-uuid", "uuid": "u"}])
    with pytest.raises(CommitFailed, match="current table metadata is missing"):
        check([{"type": "assert-table-uuid", "uuid": "u"}], None)
