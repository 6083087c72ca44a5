"""Delta tables for Python, and where they are stored."""

from mainstem.formats.delta.asynchronous import AsyncDeltaTable
from mainstem.formats.delta.errors import VersionMismatchError
from mainstem.formats.delta.find import Find
from mainstem.formats.delta.replacing import Changed
from mainstem.formats.delta.snapshot import Snapshot
from mainstem.formats.delta.storage import LocalStorage, MemoryStorage, S3Storage, Storage, create_storage
from mainstem.formats.delta.table import DeltaTable
from mainstem.formats.delta.zones import ScanStatistics

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
