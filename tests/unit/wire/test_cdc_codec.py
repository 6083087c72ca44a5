"""The CDC codec: bytes in, values or one clear refusal out."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model.errors import Invalid
from mainstem.wire import cdc


def event(**changed: Any) -> dict[str, Any]:
    return {"operation": "INSERT", "table": "orders", "rowId": "1", "after": {"id": 1}} | changed


def batch(events: str = "[]", **changed: Any) -> bytes:
    outer = {"type": "cdc_batch", "sourceDoId": "shop", "sequenceNumber": 7, "timestamp": 1} | changed
    return (json.dumps(outer)[:-1] + ', "events": ' + events + "}").encode()


def one(after: str, key: str = '"1"') -> bytes:
    return f'[{{"operation":"INSERT","table":"t","rowId":{key},"after":{{"a":{after}}}}}]'.encode()


def refusal(payload: bytes) -> str:
    with pytest.raises(Invalid) as caught:
        cdc.decode_events(payload)
    assert caught.value.reason == "invalid_format"
    return str(caught.value)


def test_the_short_form_of_a_batch_is_enough() -> None:
    message = cdc.decode_client(batch("[]"))
    assert isinstance(message, cdc.CdcBatch)
    assert (message.source_do_id, message.sequence_number, bytes(message.events)) == ("shop", 7, b"[]")


def test_the_long_form_of_a_batch_and_fields_of_the_future_are_taken() -> None:
    long = batch("[]", firstEventSequence=1, lastEventSequence=1, sizeBytes=256, isRetry=True, retryCount=2, x={"y": 1})
    message = cdc.decode_client(long)
    assert isinstance(message, cdc.CdcBatch)
    assert (message.is_retry, message.retry_count, message.size_bytes) == (True, 2, 256)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"type":"connect","sourceDoId":"s","lastAckSequence":3,"protocolVersion":1,"capabilities":{}}', cdc.Connect),
        ('{"type":"heartbeat","timestamp":1,"sourceDoId":"s","pendingEvents":4}', cdc.Heartbeat),
        ('{"type":"flush_request","sourceDoId":"s","reason":"manual"}', cdc.FlushRequest),
        ('{"type":"disconnect"}', cdc.Disconnect),
    ],
)
def test_every_other_message_is_known(text: str, kind: type) -> None:
    assert isinstance(cdc.decode_client(text.encode()), kind)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"type":"nonsense"}',
        b'{"type":1}',
        b"{}",
        b'{"type":"cdc_batch","events":[]}',
        b'{"type":"cdc_batch","events":[],"sequenceNumber":-1}',
        b'{"type":"cdc_batch","events":[],"sequenceNumber":"1"}',
        b'{"type":"cdc_batch","events":[],"sequenceNumber":9223372036854775808}',
        b'{"type":"cdc_batch","sequenceNumber":1}',
        b'{"type":"cdc_batch","sequenceNumber":1,"events":[],"sourceDoId":""}',
        b'{"type":"cdc_batch","sequenceNumber":1,"events":[],"sourceDoId":"' + b"s" * 257 + b'"}',
        b'{"type":"cdc_batch","sequenceNumber":1,"events":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"type":"heartbeat","sourceDoId":"\xff"}',
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(Invalid, match="message not accepted") as caught:
        cdc.decode_client(data)
    assert caught.value.reason == "invalid_format"
    assert cdc.decode_whole_batch(data) is None


def test_what_is_wrong_in_an_event_is_told_with_its_place() -> None:
    assert "malformed JSON" in refusal(one("NaN"))
    assert "nested too deeply" in refusal(one("[" * 10_000 + "]" * 10_000))
    assert "not UTF-8" in refusal(one('"X"').replace(b"X", b"\xff"))
    assert "malformed JSON" in refusal(one(r'"\ud800"'))
    assert "got `bool` - at `$[0].rowId`" in refusal(one("1", "true"))
    assert "got `float` - at `$[0].rowId`" in refusal(one("1", "1.5"))
    assert "got `null` - at `$[0].rowId`" in refusal(one("1", "null"))
    assert "length >= 1 - at `$[0].rowId`" in refusal(one("1", '""'))
    assert "length <= 1024 - at `$[0].rowId`" in refusal(one("1", '"' + "k" * 1025 + '"'))
    assert "'drop' - at `$[0].operation`" in refusal(json.dumps([event(operation="drop")]).encode())
    assert "at `$[0].table`" in refusal(json.dumps([event(table=3)]).encode())
    assert "got `array` - at `$[0].after`" in refusal(json.dumps([event(after=[1])]).encode())
    assert "at `$[0].timestamp`" in refusal(json.dumps([event(timestamp="now")]).encode())
    assert "at `$[1].sequence`" in refusal(json.dumps([event(), event(sequence=1 << 63)]).encode())
    assert "got `object`" in refusal(b"{}")


def test_keys_are_text_or_integers_and_integers_have_no_bound_of_64_bits() -> None:
    events = cdc.decode_events(json.dumps([event(rowId="a"), event(rowId=7), event(after={"n": 1 << 100})]).encode())
    assert [e.row_id for e in events] == ["a", 7, "1"]


@pytest.mark.parametrize("number", ["1e999", "-1e400", "1" * 5000])
def test_a_number_that_no_table_holds_is_the_tables_to_judge(number: str) -> None:
    assert [e.row_id for e in cdc.decode_events(one(number))] == ["1"]


@pytest.mark.parametrize("word", ["INSERT", "insert", "Insert", "iNsErT", "Update", "DELETE", "delete", "read", "READ"])
def test_operations_are_read_in_any_case(word: str) -> None:
    (read,) = cdc.decode_events(json.dumps([event(operation=word)]).encode())
    assert read.operation.value.upper() == word.upper()


@pytest.mark.parametrize(
    "word", ["\u0131nsert", "\u0131NSERT", "\u0130nsert", "in\u017fert", "in\u00dfert", "insert\u200b"]
)
def test_letters_that_only_look_alike_are_no_operation(word: str) -> None:
    """A dotless i is an I in upper case, and no i in lower case: who reads it the other way finds no operation."""
    assert "operation" in refusal(json.dumps([event(operation=word)]).encode())


def test_the_members_for_speed_are_not_words_of_the_protocol() -> None:
    assert "operation" in refusal(json.dumps([event(operation="insert_lower")]).encode())


def test_a_delete_needs_no_row_and_null_is_a_value() -> None:
    events = cdc.decode_events(b'[{"operation":"DELETE","table":"t","rowId":1,"before":{"a":null},"after":null}]')
    assert (events[0].after, bytes(events[0].before)) == (None, b'{"a":null}')


def test_what_can_be_told_of_a_message_that_could_not_be_read() -> None:
    assert cdc.peek(b'{"type":"cdc_batch","sequenceNumber":9,"correlationId":"c","events":{}}') == cdc.Peek(9, "c")
    assert cdc.peek(b'{"sequenceNumber":true,"correlationId":4}') == cdc.Peek()
    assert cdc.peek(b'{"sequenceNumber":-4}') == cdc.Peek()
    assert cdc.peek(b"\xff") == cdc.peek(b"[" * 100_000) == cdc.Peek()


def test_sizes_of_events_are_those_of_their_text() -> None:
    assert cdc.event_sizes(b'[{"a":1}, {"b":"xx"}]') == [7, 10]
    with pytest.raises(Invalid):
        cdc.event_sizes(b"[1")


# The fast way and the long way must agree, whatever stands around the events.

_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(['"events":[', "]", '\\"events":']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "events"]), inner, max_size=2),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.sampled_from(["x", "events", 'b"events', "]", "correlationId"]), _json, max_size=3),
    after=st.dictionaries(st.sampled_from(["y", "events", "[", "meta", "sourceShardName"]), _json, max_size=3),
    values=st.lists(_json, max_size=3),
    spaced=st.booleans(),
)
def test_both_ways_of_reading_a_batch_agree(
    before: dict[str, Any], after: dict[str, Any], values: list[Any], spaced: bool
) -> None:
    events = [event(after={"v": value}) for value in values]
    separators = (", ", ": ") if spaced else (",", ":")
    # By hand, so that names may come twice.
    members = [*before.items(), ("type", "cdc_batch"), ("sequenceNumber", 3), ("events", events), *after.items()]
    text = ",".join(json.dumps(k) + separators[1] + json.dumps(v, separators=separators) for k, v in members)
    data = ("{" + text + "}").encode()
    fast = cdc.decode_whole_batch(data)
    if fast is None:
        return
    message, payload, read = fast
    slow = cdc.decode_client(data)
    assert isinstance(slow, cdc.CdcBatch)
    assert bytes(slow.events) == payload
    assert cdc.decode_events(payload) == read
    assert msgspec.structs.replace(message, events=slow.events) == slow


def test_the_usual_batches_are_read_the_fast_way() -> None:
    events = json.dumps([event(after={"text": "a ] b"})])
    for data in (batch(events), batch(events).replace(b": ", b":"), batch(events, correlationId="c")):
        assert cdc.decode_whole_batch(data) is not None


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_invalid(data: bytes) -> None:
    for read in (cdc.decode_client, cdc.decode_events, cdc.event_sizes):
        try:
            read(data)
        except Invalid:
            pass
    cdc.decode_whole_batch(data)
    cdc.peek(data)


def test_answers_are_written_as_the_protocol_names_them() -> None:
    ack = cdc.Ack(
        timestamp=5,
        sequence_number=0,
        status=cdc.AckStatus.OK,
        batch_id="1-2",
        details=cdc.AckDetails(events_processed=2, buffer_utilization=0.25),
    )
    assert json.loads(cdc.encode(ack)) == {
        "type": "ack",
        "timestamp": 5,
        "sequenceNumber": 0,
        "status": "ok",
        "batchId": "1-2",
        "details": {"eventsProcessed": 2, "bufferUtilization": 0.25},
    }
    nack = cdc.Nack(
        timestamp=5,
        sequence_number=1,
        reason=cdc.NackReason.BUFFER_FULL,
        error_message="full",
        should_retry=True,
        retry_delay_ms=100,
    )
    assert json.loads(cdc.encode(nack)) == {
        "type": "nack",
        "timestamp": 5,
        "sequenceNumber": 1,
        "reason": "buffer_full",
        "errorMessage": "full",
        "shouldRetry": True,
        "retryDelayMs": 100,
    }
    assert cdc.decode_server(cdc.encode(ack)) == ack
    assert cdc.decode_server(cdc.encode(nack)) == nack
    with pytest.raises(Invalid):
        cdc.decode_server(b"{}")
