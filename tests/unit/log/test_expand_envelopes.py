"""Events that Debezium Server posts, as they become rows: types by their schema, keys, and by what each is known."""

import msgspec
import pytest

from mainstem.log.seal.expand import Expander
from mainstem.model import Hlc, Invalid, LogPosition, SourceId, TableName
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.wire.debezium_posts import Kind, PostHead, look, pack, read

_ROW = [
    {"field": "id", "type": "int64"},
    {
        "field": "price",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "12"},
    },
    {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
    {"field": "flags", "type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "3"}},
    {"field": "ref", "type": "string", "name": "io.debezium.data.Uuid"},
]
_AFTER = {
    "id": 7,
    "price": "BNI=",
    "at": 1_767_225_600_000_000,
    "day": 20454,
    "flags": "BQ==",
    "ref": "6f9619ff-8b86-4011-b42d-00c04fc964ff",
}
_SOURCE = {
    "name": "shopdb",
    "schema": "public",
    "table": "orders",
    "lsn": 42,
    "txId": 9,
    "snapshot": "false",
    "ts_ms": 5,
}


def event(op: str = "c", wrapped: bool = True, **source: object) -> bytes:
    before = {"id": 7} if op == "d" else None
    envelope = {"before": before, "after": None if before else _AFTER, "source": {**_SOURCE, **source}, "op": op}
    fields = [{"field": side, "type": "struct", "fields": _ROW} for side in ("before", "after")]
    body = {"schema": {"type": "struct", "fields": fields}, "payload": envelope} if wrapped else envelope
    return msgspec.json.encode(body)


def expanded(text: bytes) -> tuple[Expander, object]:
    header = BatchHeader(
        first=LogPosition(5),
        count=1,
        hlc_first=Hlc(100),
        arrival_ms=1,
        source=SourceId("debezium/shopdb/anyone"),
        sequence=1,
        fingerprint=1,
        encoding=Encoding.ENVELOPE,
    )
    expander = Expander()
    (rows,) = expander.expand(header, pack(PostHead("shop", ("id",)), text), "here")
    return expander, rows


def test_values_get_the_types_of_their_schema() -> None:
    expander, rows = expanded(event())
    assert rows.table == TableName("shop", "orders") and rows.keys == ["7"]  # type: ignore[attr-defined]
    columns = msgspec.json.decode(rows.columns[0])  # type: ignore[attr-defined]
    assert columns == {
        "id": 7,
        "price": "12.34",
        "at": "2026-01-01T00:00:00.000000",
        "day": "2026-01-01",
        "flags": "101",
        "ref": _AFTER["ref"],
    }
    types = expander.shape(TableName("shop", "orders")).columns
    assert "decimal(12,2)" in types["price"] and "timestamp" in types["at"]
    assert "date" in types["day"] and "uuid" in types["ref"] and types["flags"] == ["string"]
    assert msgspec.json.decode(rows.metadata[0])["source"]["lsn"] == 42  # type: ignore[attr-defined]


def test_a_delete_has_its_key_from_before() -> None:
    _, rows = expanded(event("d"))
    assert (rows.ops, rows.keys, rows.columns) == (["delete"], ["7"], [None])  # type: ignore[attr-defined]


def test_a_change_is_known_by_its_place_and_not_by_when_it_was_sent() -> None:
    first = look(event()).identity
    assert first is not None
    assert first == look(event(ts_ms=99, sequence='[null,"42"]', snapshot="true")).identity
    assert first == look(event(wrapped=False)).identity
    assert first != look(event(lsn=43)).identity
    assert look(event(lsn=None)).identity is None


@pytest.mark.parametrize(
    "text",
    [b'{"ts_ms": 5}', b'{"status": "BEGIN", "id": "571", "ts_ms": 5}', b'{"source": {"name": "x"}, "ddl": "CREATE"}'],
)
def test_what_says_nothing_of_rows(text: bytes) -> None:
    assert look(text).kind is Kind.NOTHING


def cloud_event(op: str = "c", wrapped: bool = True) -> bytes:
    """As Debezium's converter makes it of the same event: sides in `data`, everything else as attributes."""
    plain = msgspec.json.decode(event(op, wrapped))
    envelope = plain["payload"] if wrapped else plain
    sides = {side: envelope[side] for side in ("before", "after")}
    told = {"op": op, **_SOURCE, "txtotalorder": None, "txdatacollectionorder": None}
    attributes = {
        "iodebezium" + "".join(filter(str.isalnum, name.lower())): str(value) if isinstance(value, int) else value
        for name, value in told.items()
    }
    data = {"schema": plain["schema"], "payload": sides} if wrapped else sides
    return msgspec.json.encode({"id": "name:shopdb;lsn:42;txId:9", "specversion": "1.0", **attributes, "data": data})


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("op", ["c", "u", "r", "d", "t"])
def test_a_cloud_event_is_the_envelope_that_it_was_made_of(op: str, wrapped: bool) -> None:
    cloud, plain = look(cloud_event(op, wrapped)), look(event(op, wrapped))
    assert cloud == plain
    if op != "t":
        head = PostHead("", ("id",))
        assert read(cloud_event(op, wrapped), head) == read(event(op, wrapped), head)


def test_a_cloud_event_may_carry_a_whole_envelope() -> None:
    cloud = msgspec.json.encode({"specversion": "1.0", "id": "x", "data": msgspec.json.decode(event())})
    assert read(cloud, PostHead("", ("id",))).change.key == "7"


def test_truncates_and_refusals() -> None:
    assert look(event("t")).kind is Kind.TRUNCATE
    with pytest.raises(Invalid, match="no key"):
        read(event(), PostHead())
    with pytest.raises(Invalid, match="not JSON"):
        look(b"{")
