"""A metadata document while a commit is being applied to it."""

from dataclasses import dataclass, field
from typing import Any

from mainstem.catalog.schemas import Document
from mainstem.model import Invalid

LAST_ADDED = -1


@dataclass(slots=True)
class Draft:
    """The next document of a table, and what the updates so far have done.

    `document` is a shallow copy: an update replaces a section (`document["refs"] = {...}`) and never changes one in
    place, because the base document is shared with readers.
    """

    document: Document
    now_ms: int
    changed: bool = False
    updated_ms: int | None = None
    schema_id_added: int | None = None
    spec_id_added: int | None = None
    order_id_added: int | None = None
    version_id_added: int | None = None
    snapshot_ids_added: set[int] = field(default_factory=set)
    snapshots_removed: bool = False

    def replace(self, section: str, value: Any) -> None:
        """Put a new value in the place of a section."""
        self.document[section] = value
        self.changed = True


def need(update: Document, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field that an update must have, of the type that it must be."""
    value = update.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind.__name__ if isinstance(kind, type) else "/".join(k.__name__ for k in kind)
        raise Invalid(f"update is incomplete. expected={name} ({wanted}) got={value!r:.200} in {update.get('action')}")
    return value
