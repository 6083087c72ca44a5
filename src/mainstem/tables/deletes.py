"""Which delete files apply to a data file, by Iceberg's rules. Pure, over values that a manifest's reader fills.

- A deletion vector or a position delete that names its data file applies to that file alone.
- Any other position delete applies to the data files of its partition that are not newer than itself.
- An equality delete applies to the data files of its partition that are older than itself; written with an
  unpartitioned spec, to those of every partition.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

PartitionKey = tuple[int, tuple[object, ...]]


class Content(Enum):
    """What a file holds; the numbers are the manifest's."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """As much of a delete file as decides what it applies to. `number` is its place in the answer's list."""

    number: int
    content: Content
    sequence: int
    partition: PartitionKey
    data_path: str | None
    is_vector: bool


@dataclass(slots=True)
class DeleteIndex:
    """Delete files, to be asked once per data file."""

    _by_path: dict[str, list[DeleteFile]] = field(default_factory=lambda: defaultdict(list))
    _by_partition: dict[PartitionKey, list[DeleteFile]] = field(default_factory=lambda: defaultdict(list))
    _everywhere: list[DeleteFile] = field(default_factory=list)

    def add(self, delete: DeleteFile) -> None:
        """Take up a delete file."""
        if delete.data_path is not None:
            self._by_path[delete.data_path].append(delete)
        elif delete.content is Content.EQUALITY_DELETES and not delete.partition[1]:
            self._everywhere.append(delete)
        else:
            self._by_partition[delete.partition].append(delete)

    def of(self, path: str, sequence: int, partition: PartitionKey) -> list[int]:
        """The numbers of the delete files that apply to a data file, in the order of the list."""
        named = [delete for delete in self._by_path.get(path, ()) if delete.sequence >= sequence]
        vectors = [delete for delete in named if delete.is_vector]
        # A vector holds everything that the position deletes before it said of its file.
        found = vectors or named
        for delete in (*self._by_partition.get(partition, ()), *self._everywhere):
            if delete.content is Content.EQUALITY_DELETES:
                applies = sequence < delete.sequence
            else:
                applies = sequence <= delete.sequence and not vectors
            if applies:
                found.append(delete)
        return sorted(delete.number for delete in found)
