"""Load by librdkafka, Kafka's own client library, on whatever speaks its protocol: produce, consume, end to end."""

import random
import threading
import time
from functools import lru_cache

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
# What one figure may take before the run is given up.
TOOK_S_MAX = 60.0
# A prime, so that each partition gets all of them.
VALUES = 10_007


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic of its own for each figure."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def make_producer(bootstrap: str, **more: object) -> Producer:
    """Idempotent, with acks=all. Only failures are reported: a call back to Python for each record would be measured
    with it."""
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "delivery.report.only.error": True,
        "on_delivery": _failed,
        "linger.ms": 5,
        "batch.size": 131_072,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 128 * 1024,
        **more,
    }
    return Producer(settings)


def _failed(error: object, _: object) -> None:
    if error is not None:
        raise RuntimeError(str(error))


@lru_cache(4)
def values_of(size: int) -> list[bytes]:
    """What is sent: letters by chance, as Kafka's own tool for this sends them. Zeros would cost who compresses them
    nothing, and that is us."""
    dice = random.Random(size)
    return [bytes(dice.choices(range(ord("A"), ord("Z") + 1), k=size)) for _ in range(VALUES)]


def produce(bootstrap: str, topic: str, size: int, seconds: float, partitions: int = PARTITIONS) -> tuple[int, float]:
    """Send as fast as it goes for so long: how many were acknowledged, in how many seconds."""
    producer = make_producer(bootstrap)
    values = values_of(size)
    # The client takes half a second to get its producer id; that is not the server's rate.
    producer.produce(topic, value=values[0], partition=0)
    producer.flush(30)
    began_s = time.perf_counter()
    number = 0
    while time.perf_counter() - began_s < seconds:
        for _ in range(500):
            try:
                producer.produce(topic, value=values[number % VALUES], partition=number % partitions)
                number += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(TOOK_S_MAX):
        raise RuntimeError(f"not everything was acknowledged within {TOOK_S_MAX:g} s")
    return number, time.perf_counter() - began_s


def consume(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS) -> float:
    """Seconds to read so many records from the start."""
    consumer = make_consumer(bootstrap)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    began_s = time.perf_counter()
    found = 0
    while found < count:
        messages = consumer.consume(10_000, 1.0)
        found += sum(message.error() is None for message in messages)
        if time.perf_counter() - began_s > TOOK_S_MAX:
            raise RuntimeError(f"only {found} of {count} records within {TOOK_S_MAX:g} s")
    took_s = time.perf_counter() - began_s
    consumer.close()
    return took_s


def make_consumer(bootstrap: str, **more: object) -> Consumer:
    """A consumer without a group's turns: its partitions are assigned by hand."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 131_072,
            # As it comes the library pauses for a second whenever it has 100,000 records at hand, whatever the server.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 2,
            **more,
        }
    )


def end_to_end(bootstrap: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Milliseconds from `produce` to the consumer, at so many records a second of 100 bytes; sorted."""
    found: list[float] = []
    wanted = int(rate * seconds)
    ready = threading.Event()

    def listen() -> None:
        consumer = make_consumer(bootstrap)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        until_s = time.perf_counter() + seconds + 30
        while len(found) < wanted and time.perf_counter() < until_s:
            # Not `consume`, which waits for as many as it may return.
            message = consumer.poll(0.5)
            value = None if message is None or message.error() is not None else message.value()
            if value is not None and not ready.is_set():
                ready.set()
            elif value is not None:
                found.append((time.perf_counter_ns() - int.from_bytes(value[:8], "big")) / 1e6)
        consumer.close()

    listener = threading.Thread(target=listen)
    listener.start()
    producer = make_producer(bootstrap, **{"linger.ms": 1})
    # One record through both, so that neither's start is measured.
    producer.produce(topic, value=bytes(8), partition=0)
    producer.flush(30)
    ready.wait(30)
    began_s = time.perf_counter()
    for number in range(wanted):
        due_s = began_s + number / rate
        # Not `poll(left_s)`: it waits for whole milliseconds, and below one it would spin and take a core.
        producer.poll(0)
        if (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        value = time.perf_counter_ns().to_bytes(8, "big") + bytes(92)
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    producer.flush(30)
    listener.join()
    if len(found) < wanted:
        raise RuntimeError(f"only {len(found)} of {wanted} records came")
    return sorted(found)
