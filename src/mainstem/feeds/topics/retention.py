"""What a topic lets go of: whole files of its table, oldest first, as Kafka lets go of whole segments. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from mainstem.feeds.topics.config import TopicConfig


class StoredFile(NamedTuple):
    """A file of a topic's table: which offsets of which partition, until when, and how large."""

    partition: int
    first: int
    last: int
    max_timestamp_ms: int
    bytes: int
    # What its owner knows it by.
    handle: object


def first_to_keep(files: Iterable[StoredFile], config: TopicConfig, start: int, now_ms: int) -> int:
    """The first offset that a partition keeps, by its files: `start` where nothing is to go."""
    if not config.is_deleting:
        return start
    kept = sorted((file for file in files if file.last >= start), key=lambda file: file.first)
    size = sum(file.bytes for file in kept)
    for file in kept:
        is_old = 0 <= config.retention_ms < now_ms - file.max_timestamp_ms
        is_over = 0 <= config.retention_bytes < size
        if not is_old and not is_over:
            break
        start = file.last + 1
        size -= file.bytes
    return start


def spent(files: Iterable[StoredFile], starts: dict[int, int]) -> list[StoredFile]:
    """The files of which no record is kept, by each partition's first offset."""
    return [file for file in files if file.last < starts.get(file.partition, 0)]
