"""A Delta schema as the other parts need it: Arrow's types, DuckDB's types, and what each column holds.

What a text column stands for (JSON, an ObjectId) is kept in the column's own metadata in the log, so that every client
of ours reads the same Python values, and every other engine sees plain text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import deltalake
import msgspec
import pyarrow as pa

from mainstem.documents.columns import Column, Kind
from mainstem.documents.filters.arrow import columns_of_schema
from mainstem.formats.delta.log import Metadata
from mainstem.model.errors import Invalid
from mainstem.sql import duckdb_name

KIND = "mainstem.kind"
# Says of a column of JSON or Variants that it held something else before: Arrow's text is a value of it, not JSON.
WIDENED = "mainstem.widened"
# What a column's old type was to other engines.
_OF_THE_TYPE = frozenset([KIND, WIDENED, "__CHAR_VARCHAR_TYPE_STRING"])
# DuckDB's own names for the place of a row: a column of that name would be taken for it.
RESERVED = frozenset(["file_index", "file_row_number"])
# What Delta's change feed says of each row stands in columns of these names.
OF_THE_FEED = frozenset(["_change_type", "_commit_version", "_commit_timestamp"])
CHANGE_FEED = "delta.enableChangeDataFeed"
# A column of our own beside a table's, while rows are looked at: no table has this name.
AT = "\0at"
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
    is_widened: bool = False


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
    _check_nested(stated)
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
                WIDENED in (field.get("metadata") or {}),
            ),
        )
        for field in stated
    )


def _arrow(fields: list[Any]) -> pa.Schema:
    text = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    try:
        return pa.schema(deltalake.Schema.from_json(text).to_arrow())
    except Exception as error:
        # delta-rs raises nothing more specific.
        raise Invalid(f"a column type that is not read. {str(error).splitlines()[0]}", reason="protocol") from None


def duckdb_type(type_: pa.DataType) -> str:
    """An Arrow type in DuckDB's SQL."""
    types = pa.types
    if types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if types.is_timestamp(type_):
        return "TIMESTAMPTZ" if type_.tz else "TIMESTAMP"
    if types.is_struct(type_):
        inner = ", ".join(f"{duckdb_name(field.name)} {duckdb_type(field.type)}" for field in type_)
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


def _check_nested(fields: Sequence[Any]) -> None:
    """What is known of columns is not known of what is inside them: refuse it, rather than read it wrongly."""
    for column in fields:
        for name, type_, physical in _inner(column["type"]):
            if type_ == "variant":
                raise Invalid(f"a Variant inside another type is not read. column={column['name']}", reason="protocol")
            if physical != name:
                raise Invalid(
                    f"a mapped name inside another type is not read. column={column['name']} field={name}",
                    reason="protocol",
                )


def _inner(type_: Any) -> Iterator[tuple[str, Any, str]]:
    """What is inside a type, at any depth: its name, its type and its name in files."""
    if not isinstance(type_, dict):
        return
    parts = [("", type_[part], "") for part in ("elementType", "keyType", "valueType") if part in type_]
    for field in type_.get("fields", ()):
        name = field["name"]
        parts.append((name, field["type"], (field.get("metadata") or {}).get(_PHYSICAL, name)))
    for part in parts:
        yield part
        yield from _inner(part[1])


def check_names(names: Iterable[str]) -> None:
    """Refuse columns that Delta or its readers would take for one another, or could not name."""
    seen: dict[str, str] = {}
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Invalid(f"a column's name is not Unicode text. got={name!a}", reason="schema") from None
        if not name or "\0" in name:
            raise Invalid(f"a column has a name, without a NUL in it. got={name!a}", reason="schema")
        folded = name.lower()
        if folded in RESERVED:
            raise Invalid(f"a column may not have this name: readers use it for the row's place. got={name}")
        if folded in seen:
            raise Invalid(
                f"two columns differ only by upper and lower case, which Delta does not tell apart. "
                f"got={seen[folded]!r} {name!r}",
                reason="schema",
            )
        seen[folded] = name


def _check_inner_names(column: str, type_: pa.DataType) -> None:
    """The same of fields inside a column's type: a file with them could be written, and not be read again."""
    types = pa.types
    parts = [type_.value_type] if types.is_list(type_) or types.is_large_list(type_) else []
    parts = [type_.key_type, type_.item_type] if types.is_map(type_) else parts
    if types.is_struct(type_):
        names = [field.name for field in type_]
        unnamed = [name for name in names if not name or "\0" in name]
        if unnamed or len({name.lower() for name in names}) < len(names):
            raise Invalid(
                f"fields of a struct have names, and differ by more than upper and lower case. "
                f"column={column} got={names!r:.200}",
                reason="schema",
            )
        parts = [field.type for field in type_]
    for part in parts:
        _check_inner_names(column, part)


def check_feed(metadata: Metadata) -> None:
    """Refuse columns that the table's change feed needs for itself, where it keeps one."""
    if (metadata.configuration.get(CHANGE_FEED) or "").lower() != "true":
        return
    names = [field["name"] for field in msgspec.json.decode(metadata.schemaString)["fields"]]
    taken = sorted(name for name in names if name.lower() in OF_THE_FEED)
    if taken:
        raise Invalid(f"a table with a change feed cannot have these columns. got={taken}", reason="schema")


def with_columns(metadata: Metadata, fields: Sequence[pa.Field]) -> Metadata:
    """What a table is once it has these columns too; what is said of the others stays to the letter."""
    # Rows that are there have nothing in them.
    added = [field.with_nullable(True) for field in fields]
    text = delta_schema(pa.schema(added)).to_json()
    return united(metadata, msgspec.structs.replace(metadata, schemaString=text))


def retyped(metadata: Metadata, column: pa.Field) -> Metadata:
    """What a table is once one of its columns has another type; what else is said of it stays."""
    stated = msgspec.json.decode(metadata.schemaString)
    new = msgspec.json.decode(delta_schema(pa.schema([column])).to_json())["fields"][0]
    marks = {WIDENED: "true"} if WIDENED.encode() in (column.metadata or {}) else {}
    for field in stated["fields"]:
        if field["name"] == column.name:
            kept = {key: value for key, value in (field.get("metadata") or {}).items() if key not in _OF_THE_TYPE}
            field |= {"type": new["type"], "metadata": {**kept, **(new.get("metadata") or {}), **marks}}
    return msgspec.structs.replace(metadata, schemaString=msgspec.json.encode(stated).decode())


def differing(one: TableSchema, other: TableSchema) -> list[str]:
    """The columns of both whose cells are not the same."""
    return [
        name
        for name, field in one.fields.items()
        if (new := other.fields.get(name)) is not None
        and (not field.type.equals(new.type) or field.column != new.column or field.is_variant != new.is_variant)
    ]


def united(metadata: Metadata, other: Metadata, changed: Sequence[str] = ()) -> Metadata:
    """What a table is, with the columns that only the other has, and with some as the other has them."""
    stated = msgspec.json.decode(metadata.schemaString)
    others = {field["name"]: field for field in msgspec.json.decode(other.schemaString)["fields"]}
    known = {field["name"] for field in stated["fields"]}
    new = [field for name, field in others.items() if name not in known]
    if not new and not changed:
        return metadata
    stated["fields"] = [others[field["name"]] if field["name"] in changed else field for field in stated["fields"]]
    stated["fields"] += new
    check_names([field["name"] for field in stated["fields"]])
    made = msgspec.structs.replace(metadata, schemaString=msgspec.json.encode(stated).decode())
    check_feed(made)
    return made


def delta_schema(schema: pa.Schema, variants: frozenset[str] = frozenset()) -> deltalake.Schema:
    """An Arrow schema as the log states it; what a column stands for is kept in its metadata."""
    check_names(schema.names)
    fields = []
    for field in schema:
        _check_inner_names(field.name, field.type)
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        if field.name in variants or metadata.get(KIND) == "variant":
            fields.append(deltalake.Field(field.name, deltalake.VariantType(), nullable=field.nullable))
        else:
            plain = _plain_field(field)
            fields.append(deltalake.Field(field.name, plain.type, nullable=field.nullable, metadata=metadata))
    return deltalake.Schema(fields)


def _stored_type(type_: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - case by case
    """What Delta has for a type of Arrow's, at any depth."""
    types = pa.types
    if types.is_timestamp(type_):
        # Delta's timestamps are in microseconds; delta-rs has others, which hardly anybody reads.
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if types.is_float16(type_):
        return pa.float32()
    if types.is_date64(type_):
        return pa.date32()
    if types.is_struct(type_):
        return pa.struct([field.with_type(_stored_type(field.type)) for field in type_])
    if types.is_map(type_):
        return pa.map_(_stored_type(type_.key_type), type_.item_field.with_type(_stored_type(type_.item_type)))
    if types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_stored_type(type_.value_type)))
    if types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_stored_type(type_.value_type)))
    return type_


def _plain_field(field: pa.Field) -> deltalake.Field:
    type_ = _stored_type(field.type)
    try:
        if pa.types.is_null(type_):
            raise ValueError("no value to take a type from")
        return deltalake.Schema.from_arrow(pa.schema([pa.field(field.name, type_, field.nullable)])).fields[0]
    except Exception as error:
        # delta-rs raises nothing more specific.
        text = str(error).partition("\n")[0]
        raise Invalid(f"Delta has no such type. column={field.name} got={field.type} {text}", reason="schema") from None
