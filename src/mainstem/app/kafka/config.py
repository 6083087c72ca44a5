"""The settings of the Kafka door. Apart from the door: reading a configuration must not load it."""

from typing import Annotated

import msgspec

from mainstem.admission.quotas import QuotasSettings
from mainstem.feeds.groups.settings import GroupSettings
from mainstem.feeds.transactions.settings import TransactionSettings

MIB = 1 << 20


class KafkaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[kafka]`: the door for Kafka's clients."""

    # Whether there is such a door.
    enabled: bool = False
    # 0 picks a free one.
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 9092
    # What clients are told to connect to, "host:port"; empty: where the door listens.
    advertised: str = ""
    # The broker id that clients are told.
    node_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 1
    # Where topics are tables.
    namespace: str = "kafka"
    # Topics are made when a client first names them.
    auto_create: bool = True
    # Partitions of a topic that is made by its first use.
    partitions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    # Connections open at once.
    connections_max: Annotated[int, msgspec.Meta(gt=0)] = 10_000
    # Memory for the newest records of all topics.
    tail_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = 128 * MIB
    # Disk for batches as they came, beyond what the log itself needs: what consumers behind the tail are served from
    # before segments and tables are.
    kept_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 2048 * MIB
    # The largest request.
    request_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=100 * MIB)] = 64 * MIB
    # A connection that is silent for this long is closed.
    idle_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    # How often topics are looked at for what is past its retention.
    retention_check_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    # Settings of every topic that does not say otherwise, by Kafka's names.
    topic: dict[str, str] = {}
    # Consumer groups.
    groups: GroupSettings = GroupSettings()
    # Transactions.
    transactions: TransactionSettings = TransactionSettings()
    quotas: QuotasSettings = QuotasSettings()
