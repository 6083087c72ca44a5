"""A Delta schema as the other parts need it: Arrow's types, DuckDB's types, and what each column holds.

What a text column stands for (JSON, an ObjectId) is kept in the column's own metadata in the log, so that every client
of ours reads the same Python values, and every other engine sees plain text.
"""



from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import deltalake
import msgspec
import pyarrow as pa

from mainstem.client.delta.log import Metadata
from mainstem.documents.arrow import columns_of_schema
from mainstem.documents.columns import Column, Kind
from mainstem.model.errors import Invalid

KIND = "mainstem.kind"
_PHYSICAL = "delta.columnMapping.physicalName"
# What a Variant is in Arrow, and in a Parquet file that is not shredded.
VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])


@dataclass(frozen=True)
class Field:
    """One column of a table."""

    name: str
    # Its name in data files and statistics, which differs where a table maps its columns.
    physical: str
    type: pa.DataType
    column: Column
    nullable: bool = True
    is_variant: bool = False


@dataclass(frozen=True)
class TableSchema:
    """All columns, and which of them are only in the log."""

    fields: dict[str, Field]
    partition_by: tuple[str, ...]
    configuration: dict[str, str | None]

    @property
    def columns(self) -> dict[str, Column]:
        """What document filters want to know."""
        return {name: field.column for name, field in self.fields.items()}

    @property
    def arrow(self) -> pa.Schema:
        """The schema in Arrow, kinds included."""
        return pa.schema([arrow_field(field) for field in self.fields.values()])

    def has(self, setting: str) -> bool:
        """Whether one of the table's properties is on."""
        return (self.configuration.get(setting) or "").lower() == "true"


def arrow_field(field: Field) -> pa.Field:
    """A column in Arrow, with its kind."""
    kind = field.column.kind
    named = kind in (Kind.JSON, Kind.EXTENDED_JSON, Kind.OBJECT_ID) and not field.is_variant
    return pa.field(field.name, field.type, field.nullable, {KIND: kind.value} if named else None)


def schema_of(metadata: Metadata) -> TableSchema:
    """The schema that the log states."""
    fields = dict(_fields(metadata.schemaString))
    return TableSchema(fields, tuple(metadata.partitionColumns), metadata.configuration)


@lru_cache(maxsize=64)
def _fields(text: str) -> tuple[tuple[str, Field], ...]:
    stated = msgspec.json.decode(text)["fields"]
    kinds = {field["name"]: (field.get("metadata") or {}).get(KIND) for field in stated}
    variants = {field["name"] for field in stated if field["type"] == "variant"}
    plain = [field for field in stated if field["name"] not in variants]
    arrow = {field.name: field.type for field in _arrow(plain)} | dict.fromkeys(variants, VARIANT)
    columns = columns_of_schema(
        pa.schema([(field["name"], arrow[field["name"]]) for field in stated]),
        json=[name for name in arrow if kinds[name] == Kind.JSON.value],
        extended_json=[name for name in arrow if kinds[name] == Kind.EXTENDED_JSON.value],
        object_id=[name for name in arrow if kinds[name] == Kind.OBJECT_ID.value],
    )
    return tuple(
        (
            field["name"],
            Field(
                field["name"],
                (field.get("metadata") or {}).get(_PHYSICAL, field["name"]),
                arrow[field["name"]],
                columns[field["name"]],
                field.get("nullable", True),
                field["name"] in variants,
            ),
        )
        for field in stated
    )


def _arrow(fields: list[Any]) -> pa.Schema:
    text = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    return pa.schema(deltalake.Schema.from_json(text).to_arrow())


def duckdb_type(type_: pa.DataType) -> str:
    """An Arrow type in DuckDB's SQL."""
    types = pa.types
    if types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if types.is_timestamp(type_):
        return "TIMESTAMPTZ" if type_.tz else "TIMESTAMP"
    if types.is_struct(type_):
        inner = ", ".join(f'"{field.name}" {duckdb_type(field.type)}' for field in type_)
        return f"STRUCT({inner})"
    if types.is_map(type_):
        return f"MAP({duckdb_type(type_.key_type)}, {duckdb_type(type_.item_type)})"
    if types.is_list(type_) or types.is_large_list(type_):
        return f"{duckdb_type(type_.value_type)}[]"
    name = _DUCKDB_TYPES.get(str(type_))
    if name is None:
        raise Invalid(f"a column type that is not read. got={type_}")
    return name


_DUCKDB_TYPES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "binary_view": "BLOB",
    "date32[day]": "DATE",
}


def delta_schema(schema: pa.Schema, variants: frozenset[str] = frozenset()) -> deltalake.Schema:
    """An Arrow schema as the log states it; what a column stands for is kept in its metadata."""
    fields = []
    for field in schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        if field.name in variants or metadata.get(KIND) == "variant":
            fields.append(deltalake.Field(field.name, deltalake.VariantType(), nullable=field.nullable))
        else:
            plain = deltalake.Schema.from_arrow(pa.schema([field.remove_metadata()])).fields[0]
            fields.append(deltalake.Field(field.name, plain.type, nullable=field.nullable, metadata=metadata))
    return deltalake.Schema(fields)
