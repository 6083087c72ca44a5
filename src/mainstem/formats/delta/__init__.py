"""Delta tables for Python, and where they are stored.

Names are loaded when they are asked for: an executor's Python worker needs a few modules of this package, and would
otherwise hold pandas and all of the query languages in memory with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.formats.delta.asynchronous import AsyncDeltaTable
    from mainstem.formats.delta.errors import VersionMismatchError
    from mainstem.formats.delta.files.zones import ScanStatistics
    from mainstem.formats.delta.find import Find
    from mainstem.formats.delta.replacing import Changed
    from mainstem.formats.delta.snapshot import Snapshot
    from mainstem.formats.delta.storage import LocalStorage, MemoryStorage, S3Storage, Storage, create_storage
    from mainstem.formats.delta.table import DeltaTable

__all__ = [
    "AsyncDeltaTable",
    "Changed",
    "DeltaTable",
    "Find",
    "LocalStorage",
    "MemoryStorage",
    "S3Storage",
    "ScanStatistics",
    "Snapshot",
    "Storage",
    "VersionMismatchError",
    "create_storage",
]

_MODULES = {
    "AsyncDeltaTable": "asynchronous",
    "Changed": "replacing",
    "DeltaTable": "table",
    "Find": "find",
    "LocalStorage": "storage",
    "MemoryStorage": "storage",
    "S3Storage": "storage",
    "ScanStatistics": "files.zones",
    "Snapshot": "snapshot",
    "Storage": "storage",
    "VersionMismatchError": "errors",
    "create_storage": "storage",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
