"""The fence: what a table covers of any log never goes backwards.

Every commit of a pipeline writes into its snapshot's summary how much it covers of each log (`mainstem.tables.marks`).
What a table covers is what the newest snapshot with such marks in the ancestry of `main` says. A commit after which one
of them would be lower or gone (a replayed batch on top of an older snapshot, a rollback, a replaced table, an expired
mark, a writer that does not know of the other logs) would make a pipeline apply changes a second time, so it is
refused, unless it says that it means to.
"""

from collections.abc import Sequence

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata.schemas import Document
from mainstem.formats.iceberg.snapshots import current_snapshot_id
from mainstem.model import NOWHERE
from mainstem.model.position import UNNAMED
from mainstem.tables.marks import Marks, marks_at

# A commit that sets this table property to the marks that it goes back to is a rollback on purpose.
ROLLBACK_PROPERTY = "mainstem.rollback-to-position"


def covered_marks(document: Document) -> Marks:
    """How much of each log the table's main branch covers."""
    return marks_at(document, current_snapshot_id(document))


def marks_text(marks: Marks) -> str:
    """Marks in one line: `41` where there is no more than the unnamed log's, otherwise `a1b2…=41, c3d4…=7`."""
    if not marks.keys() - {UNNAMED}:
        return str(marks.get(UNNAMED, NOWHERE))
    return ", ".join(f"{log}={position}" if log else str(position) for log, position in sorted(marks.items()))


def check_fence(before: Marks, after: Marks, updates: Sequence[Document]) -> None:
    """Refuse a commit that moves what is covered of any log backwards."""
    back = {log: position for log, position in before.items() if after.get(log, NOWHERE) < position}
    if back and not _is_deliberate(after, updates):
        raise CommitFailed(
            f"covered position would go backwards. expected=at least {marks_text(back)} got={marks_text(after)}; "
            f'a deliberate rollback sets the table property {ROLLBACK_PROPERTY} to "{marks_text(after)}" '
            "in the same commit"
        )


def _is_deliberate(after: Marks, updates: Sequence[Document]) -> bool:
    return any(
        update.get("action") == "set-properties"
        and isinstance(changes := update.get("updates"), dict)
        and changes.get(ROLLBACK_PROPERTY) == marks_text(after)
        for update in updates
    )
