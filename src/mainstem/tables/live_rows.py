"""How many rows a snapshot of an Iceberg table holds, as far as summaries say. No I/O.

`total-records` counts every row in the data files, those that deletes have taken away included.
`total-position-deletes` also counts deletes of files that a compaction has replaced since, as long as their delete file
has others to serve. So not even the difference of the two is the number of rows; what each commit did to them tells.
"""

from collections.abc import Mapping
from typing import Any

from mainstem.tables.maintenance import count_of

Summary = Mapping[str, Any]

# By Iceberg's specification a commit of this kind changes files, and no row.
REPLACE = "replace"


def rows_without_deletes(summary: Summary) -> int | None:
    """The rows of a snapshot that has no delete file at all; None where it has some, or says nothing of its rows."""
    if "total-records" not in summary:
        return None
    deletes = ("total-position-deletes", "total-equality-deletes", "total-delete-files")
    return None if any(count_of(summary, each) for each in deletes) else count_of(summary, "total-records")


def rows_changed(summary: Summary) -> int | None:
    """By how many rows a commit changed the table; None where its summary does not tell."""
    if summary.get("operation") == REPLACE:
        return 0
    # What an equality delete takes away only a scan can say; a data file that goes may have lost rows before.
    if count_of(summary, "added-equality-deletes") or count_of(summary, "removed-equality-deletes"):
        return None
    if count_of(summary, "deleted-data-files"):
        return None
    taken = count_of(summary, "added-position-deletes") - count_of(summary, "removed-position-deletes")
    return count_of(summary, "added-records") - taken


def rows_added(summary: Summary) -> int:
    """The rows that a commit wrote because they are new or have changed: a compaction writes none of those."""
    return 0 if summary.get("operation") == REPLACE else count_of(summary, "added-records")
