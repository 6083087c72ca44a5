"""From payloads to the rows and the footer of a segment."""

import itertools
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.formats.segments import segment_name
from mainstem.log.seal.segments import SegmentBuilder, SegmentInfo, read_info
from mainstem.log.seal.shapes import Shape
from mainstem.model.batch import BatchHeader, Encoding, shard_payload
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Corrupt
from mainstem.model.hlc import Hlc
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from tests.unit.log.log_fixtures import event

ORDERS = TableName("default", "orders")


def sealed(folder: Path, *payloads: tuple[Encoding, int, bytes]) -> tuple[list[dict[str, Any]], SegmentInfo]:
    """Rows and footer of a segment of these batches."""
    builder = SegmentBuilder()
    first = 1
    for index, (encoding, count, payload) in enumerate(payloads):
        header = BatchHeader(
            first=LogPosition(first),
            count=count,
            hlc_first=Hlc(1000 + first),
            arrival_ms=5000 + index,
            source=SourceId("app"),
            sequence=70 + index,
            fingerprint=0,
            encoding=encoding,
        )
        builder.add(header, payload, f"batch {index}")
        first += count
    path = folder / segment_name(LogPosition(1), LogPosition(first - 1))
    builder.write(path)
    return pq.read_table(path).to_pylist(), read_info(path)


def events(*items: dict[str, Any]) -> tuple[Encoding, int, bytes]:
    return Encoding.CDC_JSON, len(items), msgspec.json.encode(items)


def text(*items: str) -> tuple[Encoding, int, bytes]:
    return Encoding.CDC_JSON, len(items), ("[" + ",".join(items) + "]").encode()


def test_every_column_of_the_schema(tmp_path: Path) -> None:
    rows, info = sealed(
        tmp_path,
        text(
            '{"sequence":3,"timestamp":1700000000123,"operation":"UPDATE","table":"public.orders","rowId":42,'
            '"before":{"a": 1},"after":{"a" : 1.50,\n"b":"\\u00e9"},"metadata":{"txn": "x"}}'
        ),
    )
    assert rows == [
        {
            "position": 1,
            "hlc": 1001,
            "namespace": "public",
            "table": "orders",
            "op": "update",
            "key": "42",
            "columns": '{"a" : 1.50,\n"b":"\\u00e9"}',
            "before": '{"a": 1}',
            "source": "app",
            "batch_sequence": 70,
            "sequence": 3,
            "id": None,
            "source_time_ms": 1_700_000_000_123,
            "arrival_ms": 5000,
            "metadata": '{"txn": "x"}',
            "error": None,
            "time": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
            "source_time": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
            "log": "",
        }
    ]
    assert (info.first, info.last, info.arrival_min_ms, info.hlc_last) == (1, 1, 5000, 1001)


def test_rows_are_grouped_by_table_and_ordered_by_position(tmp_path: Path) -> None:
    tables = ["b", "a", "x.a", "b", "a", "a"]
    rows, info = sealed(tmp_path, events(*[event(n, table=table) for n, table in enumerate(tables)]), events(event(9)))
    assert [(row["namespace"], row["table"], row["position"], row["hlc"]) for row in rows] == [
        ("default", "a", 2, 1002),
        ("default", "a", 5, 1005),
        ("default", "a", 6, 1006),
        ("default", "b", 1, 1001),
        ("default", "b", 4, 1004),
        ("default", "orders", 7, 1007),
        ("x", "a", 3, 1003),
    ]
    part = info.tables[TableName("default", "a")]
    assert (part.first, part.last, part.count, part.hlc_min, part.hlc_max) == (2, 6, 3, 1002, 1006)
    assert part.ordered is True
    metadata = pq.read_metadata(info.path)
    assert metadata.num_row_groups == 4


@pytest.mark.parametrize(
    ("spelling", "op"),
    [("INSERT", "insert"), ("insert", "insert"), ("Update", "update"), ("READ", "read"), ("SNAPSHOT", "read")],
)
def test_operations_in_any_spelling(tmp_path: Path, spelling: str, op: str) -> None:
    rows, _ = sealed(tmp_path, events(event(1, operation=spelling)))
    assert rows[0]["op"] == op


def test_a_delete_has_no_columns(tmp_path: Path) -> None:
    rows, info = sealed(
        tmp_path,
        events(
            event(1),
            event(2, operation="DELETE", after={"id": 2}, before={"id": 2}),
            event(3, operation="delete", after=...),
            event(4, operation="DELETE", after=None),
        ),
    )
    assert [row["columns"] is None for row in rows] == [False, True, True, True]
    assert [row["before"] for row in rows] == [None, '{"id":2}', None, None]
    part = info.tables[ORDERS]
    assert (part.deletes, part.errors, part.always) == (3, 0, ["id", "note"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("null", "null"),
        ("true", "bool"),
        ("0", "int"),
        ("9007199254740992", "int"),
        ("-9007199254740992", "int"),
        ("9007199254740993", "long"),
        ("-9223372036854775808", "long"),
        ("9223372036854775807", "long"),
        ("9223372036854775808", "big"),
        ("-9223372036854775809", "big"),
        ("1" * 40, "big"),
        ("1.0", "double"),
        ("1e3", "double"),
        ('"text"', "string"),
        ("{}", "object"),
        ("[]", "array"),
    ],
)
def test_types_of_values(tmp_path: Path, value: str, kind: str) -> None:
    row = '{"operation":"INSERT","table":"orders","rowId":"k","after":{"v":%s}}'
    _, info = sealed(tmp_path, text(row % value), text(row % value))
    assert info.tables[ORDERS].columns == {"v": [kind]}
    # Whatever was learnt first, the value still shows.
    plain = ["7", "1.5", '"x"', "null", "false"]
    for before in plain:
        _, info = sealed(tmp_path, text(*[row % before] * 3), text(row % value))
        assert kind in info.tables[ORDERS].columns["v"]


def test_columns_that_come_and_go(tmp_path: Path) -> None:
    rows = [{"id": 1, "a": 1}, {"id": 2, "b": None}, {"id": "three", "a": 2.5}]
    _, info = sealed(tmp_path, *[events(event(n, after=row)) for n, row in enumerate(rows)])
    part = info.tables[ORDERS]
    assert part.columns == {"a": ["double", "int"], "b": ["null"], "id": ["int", "string"]}
    assert part.always == ["id"]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("after", "error"),
    [
        ({"": 1}, "empty name"),
        ({"x" * 256: 1}, "too long"),
        ({"a\nb": 1}, "control character"),
        ({f"c{n}": n for n in range(1001)}, "too many columns"),
        ({"deep": nested(65)}, "nested too deep"),
        ({"deep": {"x": {"y": nested(63)}}}, "nested too deep"),
        ([1], "not an object"),
        ("text", "not an object"),
        (None, "not an object"),
        (..., "not an object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_fit_no_table_are_kept_with_the_reason(tmp_path: Path, after: Any, error: str) -> None:
    rows, info = sealed(tmp_path, events(event(1), event(2, after=after), event(3)), events(event(4, after=after)))
    assert [row["error"] is None for row in rows] == [True, False, True, False]
    assert error in rows[1]["error"]
    part = info.tables[ORDERS]
    assert (part.count, part.errors, part.last) == (4, 2, 4)
    assert (part.columns, part.always) == ({"id": ["int"], "note": ["string"]}, ["id", "note"])


def test_the_bounds_themselves_are_fine(tmp_path: Path) -> None:
    good = [{"x" * 255: 1}, {f"c{n}": n for n in range(1000)}, {"deep": nested(64)}]
    rows, _ = sealed(tmp_path, events(*[event(n, after=row) for n, row in enumerate(good)]))
    assert [row["error"] for row in rows] == [None] * 3


def test_an_event_that_cannot_be_read_stops_nobody(tmp_path: Path) -> None:
    rows, info = sealed(tmp_path, text(*[msgspec.json.encode(event(n)).decode() for n in (1, 2)], '{"table":5}'))
    assert [row["error"] is None for row in rows] == [True, True, False]
    assert rows[2]["columns"] == '{"table":5}'
    assert info.tables[TableName("default", "unreadable")].errors == 1


def test_an_event_that_cannot_be_read_stays_with_its_table(tmp_path: Path) -> None:
    """Its dead letter must not land in a namespace that its writer has no right to."""
    bad = event(2, table="tenant.orders", operation="\u0131nsert")
    rows, info = sealed(tmp_path, events(event(1, table="tenant.orders"), bad, event(3)))
    assert {(row["namespace"], row["table"]) for row in rows} == {("tenant", "orders"), ("default", "orders")}
    assert info.tables[TableName("tenant", "orders")].errors == 1
    (letter,) = [row for row in rows if row["error"] is not None]
    assert (letter["namespace"], letter["table"]) == ("tenant", "orders")


def test_a_batch_with_another_count_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="batch 0"):
        sealed(tmp_path, (Encoding.CDC_JSON, 2, msgspec.json.encode([event(1)])))
    with pytest.raises(Corrupt, match="batch 0"):
        sealed(tmp_path, (Encoding.CDC_JSON, 1, b"[{"))
    with pytest.raises(Corrupt, match="batch 0"):
        sealed(tmp_path, (Encoding.CHANGES, 1, b"\x91\x01"))


def test_changes_bring_their_own_clocks(tmp_path: Path) -> None:
    common: dict[str, Any] = {"table": "orders", "source": SourceId("app"), "batch_sequence": 1}
    changes = [
        Change(key="a", operation=Operation.INSERT, columns={"n": 2**60}, hlc=Hlc(9_000_000), id="i-1", **common),
        Change(key="b", operation=Operation.DELETE, before={"n": 1}, metadata={"m": [1]}, **common),
        Change(key="c", operation=Operation.UPDATE, columns={"n": float("nan")}, **common),
    ]
    rows, info = sealed(tmp_path, (Encoding.CHANGES, 3, msgspec.msgpack.encode(changes)))
    assert [(row["key"], row["hlc"], row["columns"], row["id"]) for row in rows] == [
        ("a", 9_000_000, '{"n":1152921504606846976}', "i-1"),
        ("b", 1002, None, None),
        ("c", 1003, '{"n":null}', None),
    ]
    assert (rows[1]["before"], rows[1]["metadata"]) == ('{"n":1}', '{"m":[1]}')
    assert "not a number" in rows[2]["error"]
    part = info.tables[ORDERS]
    assert (part.hlc_max, part.errors, part.columns) == (9_000_000, 1, {"n": ["long"]})
    # The clocks that the log issues grow with the positions; a client's need not.
    assert part.ordered is False
    # Ours is the highest that the log issued, not a client's.
    assert info.hlc_last == 1003


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
table_rows = st.lists(st.dictionaries(st.sampled_from("abcd"), values, max_size=4), min_size=1, max_size=4)


def naive_type(value: Any) -> str:
    if type(value) is int:
        return "int" if abs(value) <= 2**53 else "long" if -(2**63) <= value < 2**63 else "big"
    names = {type(None): "null", bool: "bool", float: "double", str: "string", dict: "object", list: "array"}
    return names[type(value)]


@settings(deadline=None)
@given(st.lists(table_rows, max_size=6))
def test_the_learnt_shape_is_what_a_look_at_every_value_gives(batches: list[list[dict[str, Any]]]) -> None:
    shape = Shape()
    for rows in batches:
        encoded = msgspec.json.encode(rows)
        if not shape.knows(encoded):
            shape.learn(msgspec.json.decode(encoded))
    everything = list(itertools.chain(*batches))
    expected: dict[str, set[str]] = {}
    for row in everything:
        for name, value in row.items():
            expected.setdefault(name, set()).add(naive_type(value))
    assert shape.columns == {name: sorted(kinds) for name, kinds in sorted(expected.items())}
    assert shape.always == sorted(set.intersection(*[set(row) for row in everything]) if everything else ())


def _as_batches(rows: list[dict[str, Any]], size: int) -> list[bytes]:
    events = [{"table": "orders", "operation": "UPDATE", "rowId": str(i), "after": row} for i, row in enumerate(rows)]
    return [msgspec.json.encode(events[start : start + size]) for start in range(0, len(events), size)]


@settings(deadline=None, max_examples=60)
@given(st.lists(table_rows, min_size=1, max_size=6), st.sampled_from([1, 70, 400]), st.booleans())
def test_large_batches_are_judged_like_small_ones(drawn: list[list[dict[str, Any]]], size: int, spaced: bool) -> None:
    """The text of many rows at once tells the same as a look at each value."""
    usual = [{"a": n, "b": f"t{n}\n", "c": n / 4 + 0.5, "d": n % 2 == 0} for n in range(300)]
    rows = [*usual, *itertools.chain(*drawn), *usual]
    payloads = _as_batches(rows, size)
    if spaced:
        payloads = [payload.replace(b'":', b'": ').replace(b',"', b', "') for payload in payloads]
    expected: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            expected.setdefault(name, set()).add(naive_type(value))
    with tempfile.TemporaryDirectory() as folder:
        _, info = sealed(Path(folder), *((Encoding.CDC_JSON, len(msgspec.json.decode(p)), p) for p in payloads))
    part = info.tables[ORDERS]
    assert part.errors == 0
    assert part.columns == {name: sorted(kinds) for name, kinds in expected.items()}
    assert part.always == sorted(set.intersection(*[set(row) for row in rows]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([1, 3, 63, 64, 200]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_batches_of_any_size_come_back_as_they_were(sizes: list[int], random: Random) -> None:
    """Small ones and large ones go different ways into Arrow."""
    payloads, expected = [], []
    for size in sizes:
        batch = []
        # Some batches are all alike, some have a bit of everything.
        ops = random.choice((["UPDATE"], ["DELETE"], ["INSERT", "UPDATE", "DELETE"]))
        is_bare = random.random() < 0.5
        for _ in range(size):
            op, text = random.choice(ops), random.choice(('{"a":1}', '{ "a":\n"é\U0001f409" }', "{}"))
            item = f'"table":"orders","operation":"{op}","rowId":"k{random.randrange(9)}","after":{text}'
            sequence = random.choice((None, 5))
            item += "" if sequence is None else f',"sequence":{sequence},"timestamp":{sequence}.5'
            before = None if is_bare else random.choice((None, '{"b":[1]}'))
            item += "" if before is None else f',"before":{before}'
            batch.append(f"{{{item}}}")
            columns = None if op == "DELETE" else text
            expected.append((op.lower(), columns, before, sequence, sequence, None))
        payloads.append((Encoding.CDC_JSON, size, f"[{','.join(batch)}]".encode()))
    with tempfile.TemporaryDirectory() as folder:
        rows, info = sealed(Path(folder), *payloads)
    names = ("op", "columns", "before", "sequence", "source_time_ms", "error")
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert [row["position"] for row in rows] == list(range(1, sum(sizes) + 1))
    assert [row["batch_sequence"] for row in rows] == [70 + n for n, size in enumerate(sizes) for _ in range(size)]
    assert info.tables[ORDERS].deletes == sum(op == "delete" for op, *_ in expected)


def test_odd_rows_among_many_are_found(tmp_path: Path) -> None:
    reasons = {
        '{"a":1e999}': "cannot be read",
        '{"a":1,"":2}': "empty name",
        "[1]": "not an object",
        '{"a":1,"b\\u0001":2}': "control character",
        '{"a":9007199254740993}': None,
        '{"a":1,"a":"x"}': None,
        '{"a":-0}': None,
        '{"a":"\\u00e4"}': None,
    }
    texts = ['{"a":1}'] * 400
    texts[300 : 300 + len(reasons)] = reasons
    rows, info = sealed(
        tmp_path,
        text(
            *(
                f'{{"table":"orders","operation":"UPDATE","rowId":"{index}","after":{after}}}'
                for index, after in enumerate(texts)
            )
        ),
    )
    errors = {row["columns"]: row["error"] for row in rows}
    for after, reason in reasons.items():
        assert (errors[after] is None) if reason is None else (reason in errors[after]), after
    assert errors['{"a":1}'] is None
    part = info.tables[ORDERS]
    assert (part.count, part.errors, part.columns) == (400, 4, {"a": ["int", "long", "string"]})


def test_the_shard_is_kept_with_what_a_change_says_of_itself(tmp_path: Path) -> None:
    own = [..., {}, {"trace": "x"}, None, {"deep": {"sourceShardName": "y"}}, {"sourceShardName": "its own"}]
    payload = msgspec.json.encode([event(n, metadata=each) for n, each in enumerate(own)])
    rows, _ = sealed(tmp_path, (Encoding.CDC_JSON_OF_SHARD, len(own), shard_payload("bücher-1", payload)))
    shard = {"sourceShardName": "bücher-1"}
    assert [msgspec.json.decode(row["metadata"]) for row in rows] == [
        shard,
        shard,
        {**shard, "trace": "x"},
        shard,
        {**shard, "deep": {"sourceShardName": "y"}},
        {"sourceShardName": "its own"},
    ]
    assert [msgspec.json.decode(row["columns"]) for row in rows] == [event(n)["after"] for n in range(len(own))]


def test_a_shard_that_cannot_be_read_is_corrupt(tmp_path: Path) -> None:
    for payload in (b"", b"\x05\x00ab", b"\x00\x00[]"):
        with pytest.raises(Corrupt, match="shard cannot be read"):
            sealed(tmp_path, (Encoding.CDC_JSON_OF_SHARD, 1, payload))
