"""What a commit assumes of the table it changes, checked against the metadata document.

A requirement that does not hold is a `CommitFailed`: the client looks again and decides. One of an unknown type is
`Invalid`, because silently skipping an assumption would break the client that made it. The wordings are the protocol's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata.schemas import Document
from mainstem.model import Invalid

ASSERT_CREATE = "assert-create"


def is_create(requirements: Sequence[Document]) -> bool:
    """Whether these are the requirements of a create transaction."""
    kinds = [requirement.get("type") for requirement in requirements]
    if ASSERT_CREATE not in kinds:
        return False
    others = [kind for kind in kinds if kind != ASSERT_CREATE]
    if others:
        raise Invalid(f"Invalid create requirements: {others}")
    return True


def check(requirements: Sequence[Document], document: Document | None) -> None:
    """Raise unless the table (None: there is none) is what every requirement says."""
    for requirement in requirements:
        kind = requirement.get("type")
        checker = _CHECKERS.get(kind) if isinstance(kind, str) else None
        if checker is None:
            raise Invalid(f"unknown requirement. expected=one of {sorted(_CHECKERS)} got={kind!r}")
        checker(requirement, document)


def _failed(message: str) -> CommitFailed:
    return CommitFailed(f"Requirement failed: {message}")


def _field(requirement: Document, name: str) -> Any:
    if name not in requirement:
        raise Invalid(f"requirement is incomplete. expected={name} got={requirement!r:.200}")
    return requirement[name]


def _existing(document: Document | None) -> Document:
    if document is None:
        raise _failed("current table metadata is missing")
    return document


def _assert_create(_requirement: Document, document: Document | None) -> None:
    if document is not None:
        raise _failed("table already exists")


def _assert_uuid(requirement: Document, document: Document | None) -> None:
    wanted, found = _field(requirement, "uuid"), _existing(document).get("table-uuid")
    if str(wanted).lower() != str(found).lower():
        raise _failed(f"UUID does not match: expected {wanted} != {found}")


def _assert_ref(requirement: Document, document: Document | None) -> None:
    name, wanted = _field(requirement, "ref"), requirement.get("snapshot-id")
    ref = _existing(document)["refs"].get(name)
    if ref is None:
        if wanted is not None:
            raise _failed(f"branch or tag {name} is missing, expected {wanted}")
        return
    if wanted is None:
        raise _failed(f"{ref['type']} {name} was created concurrently")
    if wanted != ref["snapshot-id"]:
        raise _failed(f"{ref['type']} {name} has changed: expected id {wanted} != {ref['snapshot-id']}")


def _assert_equal(asserted: str, key: str, what: str) -> Callable[[Document, Document | None], None]:
    def checker(requirement: Document, document: Document | None) -> None:
        wanted, found = _field(requirement, asserted), _existing(document).get(key)
        if wanted != found:
            raise _failed(f"{what} changed: expected id {wanted} != {found}")

    return checker


_CHECKERS: dict[str, Callable[[Document, Document | None], None]] = {
    ASSERT_CREATE: _assert_create,
    "assert-table-uuid": _assert_uuid,
    "assert-ref-snapshot-id": _assert_ref,
    "assert-last-assigned-field-id": _assert_equal(
        "last-assigned-field-id", "last-column-id", "last assigned field id"
    ),
    "assert-current-schema-id": _assert_equal("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": _assert_equal(
        "last-assigned-partition-id", "last-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": _assert_equal("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": _assert_equal(
        "default-sort-order-id", "default-sort-order-id", "default sort order"
    ),
}
