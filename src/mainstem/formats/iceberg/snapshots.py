"""The snapshots of a table, by its metadata document: which one is current, and the line that it comes from."""

from collections.abc import Iterator, Mapping
from typing import Any

MAIN = "main"
NO_SNAPSHOT = -1


def current_snapshot_id(document: Mapping[str, Any]) -> int | None:
    """The snapshot that `main` points to."""
    main = (document.get("refs") or {}).get(MAIN)
    if main is not None:
        return int(main["snapshot-id"])
    current = document.get("current-snapshot-id")
    return None if current is None or current == NO_SNAPSHOT else int(current)


def ancestry(document: Mapping[str, Any], snapshot_id: int | None) -> Iterator[Mapping[str, Any]]:
    """A snapshot and its parents, newest first, as far as the document still has them."""
    snapshots = document.get("snapshots") or []
    # Writers append, so a parent stands before its child: one walk from the end finds the recent ones at once.
    met = 0
    for snapshot in reversed(snapshots):
        if snapshot["snapshot-id"] == snapshot_id:
            yield snapshot
            met += 1
            snapshot_id = snapshot.get("parent-snapshot-id")
            if snapshot_id is None:
                return
    # What is left is out of that order. Taking each out as it is met ends the walk even in a circle.
    left = {snapshot["snapshot-id"]: snapshot for snapshot in snapshots} if met < len(snapshots) else {}
    while snapshot_id is not None and (found := left.pop(snapshot_id, None)) is not None:
        yield found
        snapshot_id = found.get("parent-snapshot-id")
