"""What the catalog takes and gives: frozen values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mainstem.catalog.metadata.documents import Stored
from mainstem.catalog.metadata.schemas import Document
from mainstem.catalog.names import TableIdent
from mainstem.model import TableName
from mainstem.tables.marks import Marks


@dataclass(frozen=True, slots=True)
class Committed:
    """What listeners learn of a commit, after it is durable."""

    table: TableName
    snapshot_id: int | None
    marks: Marks
    metadata_location: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as a client gets it. `metadata_location` is None while a create is only staged."""

    metadata_location: str | None
    stored: Stored


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A table's metadata file as it stands, to be passed on unread."""

    metadata_location: str | None
    # The table's folder.
    location: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class TableState:
    """A table in the status of the product."""

    table: TableName
    snapshot_id: int | None
    marks: Marks


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a client asks for when it creates a table."""

    schema: Document
    spec: Document | None = None
    order: Document | None = None
    location: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """One table's part of a commit."""

    ident: TableIdent
    requirements: Sequence[Document]
    updates: Sequence[Document]
