"""CDC records and Debezium's envelope: there and back without loss, and a named error for what is neither."""

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Invalid
from mainstem.model.hlc import Hlc
from mainstem.model.position import LogPosition
from mainstem.wire.cdc_records import (
    CDCRecord,
    change_of,
    decode_record,
    encode_record,
    record_of,
    records_of_feed,
)
from mainstem.wire.debezium import UNAVAILABLE, Form, Message, Tombstone, decode_message, encode_change
from tests.unit.query_documents.document_strategies import relaxed

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
rows = st.dictionaries(st.sampled_from(["id", "name", "tags", "größe"]), values, max_size=3)
numbers = st.integers(0, 2**62)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    operation = draw(st.sampled_from(Operation))
    return Change(
        namespace=draw(st.sampled_from(["default", "public"])),
        table="orders",
        key=draw(st.text(min_size=1, max_size=5)),
        operation=operation,
        columns=None if operation is Operation.DELETE else draw(rows),
        before=draw(st.one_of(st.none(), rows)),
        hlc=draw(st.one_of(st.none(), numbers.map(Hlc))),
        source=SourceId("device-7"),
        batch_sequence=draw(numbers),
        sequence=draw(st.one_of(st.none(), numbers)),
        id=draw(st.one_of(st.none(), st.text(max_size=5))),
        source_time_ms=draw(st.one_of(st.none(), st.integers(0, 2**45))),
        metadata=draw(st.one_of(st.none(), rows)),
        position=draw(st.one_of(st.none(), numbers.map(LogPosition))),
    )


@relaxed
@given(changes())
def test_a_change_as_a_record_and_back(change: Change) -> None:
    assert change_of(decode_record(encode_record(record_of(change)))) == change


@relaxed
@given(changes(), st.sampled_from([Form.ENVELOPE, Form.SCHEMA]))
def test_a_change_as_an_envelope_and_back(change: Change, form: Form) -> None:
    now_ms = 5 if change.source_time_ms is None else 9
    messages = encode_change(change, now_ms=now_ms, form=form)
    back = decode_message(messages[0].value, messages[0].key)
    assert isinstance(back, Change)
    # The envelope always says when: where the source did not, it is the time of writing.
    expected_ms = now_ms if change.source_time_ms is None else change.source_time_ms
    for name in Change.__struct_fields__:
        expected = expected_ms if name == "source_time_ms" else getattr(change, name)
        assert getattr(back, name) == expected, name
    assert [message.value is None for message in messages[1:]] == [True] * (change.operation is Operation.DELETE)


@relaxed
@given(changes())
def test_a_change_as_a_flat_row_and_back(change: Change) -> None:
    message = encode_change(change, now_ms=5, form=Form.FLAT)[0]
    back = decode_message(message.value, message.key)
    assert isinstance(back, Change)
    assert (back.key, back.operation, back.columns, back.table, back.hlc, back.position) == (
        change.key,
        change.operation,
        change.columns,
        change.table,
        change.hlc,
        change.position,
    )


def test_a_record_of_another_system() -> None:
    data = {
        "_id": "42",
        "_seq": "9007199254740993",
        "_op": "u",
        "_before": {"n": 1},
        "_after": {"n": 2},
        "_ts": "1700000000123456789",
        "_source": {"system": "mongolake", "database": "shop", "collection": "carts", "shard": 3},
    }
    change = change_of(decode_record(json.dumps(data).encode()))
    assert (change.namespace, change.table, change.key) == ("shop", "carts", "42")
    assert (change.sequence, change.source_time_ms) == (9007199254740993, 1_700_000_000_123)
    assert change.metadata == {"source": data["_source"]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"_id": "1"}',
        b'{"_id": "1", "_seq": 1, "_op": "x", "_ts": 1, "_source": {}, "_after": {}}',
        b'{"_id": "1", "_seq": 1, "_op": "c", "_ts": 1, "_source": {}}',
        b'{"_id": "1", "_seq": 1, "_op": "d", "_ts": 1, "_source": {}, "_after": {}}',
        b'{"_id": "1", "_seq": "one", "_op": "c", "_ts": 1, "_source": {}, "_after": {}}',
        b'{"_id": "\xff", "_seq": 1, "_op": "c", "_ts": 1, "_source": {}, "_after": {}}',
        b'{"_id": "1", "_seq": 1, "_op": "c", "_ts": 1, "_source": {}, "_after": ' + b"[" * 100_000 + b"}",
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode_record(data)


@pytest.mark.parametrize(
    "source", [{}, {"system": "mainstem"}, {"system": "mainstem", "database": "d", "collection": "c", "hlc": -1}]
)
def test_a_record_that_does_not_say_its_table_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        change_of(CDCRecord(id="1", seq=1, op="c", after={}, ts_ns=0, source=source))


def postgres(op: str, before: Any, after: Any) -> bytes:
    source = {"connector": "postgresql", "name": "shop", "db": "inventory", "schema": "public", "table": "orders"}
    body = {"before": before, "after": after, "op": op, "ts_ms": 200, "source": {**source, "ts_ms": 100}}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("op", "operation"),
    [("c", Operation.INSERT), ("u", Operation.UPDATE), ("r", Operation.READ)],
)
def test_an_envelope_of_postgres(op: str, operation: Operation) -> None:
    change = decode_message(postgres(op, None, {"id": 5, "note": "x"}), b'{"id": 5}', sequence=17)
    assert isinstance(change, Change)
    assert (change.namespace, change.table, change.key, change.operation) == ("public", "orders", "5", operation)
    assert (change.columns, change.source_time_ms, change.sequence) == ({"id": 5, "note": "x"}, 100, 17)


def test_a_delete_and_its_tombstone() -> None:
    key = b'{"schema": {"type": "struct"}, "payload": {"id": 5}}'
    change = decode_message(postgres("d", {"id": 5}, None), key)
    assert isinstance(change, Change)
    assert (change.operation, change.columns, change.before) == (Operation.DELETE, None, {"id": 5})
    assert decode_message(None, key) == Tombstone("5")
    assert decode_message(b"null", key) == Tombstone("5")


def test_a_value_that_the_source_left_out_is_not_a_value() -> None:
    change = decode_message(postgres("u", None, {"id": 5, "body": UNAVAILABLE}), b'{"id": 5}')
    assert isinstance(change, Change)
    assert change.columns == {"id": 5}


def test_a_document_as_text() -> None:
    body = {"op": "c", "after": '{"_id": {"$oid": "60"}, "n": 1}', "source": {"db": "shop", "collection": "carts"}}
    change = decode_message(json.dumps(body).encode(), b'{"id": "{\\"$oid\\": \\"60\\"}"}')
    assert isinstance(change, Change)
    assert (change.namespace, change.table, change.columns) == ("shop", "carts", {"_id": {"$oid": "60"}, "n": 1})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b'{"id": 5}', "5"),
        (b'{"id": "a"}', "a"),
        (b'{"b": 2, "a": 1}', '{"a":1,"b":2}'),
        (b'"plain"', "plain"),
        (b"not json", "not json"),
        (b"5", "5"),
    ],
)
def test_keys(key: bytes, text: str) -> None:
    change = decode_message(postgres("c", None, {"id": 5}), key)
    assert isinstance(change, Change)
    assert change.key == text


def test_a_flat_row_of_the_unwrap_transformation() -> None:
    row = {"id": 5, "note": "x", "__deleted": "true", "__op": "d", "__table": "orders", "__source_ts_ms": 100}
    change = decode_message(json.dumps(row).encode(), None, key_columns=("id",))
    assert isinstance(change, Change)
    assert (change.table, change.key, change.operation) == ("orders", "5", Operation.DELETE)
    assert (change.before, change.source_time_ms) == ({"id": 5, "note": "x"}, 100)


def test_a_flat_row_is_named_by_its_topic() -> None:
    change = decode_message(b'{"id": 5}', b'{"id": 5}', topic="server.public.orders")
    assert isinstance(change, Change)
    assert (change.namespace, change.table, change.operation) == ("public", "orders", Operation.UPDATE)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (None, None),
        (b"null", None),
        (b"5", b"5"),
        (b"{", b"5"),
        (postgres("t", None, {}), b"5"),
        (postgres("c", None, None), b"5"),
        (postgres("c", None, {"id": 5}), None),
        (b'{"op": "c", "after": 5}', b"5"),
        (b'{"op": "c", "after": {}}', b"5"),
        (b'{"id": 1}', b"\xff"),
    ],
)
def test_what_is_no_envelope_is_refused(value: bytes | None, key: bytes | None) -> None:
    with pytest.raises(Invalid):
        decode_message(value, key)


def test_the_schema_names_each_type() -> None:
    change = Change(
        table="orders",
        key="1",
        operation=Operation.INSERT,
        columns={"n": 1, "d": 1.5, "b": True, "s": "x", "o": {"a": 1}},
        source=SourceId("s"),
        batch_sequence=1,
    )
    [message] = encode_change(change, now_ms=1, form=Form.SCHEMA)
    assert isinstance(message, Message) and message.value is not None
    body = json.loads(message.value)
    after = next(field for field in body["schema"]["fields"] if field["field"] == "after")
    assert {field["field"]: field["type"] for field in after["fields"]} == {
        "n": "int64",
        "d": "double",
        "b": "boolean",
        "s": "string",
        "o": "string",
    }
    assert body["payload"]["after"]["o"] == '{"a":1}'


def test_a_field_that_turns_from_text_into_an_object_survives_the_schema() -> None:
    change = Change(
        table="t",
        key="1",
        operation=Operation.UPDATE,
        before={"o": "text", "p": [1], "q": None},
        columns={"o": {"a": 1}, "p": "[1]", "q": {}},
        source=SourceId("s"),
        batch_sequence=1,
    )
    [message] = encode_change(change, now_ms=1, form=Form.SCHEMA)
    back = decode_message(message.value, message.key)
    assert isinstance(back, Change)
    assert (back.before, back.columns) == (change.before, change.columns)


def test_the_change_feed_of_delta() -> None:
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

    def row(kind: str, version: int, **values: Any) -> dict[str, Any]:
        return {**values, "_change_type": kind, "_commit_version": version, "_commit_timestamp": moment}

    feed = [
        row("insert", 1, id=1, n="a"),
        row("update_preimage", 2, id=1, n="a"),
        row("update_postimage", 2, id=1, n="b"),
        row("delete", 3, id=1, n="b"),
    ]
    records = list(records_of_feed(feed, table="orders", key="id"))
    assert [(record.op, record.seq, record.before, record.after) for record in records] == [
        ("c", 1, None, {"id": 1, "n": "a"}),
        ("u", 2, {"id": 1, "n": "a"}, {"id": 1, "n": "b"}),
        ("d", 3, {"id": 1, "n": "b"}, None),
    ]
    assert records[0].ts_ns == 1_704_067_200_000_000_000
