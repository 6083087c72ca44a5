"""The bounds and times of transactions. Defaults are Kafka's."""

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]


class TransactionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[kafka.transactions]` of the configuration."""

    # The longest time-out that a producer may ask for.
    timeout_ms_max: Positive = 900_000
    # Transactional ids that are remembered.
    names_max: Positive = 10_000
    # Partitions in a transaction.
    partitions_max: Positive = 10_000
    # Records of all open transactions, held until they end. A commit of all of them has to fit a frame of the log.
    open_bytes_max: Annotated[int, msgspec.Meta(gt=0, le=40 * 1024 * 1024)] = 32 * 1024 * 1024
    # A name that was not used for so long is forgotten.
    expiry_s: Positive = 7 * 24 * 3600
