"""What can go wrong in the catalog, as the product's errors with the texts that Iceberg clients match on.

    NotFound
    ├── NoSuchNamespace, NoSuchTable, NoSuchView, NoSuchGenericTable, NoSuchFunction, NoSuchWarehouse
    └── NoSuchPlan, NoSuchPlanTask
    Conflict
    ├── AlreadyExists       a name is taken
    ├── NamespaceNotEmpty   something still lives in the namespace
    └── CommitFailed        nothing was written: look at the current table, then try again
    Invalid
    └── IllegalArgument     the request is well-formed, but what it says makes no sense
    MainstemError
    └── Unsupported         the table has something that this operation does not know

A client acts differently on each of them, so each is a kind. The wordings are part of Iceberg's protocol (the Java
client's tests assert them), which is why they do not follow the house form "expected=… got=…".
"""

from mainstem.model import Conflict, Invalid, MainstemError, NotFound


class NoSuchNamespace(NotFound):
    """The namespace does not exist."""

    def __init__(self, namespace: tuple[str, ...]) -> None:
        super().__init__(f"Namespace does not exist: {'.'.join(namespace)}")


class NoSuchTable(NotFound):
    """The table does not exist."""

    def __init__(self, table: object, why: str = "") -> None:
        super().__init__(f"Table does not exist: {table}{why}")


class NoSuchView(NotFound):
    """The view does not exist."""

    def __init__(self, view: object) -> None:
        super().__init__(f"View does not exist: {view}")


class NoSuchGenericTable(NotFound):
    """There is no table of another format by that name."""

    def __init__(self, table: object) -> None:
        super().__init__(f"Generic table does not exist: {table}")


class NoSuchFunction(NotFound):
    """The function does not exist."""

    def __init__(self, function: object) -> None:
        super().__init__(f"Function does not exist: {function}")


class NoSuchPlan(NotFound):
    """The plan is not, or no longer, known."""

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"Plan id does not exist: {plan_id:.100}")


class NoSuchPlanTask(NotFound):
    """The plan task is not one of the table's."""

    def __init__(self, task: str) -> None:
        super().__init__(f"Plan task does not exist: {task:.100}")


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


class IllegalArgument(Invalid):
    """What a well-formed request says makes no sense. Java clients raise it again as the exception of that name."""


class Unsupported(MainstemError):
    """The operation does not know what it found in the table; the client has to do it by itself."""
