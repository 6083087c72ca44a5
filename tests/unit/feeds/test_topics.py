"""Topics on a real log: dense offsets over a disk that fails, producers judged, and a restart that forgets nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import crc32c
import pytest

from mainstem.admission import Dedup, Gate, Limits
from mainstem.feeds.topics.config import KINDS
from mainstem.feeds.topics.partition import Accepted, Partition, Refused
from mainstem.feeds.topics.reading import NoRows, Reader
from mainstem.feeds.topics.state import TopicsState
from mainstem.feeds.topics.tail import Held, Tail, TailMemory
from mainstem.feeds.topics.topics import Topics, TopicsSettings
from mainstem.feeds.transactions.section import TransactionsSection
from mainstem.log import Log
from mainstem.log.companion import Companions
from mainstem.log.seal import expand_records
from mainstem.model.errors import Conflict, Invalid, Overloaded
from mainstem.runtime.clock import SystemClock
from mainstem.tables import kinds
from mainstem.wire.kafka.markers import build_marker
from mainstem.wire.kafka.opening import open_batch
from mainstem.wire.kafka.payload import Mode
from mainstem.wire.kafka.records import HEAD_BYTES, TRANSACTIONAL, read_batch, read_head
from tests.harness.kafka import batch_of
from tests.unit.log.log_fixtures import BrokenDisk, InlineSealer, quiet


@asynccontextmanager
async def opened(
    folder: Path, disk: BrokenDisk | None = None, tail_bytes: int = 1 << 20, kept_bytes: int = 0
) -> AsyncIterator[Topics]:
    clock = SystemClock()
    dedup, state = Dedup(clock), TopicsState()
    log = await Log.open(
        quiet(folder, retry_after_s=0.05, kept_bytes_max=kept_bytes),
        companion=Companions(dedup, {"topics": state}),
        disk=disk,
        sealer=InlineSealer(),
    )
    topics = Topics(state, Gate(dedup, Limits()), log, clock, TopicsSettings(tail_bytes_max=tail_bytes))
    topics.log = log  # type: ignore[attr-defined]
    topics.place_of = lambda: log.place
    try:
        yield topics
    finally:
        await log.close()


async def new_partition(topics: Topics, name: str = "orders", **config: str) -> Partition:
    topic = await topics.create(name, 1, {key.replace("_", "."): value for key, value in config.items()})
    found = topics.partition(topic, 0)
    assert found is not None
    return found


def send(partition: Partition, batch: bytes) -> Accepted:
    return partition.append(read_batch(batch), batch, 5_000)


async def test_offsets_are_dense_and_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        sent = [send(partition, batch_of([b"a"] * count)) for count in (1, 3, 2)]
        await asyncio.gather(*[each.outcome for each in sent if each.outcome is not None])
        assert [each.base_offset for each in sent] == [0, 1, 4]
        topic_id = partition.topic.id
    async with opened(tmp_path) as topics:
        topic = topics.state.topics["orders"]
        assert (topic.id, topic.partitions[0].end, topic.table) == (topic_id, 6, "kafka.orders")
        partition = topics.partition(topic, 0)  # type: ignore[assignment]
        more = send(partition, batch_of([b"b"]))
        assert more.base_offset == 6
        assert more.outcome is not None
        await more.outcome


async def test_offsets_grow_past_any_word(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        topics.state.topics["orders"].partitions[0].end = partition._next = 5_000_000_000
        assert (await _until_taken(partition, batch_of([b"a", b"b"]))).base_offset == 5_000_000_000
        assert partition.end == 5_000_000_002


async def test_a_failed_append_leaves_no_hole(tmp_path: Path) -> None:
    disk = BrokenDisk()
    async with opened(tmp_path, disk) as topics:
        partition = await new_partition(topics)
        first = send(partition, batch_of([b"a", b"b"]))
        await first.outcome  # type: ignore[misc]
        disk.broken = {"sync": OSError(5, "input/output error")}
        lost = [send(partition, batch_of([b"lost"] * 3, producer_id=1, epoch=0, sequence=3 * n)) for n in range(4)]
        assert [each.base_offset for each in lost] == [2, 5, 8, 11]
        outcomes = await asyncio.gather(*[each.outcome for each in lost], return_exceptions=True)  # type: ignore[arg-type]
        assert all(isinstance(outcome, Overloaded) for outcome in outcomes)
        disk.broken = {}
        # What was refused was never written: the same producer begins where it was, and so do the offsets.
        again = await _until_taken(partition, batch_of([b"c"], producer_id=1, epoch=0, sequence=0))
        assert (again.base_offset, partition.end) == (2, 3)
        found = await Reader(topics.log, NoRows()).read(partition, 0, 1 << 20, before=partition.end)  # type: ignore[attr-defined]
        assert _values(b"".join(found)) == [b"a", b"b", b"c"]
    async with opened(tmp_path) as topics:
        assert topics.state.topics["orders"].partitions[0].end == 3


async def _until_taken(partition: Partition, batch: bytes) -> Accepted:
    for _ in range(200):
        try:
            accepted = send(partition, batch)
            await accepted.outcome  # type: ignore[misc]
            return accepted
        except Overloaded:
            await asyncio.sleep(0.01)
    raise AssertionError("never taken")


async def test_an_idempotent_producer_is_judged_also_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        for number in range(7):
            await _until_taken(partition, batch_of([b"x", b"y"], producer_id=9, epoch=1, sequence=2 * number))
    async with opened(tmp_path) as topics:
        partition = topics.partition(topics.state.topics["orders"], 0)  # type: ignore[assignment]
        retry = send(partition, batch_of([b"x", b"y"], producer_id=9, epoch=1, sequence=12))
        assert (retry.base_offset, retry.outcome) == (12, None)
        for reason, epoch, sequence in (
            ("out_of_order", 1, 16),
            ("duplicate_sequence", 1, 0),
            ("fenced_epoch", 0, 14),
            ("out_of_order", 2, 14),
        ):
            with pytest.raises(Refused) as refused:
                send(partition, batch_of([b"x", b"y"], producer_id=9, epoch=epoch, sequence=sequence))
            assert refused.value.reason == reason
        newer = send(partition, batch_of([b"z"], producer_id=9, epoch=2, sequence=0))
        assert newer.base_offset == 14
        # A retry while the first is on its way shares its outcome.
        assert send(partition, batch_of([b"z"], producer_id=9, epoch=2, sequence=0)).outcome is newer.outcome


async def test_what_left_memory_is_read_from_the_log_and_its_segments(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=200) as topics:
        partition = await new_partition(topics)
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        values = [b"%d" % number * 20 for number in range(20)]
        for half in (values[:10], values[10:]):
            for value in half:
                await _until_taken(partition, batch_of([value, value]))
            if half[0] == values[0]:
                await topics.log.flush()  # type: ignore[attr-defined]
        assert topics.tail_bytes <= 300
        found: list[bytes | None] = []
        offset = 0
        while offset < partition.end:
            part = b"".join(await reader.read(partition, offset, 500, before=partition.end))
            records = [each for each in _records(part) if each[0] >= offset]
            found += [value for _, value in records]
            offset = records[-1][0] + 1
        assert found == [value for value in values for _ in range(2)]
        # In the middle of a batch, sealed or not.
        for offset in (3, 29):
            part = b"".join(await reader.read(partition, offset, 1, before=partition.end))
            assert offset in [number for number, _ in _records(part)]
        assert (await reader.first_at(partition, 1_001, before=partition.end)) == (1, 1_001)


async def test_a_consumer_passes_a_batch_that_became_a_dead_letter(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        partition = await new_partition(topics)
        reader = Reader(topics.log, NoRows())  # type: ignore[attr-defined]
        await _until_taken(partition, batch_of([b"good"]))
        await _until_taken(partition, _unopenable(batch_of([b"bad", b"bad"])))
        other = await new_partition(topics, "other")
        # Memory has but the last batch of all.
        await _until_taken(other, batch_of([b"x"]))
        await topics.log.flush()  # type: ignore[attr-defined]
        await topics.log._keep()  # type: ignore[attr-defined]
        assert _values(b"".join(await reader.read(partition, 0, 1 << 20, before=partition.end))) == [b"good"]
        skipped = read_head(b"".join(await reader.read(partition, 1, 1 << 20, before=partition.end)))
        assert (skipped.is_control, skipped.next_offset) == (True, 3)


async def test_records_of_a_transaction_are_found_among_plain_ones_in_a_segment(tmp_path: Path) -> None:
    async with opened(tmp_path, tail_bytes=1) as topics:
        section = TransactionsSection()
        topics.state.register_of_records(section)
        partition = await new_partition(topics)
        for number in range(8):
            batch = batch_of([b"%d" % number], producer_id=7 if number % 2 else -1, epoch=0, sequence=number // 2)
            await _until_taken(partition, _transactional(batch) if number % 2 else batch)
        held = section.of_producer((partition.topic.id, 0), 7)
        marker = build_marker(7, 0, 5_000, commits=True)
        await partition.end_transaction(marker, [each.bytes for each in held], len(held))
        await _until_taken(await new_partition(topics, "other"), batch_of([b"x"]))
        await topics.log.flush()  # type: ignore[attr-defined]
        section.sealed(topics.log.sealed)  # type: ignore[attr-defined]
        reader = Reader(topics.log, NoRows(), section)  # type: ignore[attr-defined]
        for offset in range(8):
            found = _values(b"".join(await reader.read(partition, offset, 1 << 20, before=8)))
            assert found == [b"%d" % number for number in range(offset, 8)]


def _signed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def _unopenable(batch: bytes) -> bytes:
    return _signed(bytearray(batch[:-1] + b"\x7f"))


def _transactional(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[22] |= TRANSACTIONAL
    return _signed(changed)


async def test_a_restarted_topic_goes_on_behind_its_old_records(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        await _until_taken(await new_partition(topics), batch_of([b"a"] * 5))
        await topics.delete("orders")
        assert topics.get("orders") is None
        again = await new_partition(topics)
        assert (again.start, again.end) == (5, 5)


async def test_what_may_not_be_is_refused_by_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics, max_message_bytes="200")
        with pytest.raises(Refused, match="at most 200"):
            send(partition, batch_of([b"x" * 300]))
        with pytest.raises(Refused, match="timestamp"):
            send(partition, batch_of([b"x"], time_ms=10_000_000))
        with pytest.raises(Conflict):
            await topics.create("orders", 1, {})
        await topics.create("a.b", 1, {})
        for name, partitions, config in (
            ("a_b", 1, {}),
            ("", 1, {}),
            ("x y", 1, {}),
            ("..", 1, {}),
            ("__mine", 1, {}),
            ("x" * 129, 1, {}),
            ("x_history", 1, {}),
            ("p", 0, {}),
            ("p", 10_001, {}),
            ("c", 1, {"no.such": "1"}),
            ("c", 1, {"retention.ms": "soon"}),
        ):
            with pytest.raises(Invalid):
                await topics.create(name, partitions, config)


async def test_no_two_topics_share_a_table(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        await topics.create("orders", 1, {"value.mode": "debezium"})
        await topics.create("plain_records", 1, {})
        for name, mode in (("orders_records", "raw"), ("orders.records", "json"), ("plain", "debezium")):
            with pytest.raises(Invalid) as caught:
                await topics.create(name, 1, {"value.mode": mode})
            assert caught.value.reason == "invalid_topic"


async def test_no_topic_is_the_rules_of_a_sync_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        for name in ("sync_rules", "sync.rules"):
            with pytest.raises(Invalid) as caught:
                await topics.create(name, 1, {"value.mode": "debezium"})
            assert caught.value.reason == "invalid_topic"


async def test_a_table_keeps_its_form_when_its_topic_is_made_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        await topics.create("orders", 1, {})
        await topics.delete("orders")
        for config in ({"value.mode": "json"}, {"cleanup.policy": "compact"}, {"value.mode": "debezium"}):
            with pytest.raises(Invalid) as caught:
                await topics.create("orders", 1, config)
            assert caught.value.reason == "invalid_config"
        await topics.create("orders", 1, {})


async def test_records_that_were_cut_off_stay_cut_off(tmp_path: Path) -> None:
    async with opened(tmp_path) as topics:
        partition = await new_partition(topics)
        await _until_taken(partition, batch_of([b"a"] * 5))
        await topics.cut(partition.topic, 0, 3)
        await topics.cut(partition.topic, 0, 1)
        with pytest.raises(Invalid):
            await topics.cut(partition.topic, 0, 6)
        ids = [await topics.new_producer_id() for _ in range(3)]
    async with opened(tmp_path) as topics:
        assert topics.state.topics["orders"].partitions[0].start == 3
        assert await topics.new_producer_id() not in ids


def test_memory_is_bounded_over_all_partitions() -> None:
    memory = TailMemory(1_000)
    tails = [Tail(memory) for _ in range(3)]
    for number in range(3_000):
        tails[number % 3].add(Held(number // 3, number // 3 + 1, 0, bytes(100)))
    assert memory.bytes <= 1_000
    assert sum(len(tail.batches()) for tail in tails) <= 10
    assert tails[0].read(5, 1_000, before=10_000) is None
    assert [each.base for each in tails[0].read(998, 1_000, before=10_000) or ()] == [998, 999]


def test_the_log_and_the_tables_mean_the_same_kinds() -> None:
    assert (expand_records.TOPIC, expand_records.TOPIC_JSON) == (kinds.TOPIC, kinds.TOPIC_JSON)
    assert expand_records.TOPIC_COMPACT == kinds.TOPIC_COMPACT
    for mode in Mode:
        assert kinds.settings_of_kind(KINDS[mode]).columns
    assert kinds.settings_of_kind("").history


def _records(data: bytes) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while data:
        head = read_head(data)
        assert head.size >= HEAD_BYTES
        found += [(record.offset, record.value) for record in open_batch(data[: head.size])[1]]
        data = data[head.size :]
    return found


def _values(data: bytes) -> list[bytes | None]:
    return [value for _, value in _records(data)]
