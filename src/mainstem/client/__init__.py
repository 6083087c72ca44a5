"""The Python client."""

from mainstem.client.backoff import Backoff
from mainstem.client.cdc import CdcClient
from mainstem.client.changes import delete, insert, read, update
from mainstem.client.receipt import Durable, Receipt

__all__ = ["Backoff", "CdcClient", "Durable", "Receipt", "delete", "insert", "read", "update"]
