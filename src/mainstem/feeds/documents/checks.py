"""What a document and a collection's name must be like before they are written."""

from collections.abc import Callable
from typing import Any

from bson.objectid import ObjectId

from mainstem.model.errors import Invalid
from mainstem.model.names import RULES_TABLE, TableName, parse_table_name
from mainstem.wire.mongo.frames import DOCUMENT_BYTES_MAX, decode_document, encode_document


def check_name(database: str, name: str) -> TableName:
    """Refuse a name that no table can have. Raises Invalid (`bad_namespace`)."""
    if not name or name.startswith(".") or name.endswith(".") or "$" in name or name.startswith("system."):
        raise Invalid(f"Invalid collection name: {name}", reason="bad_namespace")
    if not database or any(each in database for each in '/\\. "$\x00'):
        raise Invalid(f"Invalid database name: '{database}'", reason="bad_namespace")
    if is_reserved(name):
        raise Invalid(f"Invalid collection name: {name} is written by the server alone", reason="bad_namespace")
    try:
        return parse_table_name(f"{database}.{name}")
    except Invalid as error:
        raise Invalid(f"Invalid namespace specified '{database}.{name}': {error}", reason="bad_namespace") from error


def is_reserved(name: str) -> bool:
    """Whether a table is no collection, though it is there: what describes collections, and the rules of sync."""
    return name.startswith("system.") or name.rpartition(".")[2] == RULES_TABLE


def check_size(document: bytes) -> None:
    """Refuse a document that is too large."""
    if len(document) > DOCUMENT_BYTES_MAX:
        raise Invalid(
            f"BSONObj size: {len(document)} is invalid. Size must be between 0 and {DOCUMENT_BYTES_MAX} (16MB)",
            reason="too_large",
        )


def encode_checked(values: Any) -> bytes:
    """A document that was computed, as BSON. Refuses one that is too large, or that could not be read back: nested too
    deep by an expression, or with `$ref` beside what is no reference. Raises Invalid."""
    document = encode_document(values)
    check_size(document)
    decode_document(document)
    return document


def with_id(document: bytes, values: dict[str, Any], new_id: Callable[[], ObjectId]) -> tuple[bytes, dict[str, Any]]:
    """A document as it is stored: its id is there, comes first, and is of a type that ids may have."""
    check_size(document)
    if "_id" not in values:
        values = {"_id": new_id(), **values}
    elif document[4:9] == _id_first(document):
        _check_id(values["_id"])
        return document, values
    else:
        values = {"_id": values["_id"], **values}
    _check_id(values["_id"])
    document = encode_document(values)
    check_size(document)
    return document, values


def _id_first(document: bytes) -> bytes:
    return document[4:5] + b"_id\x00"


def _check_id(identity: Any) -> None:
    if isinstance(identity, list) or type(identity).__name__ == "Regex":
        kind = "array" if isinstance(identity, list) else "regex"
        raise Invalid(f"The '_id' value cannot be of type {kind}", reason="bad_id")
    if isinstance(identity, dict) and any(name.startswith("$") for name in identity):
        raise Invalid(
            f"_id fields may not contain '$'-prefixed fields: {next(iter(identity))} is not valid for storage.",
            reason="bad_id",
        )
