"""Delta tables for Python, and where they are stored."""

from mainstem.client.delta.asynchronous import AsyncDeltaTable
from mainstem.client.delta.errors import VersionMismatchError
from mainstem.client.delta.find import Find
from mainstem.client.delta.replacing import Changed
from mainstem.client.delta.snapshot import Snapshot
from mainstem.client.delta.storage import LocalStorage, MemoryStorage, S3Storage, Storage, create_storage
from mainstem.client.delta.table import DeltaTable
from mainstem.client.delta.zones import ScanStatistics

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
