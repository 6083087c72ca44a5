"""The part of the OpenAPI document for what Mainstem adds to the catalog's tables (`catalog_tables`).

The catalog's door is outside the framework that writes the rest of the document. Iceberg's own operations have a
document of their own: Iceberg's.
"""

from typing import Any

_Schema = dict[str, Any]

_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
_REFUSED: _Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "integer"},
            },
        }
    },
}
_NAMES = [
    {
        "name": name,
        "in": "path",
        "required": True,
        "description": text,
        "schema": {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_]+$", "maxLength": 64},
    }
    for name, text in (("namespace", "The table's namespace"), ("table", "The table's name"))
]
_ONE_PARTITION = {
    "name": "partition",
    "in": "query",
    "required": False,
    "description": "Only this partition, as `day=2026-01-01/region=eu`; or all that begin with these fields",
    "schema": {"type": "string"},
}
_FIELD: _Schema = {
    "description": "`day(ts) as dt`, or the same as an object",
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "required": ["sourceField"],
            "properties": {
                "type": {"type": "string", "default": "identity"},
                "sourceField": {"type": "string"},
                "numBuckets": {"type": "integer", "minimum": 1},
                "width": {"type": "integer", "minimum": 1},
                "name": {"type": "string"},
            },
        },
    ],
}
_COUNTS = {name: {"type": "integer", "minimum": 0} for name in ("data-files", "records", "bytes")}
_DELETES = {name: {"type": "integer", "minimum": 0} for name in ("delete-files", "deleted-records")}


def _object(**properties: _Schema) -> _Schema:
    """An object that has all of these, whose names are written with hyphens."""
    named = {name.replace("_", "-"): schema for name, schema in properties.items()}
    return {"type": "object", "required": list(named), "properties": named}


def _list(of: _Schema) -> _Schema:
    return {"type": "array", "items": of}


_NUMBER: _Schema = {"type": "integer"}
_TEXT: _Schema = {"type": "string"}
_SNAPSHOT: _Schema = {"type": ["integer", "null"]}
_SPEC = _object(spec_id=_NUMBER, fields=_list(_object(name=_TEXT, transform=_TEXT, source=_TEXT)))
_PARTITIONS = _object(
    snapshot_id=_SNAPSHOT,
    spec=_SPEC,
    specs=_list(_SPEC),
    waiting=_list(_object(field=_TEXT, reason=_TEXT)),
    partitions=_list(_object(partition=_TEXT, spec_id=_NUMBER, **_COUNTS)),
    total=_NUMBER,
)
_STATS = _object(
    snapshot_id=_SNAPSHOT,
    partitions=_list(_object(partition=_TEXT, spec_id=_NUMBER, **_COUNTS, **_DELETES)),
    total=_NUMBER,
    totals=_object(**_COUNTS, **_DELETES),
)
_SCHEMAS = _object(
    current_schema_id=_NUMBER,
    schemas=_list(_object(schema_id=_NUMBER, is_current={"type": "boolean"}, fields=_list({"type": "object"}))),
)
_SET_PARTITIONS: _Schema = {
    "type": "object",
    "required": ["fields"],
    "additionalProperties": False,
    "properties": {"fields": _list(_FIELD)},
}
_SET_SCHEMA: _Schema = {
    "type": "object",
    "required": ["columns"],
    "additionalProperties": False,
    "properties": {"columns": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}},
}


def table_paths() -> dict[str, Any]:
    """The paths, as OpenAPI writes them."""
    return {
        f"{_TABLE}/partitions": {
            "get": _look("Partitions", "The spec, what waits for a column, partitions", _PARTITIONS, _ONE_PARTITION),
            "put": _change("SetPartitions", "Partition by other fields from now on", _PARTITIONS, _SET_PARTITIONS),
        },
        f"{_TABLE}/partition-stats": {
            "get": _look("PartitionStats", "Files, rows, bytes, deletes by partition", _STATS, _ONE_PARTITION),
        },
        f"{_TABLE}/schemas": {
            "get": _look("Schemas", "Every schema that the table has had", _SCHEMAS),
            "put": _change("SetSchema", "Declare columns; makes a table where there is none", _SCHEMAS, _SET_SCHEMA),
        },
    }


def _look(name: str, summary: str, answer: _Schema, *parameters: _Schema) -> dict[str, Any]:
    return {
        "operationId": f"Table{name}",
        "summary": summary,
        "tags": ["tables"],
        "parameters": [*_NAMES, *parameters],
        "responses": {"200": _json("As it stands now", answer), "400": _json("The request is not one", _REFUSED)},
    }


def _change(name: str, summary: str, answer: _Schema, body: _Schema) -> dict[str, Any]:
    looked = _look(name, summary, answer)
    conflict = {"409": _json("The table is, or has meanwhile become, another", _REFUSED)}
    asked = {"required": True, "content": {"application/json": {"schema": body}}}
    return {**looked, "requestBody": asked, "responses": {**looked["responses"], **conflict}}


def _json(text: str, schema: _Schema) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
