"""What can go wrong in the catalog, as the product's errors with the texts that Iceberg clients match on.

    NotFound
    ├── NoSuchNamespace, NoSuchTable, NoSuchWarehouse
    Conflict
    ├── AlreadyExists       a name is taken
    ├── NamespaceNotEmpty   something still lives in the namespace
    └── CommitFailed        nothing was written: look at the current table, then try again

A client acts differently on each of them, so each is a kind. The wordings are part of Iceberg's protocol (the Java
client's tests assert them), which is why they do not follow the house form "expected=… got=…".
"""

from mainstem.model import Conflict, NotFound


class NoSuchNamespace(NotFound):
    """The namespace does not exist."""

    def __init__(self, namespace: tuple[str, ...]) -> None:
        super().__init__(f"Namespace does not exist: {'.'.join(namespace)}")


class NoSuchTable(NotFound):
    """The table does not exist."""

    def __init__(self, table: object) -> None:
        super().__init__(f"Table does not exist: {table}")


class NoSuchWarehouse(NotFound):
    """The warehouse that a client asked for is not the one that is served."""

    def __init__(self, warehouse: str) -> None:
        super().__init__(f"Warehouse does not exist: {warehouse}")


class AlreadyExists(Conflict):
    """The name is taken."""


class NamespaceNotEmpty(Conflict):
    """The namespace holds tables or other namespaces."""


class CommitFailed(Conflict):
    """The commit wrote nothing: the table is not what the client assumed."""
