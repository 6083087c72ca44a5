"""The Iceberg catalog: REST semantics over metadata documents and a store of pointers."""

from mainstem.catalog.catalog import Catalog
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
from mainstem.catalog.generic import GenericTable
from mainstem.catalog.names import TableIdent
from mainstem.catalog.stores.sqlite import SqliteStore
from mainstem.catalog.stores.store import Store
from mainstem.catalog.values import Commit, Committed, NewTable
from mainstem.catalog.views import LoadedView, NewView
from mainstem.tables.marks import Marks

__all__ = [
    "AlreadyExists",
    "Catalog",
    "Commit",
    "CommitFailed",
    "Committed",
    "GenericTable",
    "IllegalArgument",
    "LoadedView",
    "Marks",
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
    "Unsupported",
]
