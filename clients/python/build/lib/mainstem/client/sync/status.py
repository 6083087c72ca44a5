"""What an app shows of the sync."""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Where the sync stands."""

    # Not started.
    STOPPED = "stopped"
    SYNCING = "syncing"
    # All is in step.
    IDLE = "idle"
    # The last try failed and the next one comes by itself.
    RETRYING = "retrying"


class SyncStatus(msgspec.Struct, frozen=True):
    """The sync at one moment."""

    phase: Phase = Phase.STOPPED
    # Whether the server answered last; None before the first try.
    online: bool | None = None
    pending: int = 0
    dead_letters: int = 0
    last_sync_ms: int | None = None
    retry_at_ms: int | None = None
    # Why the last try failed: the error's class and its words.
    error: str | None = None
