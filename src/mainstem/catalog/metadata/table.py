"""Table metadata as a document: the JSON object of Iceberg's table spec, never a model of our own.

A document is immutable once built: a change copies the levels that it touches. What this code does not know
(types, fields, whole sections of a newer spec) stays in the document as it came. This module owns reading a document
and building the first one of a table; `updates` owns changing one.
"""

from mainstem.catalog.metadata.schemas import Document, assign_fresh_ids, bind_fields
from mainstem.formats.iceberg.snapshots import MAIN, NO_SNAPSHOT, current_snapshot_id
from mainstem.model import Invalid

FORMAT_VERSION_DEFAULT = 2
FORMAT_VERSION_MAX = 3
PARTITION_ID_START = 1000
# v3 gives every row an id, and tables keep the next free one.
ROW_LINEAGE_VERSION = 3

# Properties by which clients ask for something at creation, or read something; they are not stored.
_RESERVED_PROPERTIES = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
# Engines read an absent codec as gzip; the Iceberg project stores zstd in every new table for the same reason.
_PROPERTY_DEFAULTS = {"write.parquet.compression-codec": "zstd"}


def new_document(
    *,
    schema: Document,
    spec: Document | None,
    order: Document | None,
    location: str,
    properties: dict[str, str],
    uuid: str,
    now_ms: int,
) -> Document:
    """The first metadata of a table, with column ids of our own numbering."""
    version = _format_version(properties)
    fresh, renumbered, last_column_id = assign_fresh_ids({**schema, "schema-id": 0})
    spec_fields = bind_fields((spec or {}).get("fields", []), renumbered, "partition")
    spec_fields = [{**field, "field-id": PARTITION_ID_START + i} for i, field in enumerate(spec_fields)]
    order_fields = bind_fields((order or {}).get("fields", []), renumbered, "sort")
    order_id = 1 if order_fields else 0
    document = empty_document(version, uuid) | {
        "location": location,
        "last-updated-ms": now_ms,
        "last-column-id": last_column_id,
        "current-schema-id": 0,
        "schemas": [fresh],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": spec_fields}],
        "last-partition-id": PARTITION_ID_START - 1 + len(spec_fields),
        "default-sort-order-id": order_id,
        "sort-orders": [{"order-id": order_id, "fields": order_fields}],
        "properties": _PROPERTY_DEFAULTS | {k: v for k, v in properties.items() if k not in _RESERVED_PROPERTIES},
    }
    return fit_format_version(document)


def empty_document(version: int, uuid: str) -> Document:
    """What the updates of a create transaction start from."""
    check_format_version(version)
    document: Document = {
        "format-version": version,
        "table-uuid": uuid,
        "last-sequence-number": 0,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": -1,
        "partition-specs": [],
        "last-partition-id": PARTITION_ID_START - 1,
        "default-sort-order-id": -1,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": NO_SNAPSHOT,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version >= ROW_LINEAGE_VERSION:
        document["next-row-id"] = 0
    return document


def normalized(document: Document) -> Document:
    """A copy with the sections that older writers leave out, so that the rest of the catalog need not ask.

    Nothing is taken away. Format v1 kept one schema and one spec where there are lists today.
    """
    doc = dict(document)
    if "schemas" not in doc:
        schema = {"schema-id": 0, **doc["schema"]}
        doc["schemas"], doc["current-schema-id"] = [schema], schema["schema-id"]
    if "partition-specs" not in doc:
        fields = [
            {"field-id": PARTITION_ID_START + i, **field} for i, field in enumerate(doc.get("partition-spec", []))
        ]
        doc["partition-specs"], doc["default-spec-id"] = [{"spec-id": 0, "fields": fields}], 0
    if "last-partition-id" not in doc:
        ids = [f["field-id"] for spec in doc["partition-specs"] for f in spec["fields"] if "field-id" in f]
        doc["last-partition-id"] = max(ids, default=PARTITION_ID_START - 1)
    if "sort-orders" not in doc:
        doc["sort-orders"], doc["default-sort-order-id"] = [{"order-id": 0, "fields": []}], 0
    for section in ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics"):
        if doc.get(section) is None:
            doc[section] = []
    if doc.get("properties") is None:
        doc["properties"] = {}
    doc.setdefault("last-sequence-number", 0)
    if doc.get("refs") is None:
        current = current_snapshot_id(doc)
        doc["refs"] = {} if current is None else {MAIN: {"snapshot-id": current, "type": "branch"}}
    if doc["format-version"] >= ROW_LINEAGE_VERSION:
        doc.setdefault("next-row-id", 0)
    return doc


def fit_format_version(document: Document) -> Document:
    """Give a document the fields that its format version has, and take away those that it replaced."""
    doc = dict(document)
    if doc["format-version"] == 1:
        # Readers of v1 look for the current schema and spec in their old places.
        doc["schema"] = by_id(doc["schemas"], "schema-id", doc["current-schema-id"])
        spec = by_id(doc["partition-specs"], "spec-id", doc["default-spec-id"])
        doc["partition-spec"] = (spec or {}).get("fields", [])
        doc.pop("last-sequence-number", None)
    else:
        doc.pop("schema", None)
        doc.pop("partition-spec", None)
        doc.setdefault("last-sequence-number", 0)
    if doc["format-version"] >= ROW_LINEAGE_VERSION:
        doc.setdefault("next-row-id", 0)
        if doc.get("current-snapshot-id") == NO_SNAPSHOT:
            doc["current-snapshot-id"] = None
    return doc


def check_document(document: object, place: str) -> Document:
    """Refuse a metadata file that is not one: what every reader of it relies on must be there."""
    if not isinstance(document, dict):
        raise Invalid(f"metadata is not an object. expected=an object got={type(document).__name__} at {place}")
    version = document.get("format-version")
    if not isinstance(version, int) or version < 1:
        raise Invalid(f"metadata has no format version. expected=1 or more got={version!r} at {place}")
    if not isinstance(document.get("location"), str):
        raise Invalid(f"metadata has no location. expected=a string got={document.get('location')!r} at {place}")
    if not document.get("schemas") and not document.get("schema"):
        raise Invalid(f"metadata has no schema. expected=schemas or schema got=neither at {place}")
    return document


def check_format_version(version: object) -> int:
    """Refuse a format version that the catalog has no rules for."""
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= FORMAT_VERSION_MAX:
        raise Invalid(f"Unsupported format version: v{version} (supported: v{FORMAT_VERSION_MAX})")
    return version


def by_id(entries: list[Document], key: str, wanted: object) -> Document | None:
    """The entry of a list whose id is the wanted one."""
    return next((entry for entry in entries if entry.get(key) == wanted), None)


def with_referenced_snapshots_only(document: Document) -> Document:
    """The document without the snapshots that no branch or tag points to, for clients that load those lazily."""
    wanted = {ref["snapshot-id"] for ref in (document.get("refs") or {}).values()}
    kept = [s for s in document.get("snapshots") or [] if s["snapshot-id"] in wanted]
    return {**document, "snapshots": kept}


def _format_version(properties: dict[str, str]) -> int:
    text = properties.get("format-version", str(FORMAT_VERSION_DEFAULT))
    return check_format_version(int(text) if text.isdecimal() else text)
