"""A Delta table's files as maintenance and insight count them: the inventory that Iceberg tables have."""

from mainstem.catalog.inventory import Inventory
from mainstem.client.delta.zones import row_count
from mainstem.query.delta import DeltaVersion
from mainstem.tables.maintenance import FileFacts


def inventory_of(version: DeltaVersion) -> Inventory:
    """What the table holds at a version. A deletion vector counts as a delete file of its data file."""
    files = []
    deleted_by_partition: dict[str, int] = {}
    for file in version.state.files.values():
        deleted = 0 if file.deletionVector is None else file.deletionVector.cardinality
        deleted_by_partition[file.partition] = deleted_by_partition.get(file.partition, 0) + deleted
        rows = row_count(file) or 0
        files.append(FileFacts(file.path, file.partition, file.size, rows, deleted, int(deleted > 0)))
    return Inventory(
        snapshot_id=version.state.version,
        files=tuple(files),
        deleted_by_partition=deleted_by_partition,
        partitions=(),
        manifests=0,
        delete_files=sum(file.delete_files for file in files),
    )
