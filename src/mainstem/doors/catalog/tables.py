"""What Mainstem adds to the catalog's tables: partitions with their statistics, schemas with their history.

GET  …/tables/{table}/partitions        the spec, what waits for its column, and every partition
PUT  …/tables/{table}/partitions        partition by other fields from now on; no file is rewritten
GET  …/tables/{table}/partition-stats   files, rows, bytes and deletes of every partition
GET  …/tables/{table}/schemas           every schema that the table has had
PUT  …/tables/{table}/schemas           declare columns; makes the table where there is none
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from mainstem.catalog import Catalog, Commit, NewTable, NoSuchTable
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.scan.inventory import Inventory, PartitionCounts, partition_fields
from mainstem.doors.catalog.answers import Answer, Asked, ok
from mainstem.model import Invalid, TableName, parse_table_name
from mainstem.model.names import refuse_rules
from mainstem.tables.declaring import (
    column_updates,
    new_state,
    partition_updates,
    partitioning,
    schema_history,
    transform_of,
)
from mainstem.tables.layout import KEY
from mainstem.tables.maintenance import matches
from mainstem.tables.partitions import PartitionField
from mainstem.tables.settings import DEFAULT_SETTINGS, parse_partition
from mainstem.tables.types import ColumnType, parse_type
from mainstem.wire import iceberg_rest as wire
from mainstem.wire.iceberg_rest import Operation

PARTITIONS_SHOWN_MAX = 10_000


class PartitionsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to partition by from now on, in order; none for no partitioning."""

    fields: list[Any]


class ColumnsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Types by column."""

    columns: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


class _Seen(NamedTuple):
    """A table of whatever format, as far as its partitions go."""

    inventory: Inventory
    spec: Document
    specs: list[Document]
    waiting: list[Document]


def _seen(catalog: Catalog, asked: Asked) -> _Seen:
    try:
        document = catalog.load_table(asked.ident).stored.document
    except NoSuchTable:
        other = catalog.other_inventory(asked.ident.table_name)
        if other is None:
            raise
        spec = {"spec-id": 0, "fields": _told(other.fields)}
        return _Seen(other.inventory, spec, [spec], [])
    stands = partitioning(document)
    return _Seen(
        catalog.inventories.take(document),
        _spec(document, document["default-spec-id"]),
        [_spec(document, spec["spec-id"]) for spec in document["partition-specs"]],
        [{"field": str(each.transform), "reason": each.reason} for each in stands.waiting],
    )


def _partitions(catalog: Catalog, asked: Asked) -> Answer:
    seen = _seen(catalog, asked)
    shown = [each for each in seen.inventory.partitions if matches(each.partition, _wanted(asked))]
    return ok(
        {
            "snapshot-id": seen.inventory.snapshot_id,
            "spec": seen.spec,
            "specs": seen.specs,
            "waiting": seen.waiting,
            "partitions": [
                {
                    "partition": each.partition,
                    "spec-id": each.spec_id,
                    "data-files": each.files,
                    "records": each.rows,
                    "bytes": each.size_bytes,
                }
                for each in shown[:PARTITIONS_SHOWN_MAX]
            ],
            "total": len(shown),
        }
    )


def _partition_stats(catalog: Catalog, asked: Asked) -> Answer:
    inventory = _seen(catalog, asked).inventory
    shown = [each for each in inventory.partitions if matches(each.partition, _wanted(asked))]
    return ok(
        {
            "snapshot-id": inventory.snapshot_id,
            "partitions": [_stats(each) for each in shown[:PARTITIONS_SHOWN_MAX]],
            "total": len(shown),
            "totals": {
                "data-files": sum(each.files for each in shown),
                "records": sum(each.rows for each in shown),
                "bytes": sum(each.size_bytes for each in shown),
                "delete-files": sum(each.delete_files for each in shown),
                "deleted-records": sum(each.deleted_rows for each in shown),
            },
        }
    )


def _stats(counts: PartitionCounts) -> Document:
    return {
        "partition": counts.partition,
        "spec-id": counts.spec_id,
        "data-files": counts.files,
        "records": counts.rows,
        "bytes": counts.size_bytes,
        "delete-files": counts.delete_files,
        "deleted-records": counts.deleted_rows,
        "file-bytes-min": counts.file_bytes_min,
        "file-bytes-max": counts.file_bytes_max,
        "file-bytes-mean": counts.size_bytes // counts.files if counts.files else 0,
        "last-updated-ms": counts.updated_ms,
    }


def _set_partitions(catalog: Catalog, asked: Asked) -> Answer:
    body = wire.decode(asked.body, PartitionsBody)
    wanted = parse_partition([str(transform_of(field)) for field in body.fields])
    document = catalog.load_table(asked.ident).stored.document
    if KEY not in _columns(document):
        raise Invalid(f"only tables that Mainstem writes are partitioned here. got={asked.ident}")
    _commit(catalog, asked, document, partition_updates(document, wanted))
    return _partitions(catalog, asked)


def _schemas(catalog: Catalog, asked: Asked) -> Answer:
    document = catalog.load_table(asked.ident).stored.document
    return ok({"current-schema-id": document["current-schema-id"], "schemas": schema_history(document)})


def declared_columns(body: bytes) -> dict[str, ColumnType]:
    """What a request declares. Raises Invalid."""
    return {_checked(name): parse_type(text) for name, text in wire.decode(body, ColumnsBody).columns.items()}


def _set_schema(catalog: Catalog, asked: Asked) -> Answer:
    columns = declared_columns(asked.body)
    # Rows that do not fit their declared types are passed over: rules would be.
    name = refuse_rules(TableName(".".join(asked.ident.namespace), asked.ident.name))
    if catalog.table_exists(asked.ident):
        document = catalog.load_table(asked.ident).stored.document
        if KEY not in _columns(document):
            raise Invalid(f"only tables that Mainstem writes are declared here. got={asked.ident}")
        _commit(catalog, asked, document, column_updates(document, columns))
    else:
        parse_table_name(str(name))
        state = new_state(columns, DEFAULT_SETTINGS)
        catalog.create_namespace_if_missing(asked.ident.namespace)
        new = NewTable(state.schema, properties=state.properties)
        catalog.create_table(asked.ident.namespace, asked.ident.name, new)
    return _schemas(catalog, asked)


def _commit(catalog: Catalog, asked: Asked, document: Document, updates: list[Document]) -> None:
    """Only on top of what was looked at: the pipeline may be changing the table too."""
    requirements = [
        {"type": "assert-table-uuid", "uuid": document["table-uuid"]},
        {"type": "assert-current-schema-id", "current-schema-id": document["current-schema-id"]},
        {"type": "assert-default-spec-id", "default-spec-id": document["default-spec-id"]},
    ]
    catalog.commit_table(Commit(asked.ident, requirements, updates))


def _columns(document: Document) -> set[str]:
    schema = next(each for each in document["schemas"] if each["schema-id"] == document["current-schema-id"])
    return {field["name"] for field in schema["fields"]}


def _checked(name: str) -> str:
    if not name or len(name) > 255:
        raise Invalid(f"column name. expected=1 to 255 characters got={len(name)}")
    return name


def _spec(document: Document, spec_id: int) -> Document:
    return {"spec-id": spec_id, "fields": _told(partition_fields(document, spec_id))}


def _told(fields: Sequence[PartitionField]) -> list[Document]:
    return [{"name": field.name, "transform": field.transform, "source": field.source} for field in fields]


def _wanted(asked: Asked) -> tuple[str, ...]:
    one = asked.query.get("partition")
    return (one,) if one else ()


TABLE_OPERATIONS: dict[Operation, Callable[[Catalog, Asked], Answer]] = {
    Operation.LIST_PARTITIONS: _partitions,
    Operation.SET_PARTITIONS: _set_partitions,
    Operation.PARTITION_STATS: _partition_stats,
    Operation.LIST_SCHEMAS: _schemas,
    Operation.SET_SCHEMA: _set_schema,
}
