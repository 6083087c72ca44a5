"""Where the log's topic is, and how long its owner may be silent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mainstem.model.errors import Invalid


@dataclass(frozen=True, slots=True)
class KafkaLogSettings:
    """One log's topic. It has one partition."""

    bootstrap: str
    topic: str
    # Copies of each record where the topic is made by us; -1: as the brokers have it.
    replication: int = -1
    # Properties of librdkafka: security.protocol, sasl.mechanism and so on.
    client: Mapping[str, str] = field(default_factory=dict)
    # So long the owner may write nothing before another takes over.
    lease_s: float = 1.5
    # Kafka has not answered for so long: new appends are refused until it does.
    away_s: float = 2.0
    # Records are deleted in portions of at least so many bytes.
    trim_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise Invalid("a log on Kafka needs brokers. expected=[log] bootstrap_servers got=none")
        if self.lease_s <= 0 or self.away_s <= 0:
            raise Invalid(f"lease and patience. expected=more than 0 s got={self.lease_s} and {self.away_s}")

    @property
    def beat_s(self) -> float:
        """How often the owner writes something."""
        return self.lease_s / 4

    def properties(self) -> dict[str, str | int | float | bool]:
        """What every client of ours begins with."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "mainstem",
            "socket.keepalive.enable": True,
            # A broker that comes back is found soon.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            # It tells of every attempt to connect. What matters comes as an error of a call.
            "log_level": 0,
            **self.client,
        }
