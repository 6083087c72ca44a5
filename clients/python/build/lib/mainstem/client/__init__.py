"""The Python client."""

from mainstem.client.analyst import Analyst
from mainstem.client.cdc import CdcClient
from mainstem.client.changes import delete, insert, read, update
from mainstem.client.duck import connect_duckdb
from mainstem.client.receipt import Durable, Receipt
from mainstem.client.sync import (
    AsyncLocalDB,
    HttpTransport,
    LocalDB,
    LocalTransport,
    MemoryGateway,
    SyncCoordinator,
    SyncThread,
    SyncTracker,
    Table,
    WebSocketTransport,
)
from mainstem.runtime.backoff import Backoff

__all__ = [
    "Analyst",
    "AsyncLocalDB",
    "Backoff",
    "CdcClient",
    "Durable",
    "HttpTransport",
    "LocalDB",
    "LocalTransport",
    "MemoryGateway",
    "Receipt",
    "SyncCoordinator",
    "SyncThread",
    "SyncTracker",
    "Table",
    "WebSocketTransport",
    "connect_duckdb",
    "delete",
    "insert",
    "read",
    "update",
]
