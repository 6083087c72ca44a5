"""Brings a table to what was declared of it: partition fields whose columns are there now, and how files are written.

Partitioning evolves without a rewrite: files keep the spec that they were written with, and new ones follow the new
one. A field that cannot be had yet waits for its column; the partitions endpoint says why.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.commit.lake import Lake, LakeTable, commit
from mainstem.tables.layout import KINDS_PROPERTY, log_properties, state_properties
from mainstem.tables.parquet import MANAGED_PROPERTIES
from mainstem.tables.partitions import (
    PARTITION_PROPERTY,
    KnownField,
    applicable,
    field_name,
    iceberg_transform,
    source_of,
)
from mainstem.tables.settings import TableSettings, Transform, parse_partition
from mainstem.tables.types import ColumnType, Kind

log = logging.getLogger(__name__)


def bring_up_to_date(lake: Lake, name: TableName, settings: TableSettings) -> None:
    """Apply the configuration of one table to what it is stored as."""
    state = lake.load(name) if settings.state else None
    if state is not None:
        partition_state(state, settings)
        _set_properties(state, state_properties(settings))
    for other in (name.history, name.dead_letters):
        table = lake.load(other)
        if table is not None:
            if settings.history_partition is not None:
                _partition(table, settings.history_partition)
            _set_properties(table, log_properties(settings))


def partition_state(table: LakeTable, settings: TableSettings) -> None:
    """Give a state table the partition fields that it can have by now. The configuration wins over HTTP."""
    wanted = settings.partition
    if wanted is None:
        text = table.property(PARTITION_PROPERTY)
        if text is None:
            return
        try:
            wanted = parse_partition(json.loads(text))
        except (ValueError, TypeError, Invalid) as error:
            log.warning("a partition spec cannot be read: %s", error, extra={"table": str(table.name)})
            return
    _partition(table, wanted)


def _partition(table: LakeTable, wanted: Sequence[Transform]) -> None:
    jvm = table.lake.jvm
    schema, spec = table.schema(), table.spec()
    names = {field["id"]: field["name"] for field in schema["fields"]}
    there = _fields(spec, names)
    known: dict[KnownField, int] = {}
    for each in table.java.specs().values():
        known.update(_fields(_parsed(jvm, each), names))
    now = _applicable(table, wanted, schema, known)
    if set(there) == {(field_name(each), source_of(each), iceberg_transform(each)) for each in now}:
        return
    operations = table.java.operations()
    base = operations.current()
    spec = table.lake.partition_spec(base.schema(), now, known, int(base.lastAssignedPartitionId()))
    changed = jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setDefaultPartitionSpec(spec).build()
    commit(operations, "commit", base, changed)
    table.refresh()


def _parsed(jvm: Any, spec: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(jvm.org.apache.iceberg.PartitionSpecParser.toJson(spec))
    return parsed


def _fields(spec: Mapping[str, Any], names: Mapping[int, str]) -> dict[KnownField, int]:
    """The fields of a spec, with their ids."""
    return {
        (field["name"], names.get(field["source-id"], ""), field["transform"]): int(field["field-id"])
        for field in spec["fields"]
        if field["transform"] != "void"
    }


def _applicable(
    table: LakeTable, wanted: Sequence[Transform], schema: Mapping[str, Any], known: Collection[KnownField]
) -> tuple[Transform, ...]:
    types = {field["name"]: ColumnType(str(field["type"]).replace(" ", "")) for field in schema["fields"]}
    kinds = json.loads(table.property(KINDS_PROPERTY) or "{}")
    undecided = frozenset(name for name in types if kinds.get(name) == Kind.NULL)
    now, waiting = applicable(wanted, types, undecided, known)
    for each in waiting:
        log.info("partition field waits: %s: %s", each.transform, each.reason, extra={"table": str(table.name)})
    return now


def _set_properties(table: LakeTable, wanted: Mapping[str, str]) -> None:
    """Of the properties that the configuration owns, those that differ."""
    update = None
    for name in MANAGED_PROPERTIES:
        value = wanted.get(name)
        if value == table.property(name):
            continue
        update = update or table.java.updateProperties()
        if value is None:
            update.remove(name)
        else:
            update.set(name, value)
    if update is not None:
        commit(update)
        table.refresh()
