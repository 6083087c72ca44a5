"""What a write can be refused for, beside what `model.errors` has. A caller acts differently on each."""

from typing import Any

from mainstem.model.errors import Conflict, Invalid


class DuplicateKey(Conflict):
    """A document with this id, or with these values of a unique index, exists."""

    def __init__(self, namespace: str, index: str, pattern: dict[str, Any], values: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}: {_shown(value)}" for name, value in values.items())
        super().__init__(f"E11000 duplicate key error collection: {namespace} index: {index} dup key: {{ {shown} }}")
        self.pattern = pattern
        self.values = values


class WriteConflict(Conflict):
    """Another transaction, or a write after this one's snapshot, has the document: abort, and try again."""

    def __init__(self) -> None:
        super().__init__("Caused by :: Write conflict during plan execution and yielding is disabled.")


class NotValid(Invalid):
    """The document does not pass its collection's validator."""

    def __init__(self, details: dict[str, Any]) -> None:
        super().__init__("Document failed validation", reason="document_validation")
        self.details = details


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
