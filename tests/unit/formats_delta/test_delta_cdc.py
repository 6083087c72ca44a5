"""CDC records on Delta tables: numbered once, read from where one was, and applied."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, Storage, create_storage
from mainstem.client.delta.cdc import Consumer, FeedConsumer, Producer, apply_records
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Conflict, Invalid
from mainstem.wire.cdc_records import CDCRecord, change_of


@pytest.fixture
def storage() -> Storage:
    return create_storage("memory://")


def record(id_: str, value: int | None, op: str = "c") -> CDCRecord:
    after = None if value is None else {"value": value}
    return CDCRecord(id=id_, seq=0, op=op, after=after, ts_ns=1_700_000_000_000_000_001, source={"system": "test"})  # type: ignore[arg-type]


def test_a_consumer_goes_on_where_it_committed(storage: Storage) -> None:
    producer = Producer(DeltaTable(storage, "records"), "p")
    assert producer.send([record("a", 1), record("b", 2)], batch=1) == 2
    assert producer.send([record("a", 1), record("b", 2)], batch=1) == 2
    assert producer.send([record("a", None, "d")], batch=2) == 3
    consumer = Consumer(DeltaTable(storage, "records"), "c")
    first = consumer.poll(limit=2)
    assert [(item.id, item.seq, item.op, item.after) for item in first] == [
        ("a", 1, "c", {"value": 1}), ("b", 2, "c", {"value": 2}),
    ]  # fmt: skip
    assert first[0].ts_ns == 1_700_000_000_000_000_001
    # Without a commit they come again.
    again = Consumer(DeltaTable(storage, "records"), "c")
    assert again.poll(limit=2) == first
    again.commit()
    resumed = Consumer(DeltaTable(storage, "records"), "c")
    assert [item.seq for item in resumed.poll()] == [3]
    resumed.commit()
    assert resumed.poll() == []
    # The first one is behind: it may not take back what another has committed.
    with pytest.raises(Conflict):
        consumer.commit()
    with pytest.raises(Invalid, match="name"):
        Consumer(DeltaTable(storage, "records"), "../x")


def test_many_producers_number_without_a_gap(storage: Storage) -> None:
    def produce(number: int) -> None:
        producer = Producer(DeltaTable(storage, "records"), f"p{number}")
        for batch in range(5):
            producer.send([record(f"{number}-{batch}-{i}", i) for i in range(3)], batch=batch)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(produce, range(4)))
    consumer = Consumer(DeltaTable(storage, "records"), "c")
    found = consumer.poll()
    assert [item.seq for item in found] == list(range(1, 61))
    assert len({item.id for item in found}) == 60


def test_changes_go_through_unharmed(storage: Storage) -> None:
    change = Change(
        namespace="shop", table="orders", key="1", operation=Operation.UPDATE, columns={"a": 1, "b": None},
        before={"a": 0}, source=SourceId("s"), batch_sequence=4, sequence=9, id="x", source_time_ms=1_700_000_000_000,
    )  # fmt: skip
    Producer(DeltaTable(storage, "records"), "p").send([change])
    (found,) = Consumer(DeltaTable(storage, "records"), "c").poll()
    assert change_of(found) == change


@pytest.mark.parametrize("vectors", [False, True])
def test_a_change_feed_makes_a_copy(storage: Storage, vectors: bool) -> None:
    source, copy = DeltaTable(storage, "source"), DeltaTable(storage, "copy")
    source.create(pa.schema([("_id", pa.string())]), change_feed=True, deletion_vectors=vectors)
    consumer = FeedConsumer(source, "copier")
    source.write([{"_id": str(n), "n": n, "deep": {"list": [n]}} for n in range(5)])
    apply_records(copy, consumer.poll(), transaction=("copier", source.version))
    consumer.commit()
    source.upsert([{"_id": "1", "n": 100}, {"_id": "9", "n": 9}], delete=[{"_id": "4"}])
    source.delete({"_id": "2"})
    source.update({"_id": "3"}, {"$set": {"deep.more": True}})
    resumed = FeedConsumer(source, "copier")
    records = resumed.poll()
    told = [(item.id, item.op, item.before, item.after) for item in records]
    assert ("2", "d", {"_id": "2", "n": 2, "deep": {"list": [2]}}, None) in told
    assert {(item.id, item.op) for item in records} == {("1", "u"), ("9", "c"), ("4", "d"), ("2", "d"), ("3", "u")}
    for _ in range(2):
        apply_records(copy, records, transaction=("copier", source.version))
    resumed.commit()
    assert copy.query(sort={"_id": 1}) == source.query(sort={"_id": 1})
    assert FeedConsumer(source, "copier").poll() == []
