"""The Python client."""

from mainstem.client.backoff import Backoff
from mainstem.client.cdc import CdcClient
from mainstem.client.changes import delete, insert, read, update
from mainstem.client.duck import connect_duckdb
from mainstem.client.receipt import Durable, Receipt

__all__ = ["Backoff", "CdcClient", "Durable", "Receipt", "connect_duckdb", "delete", "insert", "read", "update"]
