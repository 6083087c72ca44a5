"""The first version of a table: what it is, what it asks of its readers and writers, and perhaps its first rows.

delta-rs would name features that the table does not use, and keep out engines that do not know those. Here a table
asks for what it needs and nothing else.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.formats.delta.log import DeltaLog, Metadata
from mainstem.formats.delta.schema import CHANGE_FEED, check_feed, delta_schema
from mainstem.formats.delta.transaction import VECTORS, Commit, commit_info, features_of, stated
from mainstem.model.errors import Invalid

# Features that only writers have to know, by the property that turns them on.
_OF_WRITERS = {CHANGE_FEED: "changeDataFeed"}
_OF_READERS = {VECTORS: "deletionVectors"}


# Properties that ask for other features than these.
_OTHERS = re.compile(
    r"delta\.(feature|constraints)\..*|delta\.(columnMapping\.mode|checkpointPolicy|minReaderVersion|minWriterVersion)"
    r"|delta\.enable(?!DeletionVectors$|ChangeDataFeed$|VariantShredding$|ExpiredLogCleanup$).*"
)


def is_plain(properties: Mapping[str, str]) -> bool:
    """Whether these properties ask for nothing but what is known here."""
    return not any(_OTHERS.fullmatch(name) for name in properties)


def described(
    schema: pa.Schema, partition_by: Sequence[str], variants: Sequence[str], properties: Mapping[str, str]
) -> Metadata:
    """What the log will say of a new table."""
    missing = [name for name in partition_by if name not in schema.names]
    if missing:
        raise Invalid(f"no such column to partition by. got={missing}")
    nested = [name for name in partition_by if pa.types.is_nested(schema.field(name).type) or name in variants]
    if nested:
        raise Invalid(f"a partition has a single value. got={nested}", reason="schema")
    if partition_by and set(partition_by) == set(schema.names):
        raise Invalid(f"a table needs a column that it is not partitioned by. got={list(partition_by)}")
    made = Metadata(
        id=str(uuid.uuid4()),
        schemaString=delta_schema(schema, frozenset(variants)).to_json(),
        partitionColumns=list(partition_by),
        configuration=dict(properties),
    )
    check_feed(made)
    return made


def protocol_of(metadata: Metadata) -> dict[str, Any]:
    """The least that a reader and a writer have to know."""
    on = {name for name, value in metadata.configuration.items() if (value or "").lower() == "true"}
    reader = features_of(metadata) | {feature for name, feature in _OF_READERS.items() if name in on}
    writer = reader | {feature for name, feature in _OF_WRITERS.items() if name in on}
    if not writer:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    needed: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
    needed |= {"readerFeatures": sorted(reader)} if reader else {}
    # From version 7 on these have to be named, whether they are used or not.
    return needed | {"writerFeatures": sorted(writer | {"appendOnly", "invariants"})}


def create(log: DeltaLog, metadata: Metadata, added: Sequence[Mapping[str, Any]], about: Commit, now_ms: int) -> None:
    """Commit version 0, with files that are written already. Raises Conflict where there is one."""
    actions: list[dict[str, Any]] = [commit_info(None, about, now_ms), {"protocol": protocol_of(metadata)}]
    actions.append({"metaData": stated(metadata) | {"createdTime": now_ms}})
    for app, progress in about.transactions.items():
        actions.append({"txn": {"appId": app, "version": progress, "lastUpdated": now_ms}})
    actions += [{"add": dict(add)} for add in added]
    content = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
    log.storage.put_if_absent(log.commit_path(0), content.encode())
