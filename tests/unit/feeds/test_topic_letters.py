"""Records of a topic of JSON values that are no rows: consumers get them as they came, also once they are sealed."""

from pathlib import Path

from mainstem.feeds.topics.reading import NoRows, Reader
from tests.harness.kafka import batch_of
from tests.unit.feeds.test_topics import _until_taken, _values, new_partition, opened

VALUES = [
    b'{"n": 1}',
    b"no json",
    b"[1, 2]",
    b'{"_kafka_offset": 99}',
    b'"\\"_kafka_offset\\":"',
    b"\xff\xfe",
    b'{"n": {"deep": 1}}',
    b"null",
    b'{"n": 2}',
]


async def test_what_does_not_fit_is_read_from_segments_as_it_came(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        partition = await new_partition(topics, "events", value_mode="json")
        for value in VALUES:
            await _until_taken(partition, batch_of([value]))
        # Memory has but the last batch of all.
        await _until_taken(await new_partition(topics, "other"), batch_of([b"x"]))
        await topics.log.flush()  # type: ignore[attr-defined]
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        for offset in range(len(VALUES)):
            found = b"".join(await reader.read(partition, offset, 1 << 20, before=partition.end))
            assert _values(found) == VALUES[offset:]
