"""Load by Kafka's own client library, against whatever speaks the protocol: produce, consume, end to end."""

import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic of its own for each figure."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def produce(bootstrap: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    """Send as fast as it goes, idempotent with acks=all: how many were acknowledged, in how many seconds."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 131_072,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    acked = 0

    def told(error: object, _: object) -> None:
        nonlocal acked
        if error is not None:
            raise RuntimeError(str(error))
        acked += 1

    value = bytes(size)
    producer.produce(topic, value=value, partition=0, on_delivery=told)
    producer.flush(30)
    acked = 0
    began_s = time.perf_counter()
    number = 0
    while time.perf_counter() - began_s < seconds:
        for _ in range(500):
            try:
                producer.produce(topic, value=value, partition=number % PARTITIONS, on_delivery=told)
                number += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("not everything was acknowledged in a minute")
    took_s = time.perf_counter() - began_s
    return acked, took_s


def consume(bootstrap: str, topic: str, count: int) -> float:
    """Seconds to read so many records from the start."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    began_s = time.perf_counter()
    found = 0
    while found < count:
        messages = consumer.consume(10_000, 1.0)
        found += sum(message.error() is None for message in messages)
        if time.perf_counter() - began_s > 120:
            raise RuntimeError(f"only {found} of {count} records in two minutes")
    took_s = time.perf_counter() - began_s
    consumer.close()
    return took_s


def end_to_end(bootstrap: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Milliseconds from `produce` to the consumer, at so many records a second of 100 bytes; sorted."""
    found: list[float] = []
    done = threading.Event()
    wanted = int(rate * seconds)

    def listen() -> None:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 500, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ready.set()
        until_s = time.perf_counter() + seconds + 20
        while len(found) < wanted and time.perf_counter() < until_s:
            # Not `consume`, which waits for as many as it may return.
            message = consumer.poll(0.5)
            value = None if message is None or message.error() is not None else message.value()
            if value is not None:
                found.append((time.perf_counter_ns() - int.from_bytes(value[:8], "big")) / 1e6)
        consumer.close()
        done.set()

    ready = threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    ready.wait()
    time.sleep(1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    # The client takes half a second to get its producer id; that is not the way of a record.
    producer.produce(topic, value=time.perf_counter_ns().to_bytes(8, "big"), partition=0)
    producer.flush(30)
    found.clear()
    began_s = time.perf_counter()
    for number in range(wanted):
        due_s = began_s + number / rate
        while (left_s := due_s - time.perf_counter()) > 0:
            producer.poll(min(left_s, 0.002))
        value = time.perf_counter_ns().to_bytes(8, "big") + bytes(92)
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    producer.flush(30)
    done.wait(60)
    listener.join()
    return sorted(found)
