"""Bodies of the Iceberg REST protocol.

Requests are typed only as far as the protocol itself goes. Schemas, specs, requirements and updates stay objects: a
client of a later spec may put into them what we do not know.
"""

import hashlib
from typing import Annotated, Any, TypeVar

import msgspec

from mainstem.model import Invalid

Object = dict[str, Any]


class CreateNamespaceRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Create a namespace."""

    namespace: list[str]
    properties: dict[str, str] | None = None


class UpdateNamespaceRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Set and remove properties of a namespace."""

    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class CreateTableRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Create a table, or stage its creation."""

    name: str
    schema: Object
    location: str | None = None
    partition_spec: Object | None = None
    write_order: Object | None = None
    stage_create: bool | None = None
    properties: dict[str, str] | None = None


class RegisterTableRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Take up a table whose metadata file exists."""

    name: str
    metadata_location: str
    overwrite: bool | None = None


class CreateViewRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Create a view."""

    name: str
    schema: Object
    view_version: Object
    location: str | None = None
    properties: dict[str, str] | None = None


class RegisterViewRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Take up a view whose metadata file exists."""

    name: str
    metadata_location: str


class CommitViewRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Change one view."""

    updates: list[Object]
    requirements: list[Object] | None = None
    identifier: "Identifier | None" = None


class Identifier(msgspec.Struct, frozen=True, rename="kebab"):
    """A table or view in a body."""

    namespace: list[str]
    name: str


class RenameTableRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Give a table or view another name."""

    source: Identifier
    destination: Identifier


class CommitRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Change one table."""

    requirements: list[Object]
    updates: list[Object]
    identifier: Identifier | None = None


class CommitTransactionRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Change several tables at once."""

    table_changes: list[CommitRequest]


class FetchTasksRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Ask for the file tasks of a plan task."""

    plan_task: str


class ReportMetricsRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """What a scan or a commit of a table took."""

    report_type: str
    table_name: str
    snapshot_id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    metrics: Object


class SignRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Have a request to object storage signed."""

    region: str
    uri: str
    method: str
    headers: dict[str, list[str]]
    properties: dict[str, str] | None = None
    body: str | None = None
    provider: str | None = None


class CreateGenericTableRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Enter a table of another format."""

    name: str
    format: str
    base_location: str
    doc: str | None = None
    properties: dict[str, str] | None = None


class UpdateGenericTableRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """Set properties of a table of another format."""

    properties: dict[str, str]


class Named(msgspec.Struct, frozen=True):
    """As much of a request that makes something as says what it is called."""

    name: str


class _LoadTableResponse(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    metadata: msgspec.Raw
    config: dict[str, str]
    metadata_location: str | None = None
    storage_credentials: list[Object] | None = None
    remote_signing_config: Object | None = None


Request = TypeVar("Request")


def decode(body: bytes, kind: type[Request]) -> Request:
    """Read a request's body."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Invalid(f"Malformed request: {error}") from error


def encode(body: object) -> bytes:
    """Write a response's body."""
    return msgspec.json.encode(body)


def encode_load_table(
    metadata_location: str | None,
    metadata: bytes,
    config: dict[str, str] | None = None,
    storage_credentials: list[Object] | None = None,
    *,
    is_signed: bool = False,
) -> bytes:
    """The answer to loading, creating and committing to a table. The metadata goes in as the bytes it already is."""
    return msgspec.json.encode(
        _LoadTableResponse(
            metadata=msgspec.Raw(metadata),
            config=config or {},
            metadata_location=metadata_location,
            storage_credentials=storage_credentials or None,
            remote_signing_config={} if is_signed else None,
        )
    )


def credentials(by_prefix: dict[str, dict[str, str]]) -> list[Object]:
    """Storage credentials in the protocol's form."""
    return [{"prefix": prefix, "config": config} for prefix, config in by_prefix.items()]


def encode_error(message: str, kind: str, code: int) -> bytes:
    """The body of every answer that is not a success."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": code}})


def etag(metadata_location: str, snapshots: str) -> str:
    """Names one version of a table as one client sees it: the snapshots shown are part of what it sees."""
    digest = hashlib.sha256(f"{metadata_location}\n{snapshots}".encode()).hexdigest()
    return f'W/"{digest[:32]}"'


def is_match(if_none_match: str, current: str) -> bool:
    """Whether a client's `If-None-Match` names the current version. It may be a list, and `*` is any version."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or current.removeprefix("W/") in known
