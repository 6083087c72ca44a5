"""The log on Apache Kafka under real faults: its owner killed or paused under load, its folder lost, Kafka killed."""

import asyncio
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mainstem.app.spark.shipping import Shipper, StoredSegments
from mainstem.log import Log
from mainstem.log.kafka import broker as clients
from mainstem.log.kafka.journal import KafkaJournal
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.log.kafka.standby import Standby
from mainstem.log.stats import Appended
from mainstem.model.errors import Corrupt, Invalid, OutcomeUnknown, Overloaded
from mainstem.model.position import LogId, LogPosition
from tests.harness.apachekafka import SMALL_JVM, ApacheKafka
from tests.harness.seaweed import S3Server
from tests.unit.log.log_fixtures import BrokenDisk, Diary, InlineSealer, batch, event, quiet

_names = itertools.count()

APPEND = """
import asyncio, itertools, sys
from pathlib import Path
from mainstem.log import Log, LogSettings
from mainstem.log.kafka import broker as clients
from mainstem.log.kafka.journal import KafkaJournal
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model.errors import Overloaded
from tests.unit.log.log_fixtures import Diary, batch, event

async def main() -> None:
    settings = LogSettings(folder=Path(sys.argv[1]), seal_changes=40, file_changes=15, companion_interval_s=0.01)
    journal = KafkaJournal(KafkaLogSettings(sys.argv[3], sys.argv[4], trim_bytes=20_000))
    log = await Log.open(settings, companion=Diary(), journal=journal)
    print("open", log.durable, flush=True)
    sequences = itertools.count(int(sys.argv[2]))

    async def appender() -> None:
        for sequence in sequences:
            count = sequence % 3 + 1
            placed = await log.append(batch(sequence, [event(sequence * 10 + i) for i in range(count)]))
            print("ack", sequence, placed.first, count, flush=True)

    try:
        await asyncio.gather(*[appender() for _ in range(4)])
    except Overloaded:
        # It hears of its batches first, then of the log.
        await asyncio.wait_for(log.lost.wait(), 60)
        print("refused", log.lost.is_set(), flush=True)

asyncio.run(main())
"""


def new_settings(broker: ApacheKafka, **changed: float) -> KafkaLogSettings:
    return KafkaLogSettings(broker.bootstrap, f"fault{next(_names)}.log", **changed)  # type: ignore[arg-type]


class Child:
    """A process that owns the log and appends as fast as it can."""

    def __init__(self, folder: Path, start: int, kafka: KafkaLogSettings) -> None:
        command = [sys.executable, "-c", APPEND, str(folder), str(start), kafka.bootstrap, kafka.topic]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.last = ""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("open")

    def read(self, acks: int = 10**9) -> None:
        """Take note of so many acks, or of all until it ends."""
        assert self.process.stdout is not None
        for _ in range(acks):
            line = self.process.stdout.readline()
            if not line.endswith("\n"):
                return
            self.last = line.strip()
            if not line.startswith("ack"):
                return
            _, sequence, first, count = line.split()
            self.acknowledged[int(sequence)] = (int(first), int(count))

    def kill(self) -> None:
        self.process.kill()
        self.read()
        self.process.wait()


async def judge(
    folder: Path, kafka: KafkaLogSettings, acknowledged: dict[int, tuple[int, int]], *, distinct: bool = True
) -> Diary:
    """Open the log on a folder that has nothing, and look for every acknowledged batch. `distinct`: of one source."""
    diary = Diary()
    log = await Log.open(quiet(folder), companion=diary, sealer=InlineSealer(), journal=KafkaJournal(kafka))
    seen = {sequence: (first, count) for _, sequence, first, count in diary.seen}
    assert len(seen) == len(diary.seen) or not distinct, "a batch counts twice"
    assert acknowledged.items() <= seen.items()
    await log.flush()
    positions: list[int] = []
    for segment in log.segments():
        positions += pq.read_table(segment.path, columns=["position"])["position"].to_pylist()
    assert positions == list(range(log.durable - len(positions) + 1, log.durable + 1))
    assert log.sealed == log.durable
    await log.close()
    return diary


@pytest.mark.parametrize("seed", [1, 2])
async def test_owners_are_killed_and_their_folders_lost(tmp_path: Path, broker: ApacheKafka, seed: int) -> None:
    chance, kafka = random.Random(seed), new_settings(broker)
    acknowledged: dict[int, tuple[int, int]] = {}
    for life in range(3):
        child = Child(tmp_path / str(life), life * 1_000_000, kafka)
        child.read(chance.randint(1, 2_000))
        child.kill()
        acknowledged |= child.acknowledged
        if chance.random() < 0.7:
            shutil.rmtree(tmp_path / str(life))
    await judge(tmp_path / "judge", kafka, acknowledged)


async def test_a_folder_of_an_earlier_owner_becomes_what_the_log_is(tmp_path: Path, broker: ApacheKafka) -> None:
    """One folder, two owners in turns: what the first has on its disk is older than the log, or ends elsewhere."""
    kafka = new_settings(broker)
    acknowledged: dict[int, tuple[int, int]] = {}
    for life in range(4):
        child = Child(tmp_path / str(life % 2), life * 1_000_000, kafka)
        child.read(300)
        child.kill()
        acknowledged |= child.acknowledged
    await judge(tmp_path / "0", kafka, acknowledged)


async def test_a_paused_owner_appends_nothing_when_it_wakes(tmp_path: Path, broker: ApacheKafka) -> None:
    kafka = new_settings(broker, lease_s=0.5)
    paused = Child(tmp_path / "paused", 0, kafka)
    reading = threading.Thread(target=paused.read)
    reading.start()
    while len(paused.acknowledged) < 500:
        await asyncio.sleep(0.01)
    os.kill(paused.process.pid, signal.SIGSTOP)
    # The other waits for the lease, as a gateway does.
    assert await asyncio.to_thread(Standby(kafka).wait)
    diary = Diary()
    log = await Log.open(quiet(tmp_path / "next"), companion=diary, sealer=InlineSealer(), journal=KafkaJournal(kafka))
    before = log.durable
    for sequence in range(1_000_000, 1_000_020):
        placed = await log.append(batch(sequence))
    os.kill(paused.process.pid, signal.SIGCONT)
    await asyncio.to_thread(paused.process.wait)
    reading.join()
    assert paused.last == "refused True"
    # Whatever it was told before it was paused is there; nothing that it sent after it woke.
    assert all(first <= before for first, _ in paused.acknowledged.values())
    assert placed.first == before + 20
    for sequence in range(1_000_020, 1_000_030):
        placed = await log.append(batch(sequence))
    assert placed.first == before + 30
    assert not log.lost.is_set()
    await log.close()
    seen = await judge(tmp_path / "judge", kafka, paused.acknowledged)
    assert [sequence for _, sequence, _, _ in seen.seen][-30:] == list(range(1_000_000, 1_000_030))


async def test_kafka_is_killed_under_load_and_comes_back(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jvm=SMALL_JVM) as broker:
        kafka = new_settings(broker, away_s=0.3)
        log = await Log.open(
            quiet(tmp_path / "log"), companion=Diary(), sealer=InlineSealer(), journal=KafkaJournal(kafka)
        )
        acknowledged: dict[int, tuple[int, int]] = {}
        sequences = itertools.count()
        refused = asyncio.Event()
        stop = asyncio.Event()
        newcomers: list[asyncio.Future[Appended]] = []

        async def appender() -> None:
            while not stop.is_set():
                sequence = next(sequences)
                count = sequence % 3 + 1
                one = batch(sequence, [event(sequence * 10 + i) for i in range(count)])
                while True:
                    try:
                        placed = await log.append(one)
                        break
                    except Overloaded:
                        refused.set()
                        await asyncio.sleep(0.05)
                acknowledged[sequence] = (placed.first, count)

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(appender())
            while len(acknowledged) < 300:
                await asyncio.sleep(0.01)
            broker.kill()
            # What was under way waits, and what comes now is told to come back: also somebody new.
            while not refused.is_set():
                try:
                    newcomers.append(log.append(batch(10**9 + len(newcomers))))
                except Overloaded:
                    refused.set()
                await asyncio.sleep(0.05)
            assert log.stats().refusing is not None
            await asyncio.to_thread(broker.start)
            target = len(acknowledged) + 300
            while len(acknowledged) < target:
                await asyncio.sleep(0.01)
            stop.set()
        assert log.stats().refusing is None
        for one, placed in enumerate(await asyncio.gather(*newcomers)):
            acknowledged[10**9 + one] = (placed.first, 1)
        await log.close()
        await judge(tmp_path / "judge", kafka, acknowledged)


async def test_kafka_is_away_while_nobody_appends_and_comes_back(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jvm=SMALL_JVM) as broker:
        kafka = new_settings(broker, away_s=0.3)
        log = await Log.open(
            quiet(tmp_path / "log"), companion=Diary(), sealer=InlineSealer(), journal=KafkaJournal(kafka)
        )
        await log.append(batch(1))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                while log.stats().refusing is None:
                    await asyncio.sleep(0.02)
            with pytest.raises(Overloaded):
                log.append(batch(2))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        # Nothing waits that would be told of now: the owner's own beat finds out that Kafka answers again.
        async with asyncio.timeout(60):
            while log.stats().refusing is not None:
                await asyncio.sleep(0.02)
        assert (await log.append(batch(2))).first == 2
        await log.close()


async def test_a_log_that_ends_while_kafka_is_away_says_that_it_does_not_know(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jvm=SMALL_JVM) as broker:
        kafka = new_settings(broker)
        log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer(), journal=KafkaJournal(kafka))
        await log.append(batch(1))
        broker.kill()
        pending = log.append(batch(2))
        async with asyncio.timeout(20):
            await log.close()
        with pytest.raises(OutcomeUnknown):
            await pending


async def test_a_full_disk_holds_acks_back_and_loses_nothing_that_kafka_has(
    tmp_path: Path, broker: ApacheKafka
) -> None:
    kafka, disk = new_settings(broker), BrokenDisk()
    log = await Log.open(
        quiet(tmp_path / "log"), companion=Diary(), disk=disk, sealer=InlineSealer(), journal=KafkaJournal(kafka)
    )
    await log.append(batch(1))
    disk.torn_bytes, disk.broken["write"] = 5, OSError(errno.ENOSPC, "No space left on device")
    pending = log.append(batch(2))
    async with asyncio.timeout(60):
        while log.stats().refusing is None:
            await asyncio.sleep(0.01)
    # Kafka has it, but nobody could read it here: it is told later, and whoever comes now is told to come back.
    assert not pending.done()
    with pytest.raises(Overloaded, match="No space left"):
        log.append(batch(3))
    disk.broken.clear()
    assert (await pending).first == 2
    assert (await log.append(batch(3))).first == 3
    assert [frame.header.sequence for frame in log.tail(LogPosition(0))] == [1, 2, 3]
    await log.close()
    diary = await judge(tmp_path / "judge", kafka, {2: (2, 1), 3: (3, 1)})
    assert [sequence for _, sequence, _, _ in diary.seen] == [1, 2, 3]


async def fill_two_segments(log: Log, location: str, store: dict[str, str]) -> Shipper:
    """Eight batches in two segments, which are in the store."""
    shipper = Shipper(log, location, store)
    shipping = asyncio.create_task(shipper.run())
    for sequence in range(1, 9):
        await log.append(batch(sequence))
        if sequence % 4 == 0:
            await log.flush()
    async with asyncio.timeout(60):
        while shipper.shipped < 8:
            await asyncio.sleep(0.02)
    shipping.cancel()
    await asyncio.gather(shipping, return_exceptions=True)
    return shipper


async def test_segments_come_from_the_store_and_are_the_same_for_every_owner(
    tmp_path: Path, broker: ApacheKafka, s3_server: S3Server
) -> None:
    kafka = new_settings(broker, trim_bytes=1)
    location, store = s3_server.make_bucket("kafkalog") + "/w/segments", s3_server.io()

    async def opened(folder: str, diary: Diary) -> Log:
        journal = KafkaJournal(kafka, lambda _: StoredSegments(location, store))
        return await Log.open(quiet(tmp_path / folder), companion=diary, sealer=InlineSealer(), journal=journal)

    first = await opened("first", Diary())
    shipper = await fill_two_segments(first, location, store)
    # Sealed, but not in the store: Kafka must keep it.
    for sequence in range(9, 13):
        await first.append(batch(sequence))
    await first.flush()
    assert (first.sealed, shipper.shipped) == (12, 8)
    await first.append(batch(13))
    await first.let_go(shipper.shipped)
    made = {segment.path.name: pq.read_table(segment.path) for segment in first.segments()}
    await first.close()
    shutil.rmtree(tmp_path / "first")

    diary = Diary()
    second = await opened("second", diary)
    assert [sequence for _, sequence, _, _ in diary.seen] == list(range(1, 14))
    assert (second.sealed, second.durable, len(second.segments())) == (8, 13, 2)
    await second.flush()
    # What the first had decided on is made again as it was, though more was there by now.
    assert {segment.path.name: pq.read_table(segment.path) for segment in second.segments()[:-1]} == made
    assert [(one.first, one.last) for one in second.segments()] == [(1, 4), (5, 8), (9, 12), (13, 13)]
    await second.close()


async def test_segments_follow_a_log_to_its_new_identity_before_it_has_that(
    tmp_path: Path, broker: ApacheKafka, s3_server: S3Server
) -> None:
    """What Kafka has let go of is in the store alone, and the machine is lost right after the log was renamed."""
    kafka = new_settings(broker, trim_bytes=1)
    bucket, store = s3_server.make_bucket("renamed"), s3_server.io()

    def place(log: LogId) -> str:
        return f"{bucket}/{log}/segments"

    async def opened(folder: str) -> tuple[Log, Diary]:
        diary = Diary()
        journal = KafkaJournal(kafka, lambda lineage: StoredSegments(place(lineage.log), store))
        log = await Log.open(quiet(tmp_path / folder), companion=diary, sealer=InlineSealer(), journal=journal)
        return log, diary

    first, _ = await opened("first")
    shipper = await fill_two_segments(first, place(first.lineage.log), store)
    await first.let_go(shipper.shipped)
    before = first.lineage.log
    await first.close()

    second, _ = await opened("first")
    await second.renew_identity()
    now = second.lineage.log
    await second.close()
    shutil.rmtree(tmp_path / "first")

    third, diary = await opened("third")
    assert third.lineage.log == now != before
    assert [(one.first, one.last) for one in third.segments()] == [(1, 4), (5, 8)]
    assert [sequence for _, sequence, _, _ in diary.seen] == list(range(1, 9))
    await third.close()


async def test_a_folder_with_a_log_of_its_own_is_left_alone(tmp_path: Path, broker: ApacheKafka) -> None:
    own = await Log.open(quiet(tmp_path / "own"), companion=Diary(), sealer=InlineSealer())
    await own.append(batch(1))
    await own.close()
    kafka = new_settings(broker)
    with pytest.raises(Invalid, match="a log of its own"):
        await Log.open(quiet(tmp_path / "own"), sealer=InlineSealer(), journal=KafkaJournal(kafka))
    own = await Log.open(quiet(tmp_path / "own"), companion=Diary(), sealer=InlineSealer())
    assert own.durable == 1
    await own.close()
    other = await Log.open(quiet(tmp_path / "other"), sealer=InlineSealer(), journal=KafkaJournal(kafka))
    await other.close()
    with pytest.raises(Invalid, match="of a log on Kafka"):
        await Log.open(quiet(tmp_path / "other"), sealer=InlineSealer())
    # A topic that is another one by the same name, or one that loses records, is no place for this log.
    with pytest.raises(Invalid, match="made from another log"):
        await Log.open(quiet(tmp_path / "other"), sealer=InlineSealer(), journal=KafkaJournal(new_settings(broker)))


async def test_records_that_are_missing_are_noticed(tmp_path: Path, broker: ApacheKafka) -> None:
    kafka = new_settings(broker)
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer(), journal=KafkaJournal(kafka))
    for sequence in range(5):
        await log.append(batch(sequence))
    await log.close()
    # Somebody deletes records that the log needs.
    await asyncio.to_thread(clients.trim, kafka, 4)
    with pytest.raises(Corrupt, match="first records are missing"):
        await Log.open(quiet(tmp_path / "new"), sealer=InlineSealer(), journal=KafkaJournal(kafka))
