"""Kinds of tables that settle how they are stored, without anybody configuring them.

A door that makes tables while it runs (a topic of Kafka's, a collection of MongoDB's) says with each row of which kind
its table is. The kind is in the segments' footers, so that it reaches the pipeline with the rows, wherever that runs.
What a configuration file says of a table wins over its kind.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mainstem.tables.parquet import ParquetSettings
from mainstem.tables.settings import TableSettings
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN, DOCUMENTS

# A row per record of a topic, with its bytes as they came.
TOPIC = "topic"
# The same, and the fields of its value as columns.
TOPIC_JSON = "topic-json"
# A row per key: the last record that has it.
TOPIC_COMPACT = "topic-compact"
# What a door keeps of itself: the current state is enough.
INTERNAL = "internal"

_RECORD = MappingProxyType(
    {
        "partition": "int",
        "offset": "long",
        "timestamp": "timestamptz",
        "timestamp_type": "string",
        "key": "binary",
        "value": "binary",
        "headers": "string",
        "leader_epoch": "int",
    }
)
_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        TOPIC: {"append": True, "history": False, "format": "delta", "partition": ["partition"], "columns": _RECORD},
        TOPIC_JSON: {
            "append": True,
            "history": False,
            "format": "delta",
            "partition": ["_kafka_partition"],
            "columns": {f"_kafka_{name}": kind for name, kind in _RECORD.items()},
        },
        TOPIC_COMPACT: {"history": False, "format": "delta", "columns": _RECORD},
        INTERNAL: {"history": False},
        DOCUMENTS: {"format": "delta", "columns": {DOCUMENT_COLUMN: "binary"}},
    }
)


def settings_of_kind(kind: str, parquet: ParquetSettings | None = None) -> TableSettings:
    """How tables of a kind are stored. One that is not known is stored like any other table."""
    return TableSettings.from_document(_SETTINGS.get(kind, {}), parquet)
