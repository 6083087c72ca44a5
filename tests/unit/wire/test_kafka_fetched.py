"""The answer to Fetch that is written by hand, held against kio's writer in every version that the door serves."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.wire.kafka.fetched import Aborted, FetchedPartition, FetchedTopic, encode_fetched
from mainstem.wire.kafka.frames import framed
from mainstem.wire.kafka.messages import Message, answer_head, encode_response

VERSIONS = range(4, 19)
_offsets = st.integers(-1, (1 << 63) - 1)
_partitions = st.builds(
    FetchedPartition,
    partition=st.integers(0, 10_000),
    error_code=st.sampled_from([0, 1, 3, 100]),
    high_watermark=_offsets,
    last_stable_offset=_offsets,
    log_start_offset=_offsets,
    batches=st.lists(st.binary(min_size=1, max_size=200), max_size=3),
    aborted=st.none() | st.lists(st.builds(Aborted, _offsets, _offsets), max_size=2),
)
_topics = st.lists(st.tuples(st.uuids(version=4), st.lists(_partitions, max_size=4)), max_size=2)


def _as_kio(part: FetchedPartition) -> Message:
    aborted = None if part.aborted is None else [each._asdict() for each in part.aborted]
    return {
        "partition_index": part.partition,
        "error_code": part.error_code,
        "high_watermark": part.high_watermark,
        "last_stable_offset": part.last_stable_offset,
        "log_start_offset": part.log_start_offset,
        "aborted_transactions": aborted,
        "preferred_read_replica": -1,
        "records": b"".join(part.batches),
    }


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=15)
@given(topics=_topics, throttle_ms=st.integers(0, 5_000), error_code=st.sampled_from([0, 70]))
def test_it_is_what_kio_writes(
    version: int, topics: list[tuple[UUID, list[FetchedPartition]]], throttle_ms: int, error_code: int
) -> None:
    # So many that their count takes two bytes.
    many = [FetchedPartition(number, 0, batches=[bytes(200)]) for number in range(130)]
    found = [*topics, (UUID(int=1), many)]
    names = [(each if version >= 13 else str(each), parts) for each, parts in found]
    answer = {
        "throttle_time": throttle_ms,
        "error_code": error_code,
        "session_id": 0,
        "responses": [
            {"topic_id" if version >= 13 else "topic": name, "partitions": [_as_kio(part) for part in parts]}
            for name, parts in names
        ],
    }
    expected = encode_response(1, version, 7, answer)
    body = encode_fetched(
        version, [FetchedTopic(*each) for each in names], error_code=error_code, throttle_ms=throttle_ms
    )
    assert b"".join(framed([answer_head(1, version, 7), *body])) == expected
