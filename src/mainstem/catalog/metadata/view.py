"""View metadata as a document, and the rules by which commits change it. Pure: the time and ids are arguments.

A view is a list of versions, each of them SQL in one or more dialects, with the schema that the SQL yields. As with
tables, what this code does not know stays in the document as it came, and an update that it does not know is refused.
"""

from collections.abc import Callable, Sequence

from mainstem.catalog.errors import CommitFailed, IllegalArgument
from mainstem.catalog.metadata.draft import LAST_ADDED, Draft, need, run
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.metadata.table import by_id
from mainstem.catalog.metadata.updates_properties import remove_properties, set_location, set_properties
from mainstem.catalog.metadata.updates_schema import same_schema
from mainstem.model import Invalid

FORMAT_VERSION = 1
HISTORY_PROPERTY = "version.history.num-entries"
HISTORY_DEFAULT = 10
DROP_DIALECT_PROPERTY = "replace.drop-dialect.allowed"


def new_view(
    *, schema: Document, version: Document, location: str, properties: dict[str, str], uuid: str, now_ms: int
) -> Document:
    """The first metadata of a view."""
    draft = Draft(_empty(uuid, location, properties), now_ms)
    _add_schema(draft, {"schema": schema})
    # Whatever schema id the client wrote, the schema that came with the version is meant.
    _add_version(draft, {"view-version": {**version, "schema-id": LAST_ADDED}})
    _set_current_version(draft, {"view-version-id": LAST_ADDED})
    return draft.document


def _empty(uuid: str, location: str, properties: dict[str, str]) -> Document:
    return {
        "view-uuid": uuid,
        "format-version": FORMAT_VERSION,
        "location": location,
        "schemas": [],
        "current-version-id": -1,
        "versions": [],
        "version-log": [],
        "properties": dict(properties),
    }


def check_view(document: object, place: str) -> Document:
    """Refuse a metadata file that is not a view's, and add what older writers leave out."""
    if not isinstance(document, dict) or not isinstance(document.get("view-uuid"), str):
        raise Invalid(f"metadata is not a view's. expected=view-uuid got=none at {place}")
    for key in ("versions", "version-log", "schemas"):
        if not isinstance(document.get(key), list):
            raise Invalid(f"view metadata is incomplete. expected={key} got={document.get(key)!r:.80} at {place}")
    if not isinstance(document.get("location"), str):
        raise Invalid(f"view metadata has no location. expected=a string got=none at {place}")
    return {**document, "properties": document.get("properties") or {}}


def check_requirements(requirements: Sequence[Document], document: Document) -> None:
    """Raise unless the view is what the client says it is."""
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise Invalid(f"unknown requirement. expected=assert-view-uuid got={requirement.get('type')!r}")
        wanted, found = requirement.get("uuid"), document["view-uuid"]
        if str(wanted).lower() != str(found).lower():
            raise CommitFailed(f"Requirement failed: view UUID does not match: expected {wanted} != {found}")


def apply(base: Document, updates: Sequence[Document], *, now_ms: int) -> Document:
    """The document after the updates. The very same object where they change nothing."""
    draft = Draft(dict(base), now_ms)
    run(draft, updates, _ACTIONS)
    if not draft.changed:
        return base
    _keep_dialects(base, draft.document)
    _expire_versions(draft, {version["version-id"] for version in base["versions"]})
    return draft.document


def _add_schema(draft: Draft, update: Document) -> None:
    schema, schemas = need(update, "schema", dict), draft.document["schemas"]
    known = next((s for s in schemas if same_schema(s, schema)), None)
    if known is None:
        known = {**schema, "schema-id": max((s["schema-id"] for s in schemas), default=-1) + 1}
        draft.replace("schemas", [*schemas, known])
    draft.schema_id_added = known["schema-id"]


def _add_version(draft: Draft, update: Document) -> None:
    doc, version = draft.document, dict(need(update, "view-version", dict))
    need(version, "timestamp-ms", int)
    if need(version, "schema-id", int) == LAST_ADDED:
        if draft.schema_id_added is None:
            raise IllegalArgument("Cannot set last added schema: no schema has been added")
        version["schema-id"] = draft.schema_id_added
    if by_id(doc["schemas"], "schema-id", version["schema-id"]) is None:
        raise IllegalArgument(f"Cannot add version with unknown schema: {version['schema-id']}")
    _dialects(version)
    known = next((v for v in doc["versions"] if _behaviour(v) == _behaviour(version)), None)
    if known is None:
        ids = [v["version-id"] for v in doc["versions"]]
        version["version-id"] = max([need(version, "version-id", int), *(number + 1 for number in ids)])
        draft.replace("versions", [*doc["versions"], version])
        known = version
    draft.version_id_added = known["version-id"]


def _set_current_version(draft: Draft, update: Document) -> None:
    doc, version_id = draft.document, need(update, "view-version-id", int)
    if version_id == LAST_ADDED:
        if draft.version_id_added is None:
            raise IllegalArgument("Cannot set last version id: no current version id has been set")
        version_id = draft.version_id_added
    version = by_id(doc["versions"], "version-id", version_id)
    if version is None:
        raise IllegalArgument(f"Cannot set current version to unknown version: {version_id}")
    if version_id == doc["current-version-id"]:
        return
    # A version that comes back after others is current from now on, not from when it was written.
    is_new = not any(entry["version-id"] == version_id for entry in doc["version-log"])
    entry = {"timestamp-ms": version["timestamp-ms"] if is_new else draft.now_ms, "version-id": version_id}
    draft.replace("current-version-id", version_id)
    draft.replace("version-log", [*doc["version-log"], entry])


def _assign_uuid(draft: Draft, update: Document) -> None:
    if need(update, "uuid", str).lower() != str(draft.document["view-uuid"]).lower():
        raise IllegalArgument("Cannot reassign uuid")


def _upgrade(_draft: Draft, update: Document) -> None:
    if need(update, "format-version", int) != FORMAT_VERSION:
        raise IllegalArgument(f"Unsupported format version: {update['format-version']}")


def _behaviour(version: Document) -> Document:
    return {key: value for key, value in version.items() if key not in ("version-id", "timestamp-ms")}


def _dialects(version: Document) -> set[str]:
    found: set[str] = set()
    for representation in need(version, "representations", list):
        dialect = representation.get("dialect") if isinstance(representation, dict) else None
        if not isinstance(dialect, str):
            raise Invalid(f"view version is incomplete. expected=type, sql and dialect got={representation!r:.200}")
        if dialect.lower() in found:
            raise IllegalArgument(f"Invalid view version: Cannot add multiple queries for dialect {dialect.lower()}")
        found.add(dialect.lower())
    return found


def _keep_dialects(base: Document, after: Document) -> None:
    """An engine that could read the view must still be able to, unless the view's owner says otherwise."""
    if str(after["properties"].get(DROP_DIALECT_PROPERTY, "")).lower() == "true":
        return
    old = by_id(base["versions"], "version-id", base["current-version-id"])
    new = by_id(after["versions"], "version-id", after["current-version-id"])
    if old is None or new is None or old is new:
        return
    before, now = _dialects(old), _dialects(new)
    if not before <= now:
        raise IllegalArgument(
            f"Cannot replace due to loss of view dialects ({DROP_DIALECT_PROPERTY}=false):\n"
            f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(now)}"
        )


def _expire_versions(draft: Draft, ids_before: set[int]) -> None:
    doc = draft.document
    text = str(doc["properties"].get(HISTORY_PROPERTY, ""))
    count_max = max(1, int(text)) if text.isdecimal() else HISTORY_DEFAULT
    added = {version["version-id"] for version in doc["versions"]} - ids_before
    count_max = max(count_max, len(added))
    if len(doc["versions"]) <= count_max:
        return
    newest = sorted((version["version-id"] for version in doc["versions"]), reverse=True)
    current = doc["current-version-id"]
    kept = {current, *[number for number in newest if number != current][: count_max - 1]}
    draft.replace("versions", [version for version in doc["versions"] if version["version-id"] in kept])
    log: list[Document] = []
    for entry in doc["version-log"]:
        # A log with a hole would tell the wrong version for the time of the hole.
        log = [*log, entry] if entry["version-id"] in kept else []
    draft.replace("version-log", log)


_ACTIONS: dict[str, Callable[[Draft, Document], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-location": set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current_version,
}
