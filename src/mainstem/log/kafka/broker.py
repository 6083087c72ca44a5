"""Kafka's clients as the journal needs them: make and check the topic, read a stretch of it, send a group, trim it.

They block, and raise `Away` where Kafka does not answer. Nothing in here knows what records say.
"""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model.errors import Corrupt, Invalid, OutcomeUnknown, Overloaded

_ANSWER_S_MAX = 10.0
_POLL_S = 0.05
# After it was told to end, a group has so long to be acknowledged.
_END_S_MAX = 2.0
_GONE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class Away(Overloaded):
    """Kafka did not answer, or not as it should."""

    def __init__(self, why: object) -> None:
        super().__init__(f"Kafka: {why}", retry_after_s=1.0, reason="internal_error")


class Trimmed(Exception):
    """What was to be read has been deleted meanwhile."""


def prepare_topic(settings: KafkaLogSettings, record_bytes_max: int) -> None:
    """Make the topic if it is not there, and check that Kafka keeps what is in it. Raises Invalid where it does not."""
    admin = AdminClient(settings.properties())
    wanted = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(record_bytes_max),
        "unclean.leader.election.enable": "false",
    }
    new = NewTopic(settings.topic, num_partitions=1, replication_factor=settings.replication, config=wanted)
    try:
        admin.create_topics([new], operation_timeout=_ANSWER_S_MAX)[settings.topic].result(_ANSWER_S_MAX)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise Away(error.args[0].str()) from error
    except TimeoutError as error:
        raise Away(f"no answer in {_ANSWER_S_MAX:g} s. got={settings.bootstrap}") from error
    _check_topic(admin, settings, wanted)


def has_topic(settings: KafkaLogSettings) -> bool:
    """Whether the topic is there."""
    try:
        return settings.topic in AdminClient(settings.properties()).list_topics(timeout=_ANSWER_S_MAX).topics
    except KafkaException as error:
        raise Away(error.args[0].str()) from error


def _check_topic(admin: AdminClient, settings: KafkaLogSettings, wanted: dict[str, str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, settings.topic)
    until_s = time.monotonic() + _ANSWER_S_MAX
    while True:
        try:
            found = admin.describe_configs([resource])[resource].result(_ANSWER_S_MAX)
            topics = admin.list_topics(timeout=_ANSWER_S_MAX).topics
        except (KafkaException, TimeoutError) as error:
            if time.monotonic() > until_s:
                raise Away(error) from error
        else:
            if settings.topic in topics and topics[settings.topic].partitions:
                break
        # It was made just now, and not every broker knows of it.
        time.sleep(_POLL_S)
    if (count := len(topics[settings.topic].partitions)) > 1:
        raise Invalid(f"the log's topic has more than one partition. expected=1 got={count} topic={settings.topic}")
    for name, value in wanted.items():
        got = found[name].value
        enough = int(got) >= int(value) if name == "max.message.bytes" else got == value
        if not enough:
            raise Invalid(f"topic {settings.topic}: {name}. expected={value} got={got}")


class Reader:
    """Reads stretches of the topic's partition."""

    def __init__(self, settings: KafkaLogSettings) -> None:
        self._settings = settings
        self._consumer = Consumer(
            {
                **settings.properties(),
                # Needed, and never used: nothing is committed.
                "group.id": "mainstem",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": 8 << 20,
                "fetch.wait.max.ms": 50,
                "queued.max.messages.kbytes": 64 << 10,
            }
        )

    def bounds(self, timeout_s: float = _ANSWER_S_MAX) -> tuple[int, int]:
        """The first offset that is there, and the one that the next record gets."""
        try:
            found = self._consumer.get_watermark_offsets(self._at(OFFSET_END), timeout=timeout_s, cached=False)
        except KafkaException as error:
            raise Away(error.args[0].str()) from error
        if found is None:
            raise Away("the topic's ends are not known")
        low, high = found
        return int(low), int(high)

    def read(self, first: int, end: int, take: Callable[[int, bytes, bytes], object]) -> None:
        """Hand on the records from `first` to before `end`, in order."""
        if first >= end:
            return
        self.seek(first)
        silent_since_s = time.monotonic()
        while first < end:
            for offset, key, value in self.poll(_POLL_S):
                if first <= offset < end:
                    take(offset, key, value)
                    first = offset + 1
                silent_since_s = time.monotonic()
            if time.monotonic() - silent_since_s > _ANSWER_S_MAX:
                raise Away(f"no records in {_ANSWER_S_MAX:g} s. expected={first} to {end - 1}")

    def seek(self, offset: int) -> None:
        """Read from here on."""
        self._consumer.assign([self._at(offset)])

    def poll(self, timeout_s: float) -> list[tuple[int, bytes, bytes]]:
        """Whatever comes next: offsets, keys and values."""
        try:
            return [self._record(message) for message in self._consumer.consume(1000, timeout_s)]
        except KafkaException as error:
            raise Away(error.args[0].str()) from error

    def _record(self, message: Message) -> tuple[int, bytes, bytes]:
        if (error := message.error()) is not None:
            self._refuse(error)
        offset, key, value = message.offset(), message.key(), message.value()
        if offset is None or not isinstance(key, bytes) or not isinstance(value, bytes):
            raise Corrupt("record is not one of a log", place=f"{self._settings.topic}:{offset}")
        return offset, key, value

    @staticmethod
    def _refuse(error: KafkaError) -> NoReturn:
        if error.code() in _GONE:
            raise Trimmed(error.str())
        raise Away(error.str())

    def _at(self, offset: int) -> TopicPartition:
        return TopicPartition(self._settings.topic, 0, offset)

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


class Sender:
    """One producer under one term: idempotent, acknowledged by all replicas in sync, in order."""

    def __init__(self, settings: KafkaLogSettings, term: bytes, record_bytes_max: int) -> None:
        self._settings = settings
        self.term = term
        self._producer = Producer(
            {
                **settings.properties(),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.max.bytes": record_bytes_max,
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                # Tried for as long as it takes: giving up on one record while a later one gets in would leave a gap.
                "message.timeout.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                # The client does not ask on the way whether the topic is still there.
                "topic.metadata.refresh.interval.ms": 60_000,
            }
        )

    def send(
        self, values: Sequence[bytes], has_to_end: Callable[[], bool], on_away: Callable[[str], None] | None = None
    ) -> list[int] | None:
        """The offsets of the records once Kafka has all of them; None where that is not sure.

        Raises `OutcomeUnknown` where it has to end before.
        """
        reports: list[tuple[KafkaError | None, int]] = []

        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            reports.append((error, -1 if offset is None else offset))

        topic, term, produce = self._settings.topic, self.term, self._producer.produce
        try:
            for value in values:
                produce(topic, value, term, 0, report)
        except (KafkaException, BufferError):
            # It refuses at once after a fatal error. What of the group was taken before may still get in.
            return None
        since_s = time.monotonic()
        end_s: float | None = None
        while len(reports) < len(values):
            self._producer.poll(_POLL_S)
            now_s = time.monotonic()
            if on_away is not None and now_s - since_s > self._settings.away_s:
                on_away(f"Kafka has not acknowledged for {self._settings.away_s:g} s. got={self._settings.bootstrap}")
                on_away = None
            if has_to_end():
                end_s = end_s or now_s + _END_S_MAX
                if now_s > end_s:
                    raise OutcomeUnknown("the log ends before Kafka acknowledged")
        return None if any(error is not None for error, _ in reports) else [offset for _, offset in reports]

    def close(self) -> None:
        """Forget what was not sent; what is under way may still get in."""
        self._producer.purge()
        self._producer.poll(0)


def trim(settings: KafkaLogSettings, before: int) -> None:
    """Delete all records before an offset."""
    admin = AdminClient(settings.properties())
    place = TopicPartition(settings.topic, 0, before)
    try:
        admin.delete_records([place], operation_timeout=_ANSWER_S_MAX)[place].result(_ANSWER_S_MAX)
    except (KafkaException, TimeoutError) as error:
        raise Away(error) from error
