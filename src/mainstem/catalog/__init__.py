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
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchWarehouse,
)
from mainstem.catalog.fence import POSITION_KEY, ROLLBACK_PROPERTY
from mainstem.catalog.names import Namespace, TableIdent
from mainstem.catalog.store import SqliteStore, Store

__all__ = [
    "POSITION_KEY",
    "ROLLBACK_PROPERTY",
    "WAREHOUSE",
    "AlreadyExists",
    "Catalog",
    "Commit",
    "CommitFailed",
    "Committed",
    "Loaded",
    "Namespace",
    "NamespaceNotEmpty",
    "NewTable",
    "NoSuchNamespace",
    "NoSuchTable",
    "NoSuchWarehouse",
    "SqliteStore",
    "Store",
    "TableIdent",
    "TableState",
]
