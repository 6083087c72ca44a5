"""Delta tables for Python, and where they are stored."""

from mainstem.formats.delta import (
    AsyncDeltaTable,
    Changed,
    DeltaTable,
    Find,
    LocalStorage,
    MemoryStorage,
    S3Storage,
    ScanStatistics,
    Snapshot,
    Storage,
    VersionMismatchError,
    create_storage,
)

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
