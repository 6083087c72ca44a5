"""Offline-first data: a local database that the app reads and writes at once, in step with a gateway."""

from mainstem.client.sync.async_db import AsyncLocalDB
from mainstem.client.sync.coordinator import DeadLetterEvent, Progress, SyncCoordinator
from mainstem.client.sync.errors import ClockDrift, CursorExpired, Refused, Unreachable
from mainstem.client.sync.live import LiveQuery, Watch
from mainstem.client.sync.local_db import Changed, LocalDB, Merged, RowView
from mainstem.client.sync.records import DeadLetter, MergedMark
from mainstem.client.sync.replica import LocalWrite
from mainstem.client.sync.schema import ColumnType, Table
from mainstem.client.sync.status import Phase, SyncStatus
from mainstem.client.sync.thread import SyncThread
from mainstem.client.sync.tracker import SyncTracker
from mainstem.client.sync.transports.http import HttpTransport
from mainstem.client.sync.transports.local import LocalTransport
from mainstem.client.sync.transports.memory_gateway import MemoryGateway
from mainstem.client.sync.transports.transport import Transport
from mainstem.client.sync.transports.websocket import WebSocketTransport
from mainstem.wire.sync import Op

__all__ = [
    "AsyncLocalDB",
    "Changed",
    "ClockDrift",
    "ColumnType",
    "CursorExpired",
    "DeadLetter",
    "DeadLetterEvent",
    "HttpTransport",
    "LiveQuery",
    "LocalDB",
    "LocalTransport",
    "LocalWrite",
    "MemoryGateway",
    "Merged",
    "MergedMark",
    "Op",
    "Phase",
    "Progress",
    "Refused",
    "RowView",
    "SyncCoordinator",
    "SyncStatus",
    "SyncThread",
    "SyncTracker",
    "Table",
    "Transport",
    "Unreachable",
    "Watch",
    "WebSocketTransport",
]
