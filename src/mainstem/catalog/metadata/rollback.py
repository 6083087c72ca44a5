"""The commit that puts a table back to an earlier snapshot, on purpose: the fence lets it through. Pure."""

from mainstem.catalog.metadata.fence import ROLLBACK_PROPERTY, marks_text
from mainstem.catalog.metadata.schemas import Document
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.tables.marks import marks_at


def rollback_commit(document: Document, snapshot_id: int) -> tuple[list[Document], list[Document]]:
    """Requirements and updates. The later snapshots stay, and can be rolled forward to."""
    requirements: list[Document] = [
        {"type": "assert-table-uuid", "uuid": document["table-uuid"]},
        # A commit that came in between must not be undone unseen.
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": current_snapshot_id(document)},
    ]
    covered = marks_text(marks_at(document, snapshot_id))
    updates: list[Document] = [
        {"action": "set-properties", "updates": {ROLLBACK_PROPERTY: covered}},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id},
    ]
    return requirements, updates
