"""A metadata document while a commit is being applied to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainstem.catalog.metadata.schemas import Document
from mainstem.model import Invalid

LAST_ADDED = -1


@dataclass(slots=True)
class Draft:
    """The next document of a table, and what the updates so far have done.

    `document` is a shallow copy: an update replaces a section or appends to a copy of it, and never changes one of the
    base in place, because the base document is shared with readers.
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

    # Lists that were copied for this draft already, and the snapshots by their ids.
    _own: set[str] = field(default_factory=set)
    _snapshots: dict[int, Document] | None = None

    def replace(self, section: str, value: Any) -> None:
        """Put a new value in the place of a section."""
        self.document[section] = value
        self.changed = True
        self._own.discard(section)
        if section == "snapshots":
            self._snapshots = None

    def append(self, section: str, entry: Document) -> None:
        """Add to a list of the document. It is copied once, however much is added."""
        if section not in self._own:
            self.document[section] = list(self.document[section])
            self._own.add(section)
        self.document[section].append(entry)
        self.changed = True
        if section == "snapshots" and self._snapshots is not None:
            self._snapshots[entry["snapshot-id"]] = entry

    def snapshot(self, snapshot_id: int) -> Document | None:
        """The snapshot of an id, by an index that is made at the first question."""
        if self._snapshots is None:
            self._snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in self.document["snapshots"]}
        return self._snapshots.get(snapshot_id)


Action = Callable[[Draft, Document], None]


def run(draft: Draft, updates: Sequence[Document], actions: Mapping[str, Action]) -> None:
    """Apply updates in order, each by the function for its action."""
    for update in updates:
        action = update.get("action")
        step = actions.get(action) if isinstance(action, str) else None
        if step is None:
            raise Invalid(f"unknown update. expected=one of {sorted(actions)} got={action!r}")
        step(draft, update)


def need(update: Document, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field that an update must have, of the type that it must be."""
    value = update.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind.__name__ if isinstance(kind, type) else "/".join(k.__name__ for k in kind)
        raise Invalid(f"update is incomplete. expected={name} ({wanted}) got={value!r:.200} in {update.get('action')}")
    return value
