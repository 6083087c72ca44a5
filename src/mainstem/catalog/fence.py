"""The fence: what a table covers of the log never goes backwards.

Every commit of the pipeline writes the log position it covers into its snapshot's summary. The covered position of a
table is the newest such marker in the ancestry of `main`. A commit after which it would be lower (a replayed batch on
top of an older snapshot, a rollback, a replaced table, an expired marker) would make the pipeline apply changes a
second time, so it is refused, unless it says that it means to.
"""

from collections.abc import Sequence

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata import ancestry, current_snapshot_id
from mainstem.catalog.schemas import Document
from mainstem.model import NOWHERE, LogPosition

POSITION_KEY = "mainstem.position"
# A commit that sets this table property to the position it goes back to is a rollback on purpose.
ROLLBACK_PROPERTY = "mainstem.rollback-to-position"


def covered_position(document: Document) -> LogPosition:
    """The log position that the table's main branch covers."""
    for snapshot in ancestry(document, current_snapshot_id(document)):
        text = (snapshot.get("summary") or {}).get(POSITION_KEY, "")
        if isinstance(text, str) and text.isdecimal():
            return LogPosition(int(text))
    return NOWHERE


def check_fence(before: LogPosition, after: LogPosition, updates: Sequence[Document]) -> None:
    """Refuse a commit that moves the covered position backwards."""
    if after < before and not _is_deliberate(after, updates):
        raise CommitFailed(
            f"covered position would go backwards. expected=at least {before} got={after}; "
            f"a deliberate rollback sets the table property {ROLLBACK_PROPERTY} to {after} in the same commit"
        )


def _is_deliberate(after: LogPosition, updates: Sequence[Document]) -> bool:
    return any(
        update.get("action") == "set-properties"
        and isinstance(changes := update.get("updates"), dict)
        and changes.get(ROLLBACK_PROPERTY) == str(after)
        for update in updates
    )
