"""How an answer says for how long a client is throttled: in every form and version that has room for it."""

from datetime import timedelta

import pytest

from mainstem.doors.kafka.dispatch import Encoded
from mainstem.doors.kafka.throttling import throttled
from mainstem.wire.kafka.fetched import encode_fetched
from mainstem.wire.kafka.frames import framed
from mainstem.wire.kafka.messages import answer_head, decode_response, encode_response
from mainstem.wire.kafka.produced import encode_produced


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_that_is_encoded_already(version: int) -> None:
    answer = throttled(1, Encoded(encode_fetched(version, ())), 1_500)
    assert isinstance(answer, Encoded)
    frame = b"".join(framed([answer_head(1, version, 7), *answer.body]))
    assert decode_response(1, version, frame[4:]).throttle_time == timedelta(milliseconds=1_500)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_that_is_encoded_already(version: int) -> None:
    answer = throttled(0, Encoded(encode_produced(version, ())), 1_500)
    assert isinstance(answer, Encoded)
    frame = b"".join(framed([answer_head(0, version, 7), *answer.body]))
    assert decode_response(0, version, frame[4:]).throttle_time == timedelta(milliseconds=1_500)


@pytest.mark.parametrize(("key", "version"), [(3, 13), (8, 10), (9, 8), (26, 5)])
def test_an_answer_by_its_fields(key: int, version: int) -> None:
    answer = throttled(key, {}, 250)
    assert isinstance(answer, dict)
    told = decode_response(key, version, encode_response(key, version, 7, answer)[4:])
    assert told.throttle_time == timedelta(milliseconds=250)


def test_no_answer_stays_none() -> None:
    assert throttled(0, None, 250) is None
