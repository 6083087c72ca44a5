"""A topic's settings: Kafka's names and defaults, and `value.mode`, which is ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from mainstem.model.errors import Invalid
from mainstem.tables.kinds import TOPIC, TOPIC_COMPACT, TOPIC_JSON
from mainstem.wire.kafka.payload import Mode

_INT64_MAX = (1 << 63) - 1


class Setting(NamedTuple):
    """One setting: its default, what kind of value it has (as DescribeConfigs numbers them), and its check."""

    default: str
    kind: int
    check: Callable[[str], bool]
    text: str


# DescribeConfigs' numbers for kinds of values.
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7


def _whole(low: int, high: int = _INT64_MAX) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return low <= int(text) <= high
        except ValueError:
            return False

    return check


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda text: text in words


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "cleanup.policy": Setting(
            "delete",
            LIST,
            _one_of("delete", "compact", "compact,delete", "delete,compact"),
            "delete: records go by retention; compact: the table has the last record of each key",
        ),
        "compression.type": Setting("producer", STRING, _one_of("producer"), "batches stay as producers sent them"),
        "max.message.bytes": Setting("1048588", INT, _whole(0, 48 * 1024 * 1024), "the largest record batch"),
        "message.timestamp.type": Setting(
            "CreateTime",
            STRING,
            _one_of("CreateTime", "LogAppendTime"),
            "whose time records have: the producer's or the server's",
        ),
        "message.timestamp.after.max.ms": Setting(
            "3600000", LONG, _whole(0), "how far ahead of the server's a producer's time may be"
        ),
        "min.insync.replicas": Setting("1", INT, _whole(1, 1), "there is one replica"),
        "retention.bytes": Setting("-1", LONG, _whole(-1), "the most that a partition keeps; -1: no bound"),
        "retention.ms": Setting("604800000", LONG, _whole(-1), "how long records are kept; -1: for ever"),
        "segment.bytes": Setting("1073741824", INT, _whole(14), "taken, and of no effect: the log is shared"),
        "segment.ms": Setting("604800000", LONG, _whole(1), "taken, and of no effect: the log is shared"),
        "delete.retention.ms": Setting("86400000", LONG, _whole(0), "taken, and of no effect"),
        "file.delete.delay.ms": Setting("60000", LONG, _whole(0), "taken, and of no effect"),
        "flush.messages": Setting(str(_INT64_MAX), LONG, _whole(1), "taken, and of no effect: acks=all is synced"),
        "flush.ms": Setting(str(_INT64_MAX), LONG, _whole(0), "taken, and of no effect: acks=all is synced"),
        "index.interval.bytes": Setting("4096", INT, _whole(0), "taken, and of no effect"),
        "max.compaction.lag.ms": Setting(str(_INT64_MAX), LONG, _whole(1), "taken, and of no effect"),
        "min.cleanable.dirty.ratio": Setting("0.5", DOUBLE, lambda text: True, "taken, and of no effect"),
        "min.compaction.lag.ms": Setting("0", LONG, _whole(0), "taken, and of no effect"),
        "preallocate": Setting("false", BOOLEAN, _one_of("true", "false"), "taken, and of no effect"),
        "segment.index.bytes": Setting("10485760", INT, _whole(4), "taken, and of no effect"),
        "segment.jitter.ms": Setting("0", LONG, _whole(0), "taken, and of no effect"),
        "unclean.leader.election.enable": Setting("false", BOOLEAN, _one_of("true", "false"), "there is one replica"),
        "value.mode": Setting("raw", STRING, _one_of("raw", "json", "debezium"), "what rows the records become"),
    }
)


KINDS: Mapping[Mode, str] = MappingProxyType(
    {Mode.RAW: TOPIC, Mode.JSON: TOPIC_JSON, Mode.DEBEZIUM: TOPIC, Mode.COMPACT: TOPIC_COMPACT}
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings that the server acts on, read."""

    mode: Mode
    is_compacted: bool
    # Whether retention applies.
    is_deleting: bool
    log_append_time: bool
    max_message_bytes: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int


def read_config(given: Mapping[str, str]) -> TopicConfig:
    """Read settings that were checked."""
    text = {name: given.get(name, setting.default) for name, setting in SETTINGS.items()}
    is_compacted = "compact" in text["cleanup.policy"]
    mode = Mode[text["value.mode"].upper()]
    return TopicConfig(
        mode=Mode.COMPACT if is_compacted and mode is Mode.RAW else mode,
        is_compacted=is_compacted,
        is_deleting="delete" in text["cleanup.policy"],
        log_append_time=text["message.timestamp.type"] == "LogAppendTime",
        max_message_bytes=int(text["max.message.bytes"]),
        timestamp_after_max_ms=int(text["message.timestamp.after.max.ms"]),
        retention_ms=int(text["retention.ms"]),
        retention_bytes=int(text["retention.bytes"]),
    )


def check_config(given: Mapping[str, str]) -> None:
    """Refuse settings that there are not, and values that they cannot have."""
    for name, value in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise Invalid(f"unknown topic setting. got={name!r:.80}", reason="invalid_config")
        if not setting.check(value):
            raise Invalid(f"topic setting {name}. expected={setting.text} got={value!r:.80}", reason="invalid_config")
