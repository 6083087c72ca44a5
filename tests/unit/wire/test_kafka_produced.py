"""The answer to Produce that is written by hand, held against kio's writer in every version that the door serves."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.wire.kafka.frames import framed
from mainstem.wire.kafka.messages import Message, answer_head, encode_response
from mainstem.wire.kafka.produced import ProducedPartition, ProducedTopic, encode_produced

VERSIONS = range(3, 14)
_offsets = st.integers(-1, (1 << 63) - 1)
_partitions = st.builds(
    ProducedPartition,
    partition=st.integers(0, 10_000),
    error_code=st.sampled_from([0, 1, 3, 90]),
    base_offset=_offsets,
    append_time_ms=st.integers(-1, 4_000_000_000_000),
    log_start_offset=_offsets,
    error_message=st.none() | st.text(max_size=200),
)
_topics = st.lists(st.tuples(st.uuids(version=4), st.lists(_partitions, max_size=4)), max_size=2)


def _as_kio(part: ProducedPartition) -> Message:
    return {
        "index": part.partition,
        "error_code": part.error_code,
        "base_offset": part.base_offset,
        "log_append_time": part.append_time_ms,
        "log_start_offset": part.log_start_offset,
        "error_message": part.error_message,
    }


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=15)
@given(topics=_topics, throttle_ms=st.integers(0, 5_000))
def test_it_is_what_kio_writes(
    version: int, topics: list[tuple[UUID, list[ProducedPartition]]], throttle_ms: int
) -> None:
    # So many that their count takes two bytes.
    many = [ProducedPartition(number, base_offset=number) for number in range(130)]
    found = [(each if version >= 13 else str(each), parts) for each, parts in [*topics, (UUID(int=1), many)]]
    answer = {
        "throttle_time": throttle_ms,
        "responses": [
            {"topic_id" if version >= 13 else "name": name, "partition_responses": [_as_kio(part) for part in parts]}
            for name, parts in found
        ],
    }
    body = encode_produced(version, [ProducedTopic(*each) for each in found], throttle_ms=throttle_ms)
    assert b"".join(framed([answer_head(0, version, 5), *body])) == encode_response(0, version, 5, answer)
