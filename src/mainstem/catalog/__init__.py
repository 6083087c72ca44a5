"""The Iceberg catalog: REST semantics over metadata documents and a store of pointers."""

from mainstem.catalog.catalog import (
    WAREHOUSE,
    Catalog,
    Commit,
    Committed,
    Loaded,
    NewTable,
    TableState,
)
from mainstem.catalog.errors import (
    AlreadyExists,
    CommitFailed,
    IllegalArgument,
    NamespaceNotEmpty,
    NoSuchFunction,
    NoSuchGenericTable,
    NoSuchNamespace,
    NoSuchPlan,
    NoSuchPlanTask,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    Unsupported,
)
from mainstem.catalog.fence import ROLLBACK_PROPERTY, Marks
from mainstem.catalog.generic import GenericTable
from mainstem.catalog.names import Namespace, TableIdent
from mainstem.catalog.sqlite_store import SqliteStore
from mainstem.catalog.store import Store
from mainstem.catalog.views import LoadedView, NewView

__all__ = [
    "ROLLBACK_PROPERTY",
    "WAREHOUSE",
    "AlreadyExists",
    "Catalog",
    "Commit",
    "CommitFailed",
    "Committed",
    "GenericTable",
    "IllegalArgument",
    "Loaded",
    "LoadedView",
    "Marks",
    "Namespace",
    "NamespaceNotEmpty",
    "NewTable",
    "NewView",
    "NoSuchFunction",
    "NoSuchGenericTable",
    "NoSuchNamespace",
    "NoSuchPlan",
    "NoSuchPlanTask",
    "NoSuchTable",
    "NoSuchView",
    "NoSuchWarehouse",
    "SqliteStore",
    "Store",
    "TableIdent",
    "TableState",
    "Unsupported",
]
