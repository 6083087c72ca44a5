"""Makes what was written to a local disk last, before a commit names it.

Neither Hadoop nor Iceberg syncs a file when it is closed, and the log lets go of segments once tables cover them: after
a power cut a table whose manifest is empty would have lost what was acknowledged. What executors write is synced at the
end of their task. An object store has nothing to do: what it took, it keeps.
"""

from pathlib import Path
from typing import Any

from mainstem.pipeline.passes.stores import local_path, make_durable


def staged_files(snapshot: Any) -> list[Path]:
    """The manifests of a snapshot that is not committed yet: those that were written for it, and their list.

    Iceberg calls them `<uuid>-m0.avro`, `<uuid>-m1.avro` and so on, and the list `snap-<id>-<attempt>-<uuid>.avro`.
    They are not read for their names: that would take longer than to sync them.
    """
    listed = local_path(str(snapshot.manifestListLocation()))
    if listed is None:
        return []
    paths, number = [listed], 0
    name = listed.stem.split("-", 3)[-1]
    while (manifest := listed.parent / f"{name}-m{number}.avro").exists():
        paths.append(manifest)
        number += 1
    return paths


def sync_head(table: Any) -> None:
    """Everything that the newest snapshot of a table brought: for what Iceberg's own actions have committed."""
    head, io = table.currentSnapshot(), table.io()
    if head is None or local_path(str(head.manifestListLocation())) is None:
        return
    own = int(head.snapshotId())
    manifests = [each for each in head.allManifests(io) if each.snapshotId() is not None and each.snapshotId() == own]
    files = [*head.addedDataFiles(io), *head.addedDeleteFiles(io)]
    make_durable(
        [
            str(head.manifestListLocation()),
            *(str(each.path()) for each in manifests),
            *(str(f.location()) for f in files),
        ]
    )
