"""Settings that are changed while the server runs: checked, kept, told, applied, in this order.

Changes are lines of one file, each with its time and its author. So what is kept and what is audited can never differ:
the settings are what the configuration file says, with the lines laid over it one after another.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mainstem.admission import Principal
from mainstem.app.config import Config
from mainstem.doors.admin.config import ConfigChange, ConfigValues, ConfigView
from mainstem.model import Invalid, Overloaded
from mainstem.runtime.clock import Clock

CHANGES_FILE = "config-changes.jsonl"
FILE_BYTES_MAX = 16 * 1024 * 1024
SHOWN_MAX = 50
_MS = 1000


class _Place(NamedTuple):
    """Where a setting stands in the configuration, and how many of its units make one there."""

    section: str
    field: str
    units: int = 1


PLACES = {
    "flushThresholdEvents": _Place("log", "flush_events"),
    "flushThresholdBytes": _Place("log", "flush_bytes"),
    "flushThresholdMs": _Place("log", "flush_age_s", _MS),
    "flushIntervalMs": _Place("log", "flush_interval_s", _MS),
    "maxBufferSize": _Place("log", "buffer_bytes_max"),
    "segmentRetentionMs": _Place("log", "segment_retention_s", _MS),
    "maxConnections": _Place("server", "connections_max"),
    "connectionsPerSecond": _Place("limits", "connections_per_s"),
    "messagesPerSecond": _Place("limits", "messages_per_s"),
    "burstCapacity": _Place("limits", "burst"),
    "refillRate": _Place("limits", "refill_per_s"),
    "maxConnectionsPerSource": _Place("limits", "connections_per_source"),
    "maxConnectionsPerIp": _Place("limits", "connections_per_address"),
    "subnetRateLimitThreshold": _Place("limits", "connections_per_subnet"),
    "requestsPerSecond": _Place("limits", "requests_per_s"),
    "whitelistedIps": _Place("limits", "exempt"),
    "backpressureThreshold": _Place("limits", "pressure_threshold"),
    "baseRetryDelayMs": _Place("limits", "retry_ms_min"),
    "maxRetryDelayMs": _Place("limits", "retry_ms_max"),
    "maxPayloadSize": _Place("limits", "payload_bytes_max"),
    "maxEventSize": _Place("limits", "event_bytes_max"),
    "parquetCompression": _Place("parquet", "compression"),
    "parquetRowGroupSize": _Place("parquet", "row_group_rows"),
    "autoCompact": _Place("compaction", "auto"),
    "minFilesToCompact": _Place("compaction", "min_files"),
    "maxFilesToCompact": _Place("compaction", "max_files"),
    "targetFileSizeBytes": _Place("compaction", "target_file_bytes"),
    "compactionIntervalMs": _Place("compaction", "interval_s", _MS),
}


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    at_ms: int
    by: str
    address: str | None
    before: dict[str, Any]
    after: dict[str, Any]


class Tuner:
    """The configuration as it is now."""

    def __init__(self, base: Config, data: Path, clock: Clock) -> None:
        self._base = base
        self._clock = clock
        self._path = data / CHANGES_FILE
        self._lines = _read(self._path)
        self._lock = asyncio.Lock()
        self._overlay: dict[str, Any] = {}
        for line in self._lines:
            self._overlay = _laid_over(self._overlay, line.after)
        self.config = _with(base, self._overlay)
        self._listeners: list[Callable[[Config, Config], None]] = []

    def on_change(self, listener: Callable[[Config, Config], None]) -> None:
        """Call `listener` with the settings before and after each change."""
        self._listeners.append(listener)

    def view(self) -> ConfigView:
        """What `GET /v1/config/server` says."""
        return ConfigView(
            settings=msgspec.convert(_values(self.config), ConfigValues),
            changed=sorted(self._overlay),
            changes=[
                ConfigChange(at_ms=line.at_ms, by=line.by, address=line.address, before=line.before, after=line.after)
                for line in reversed(self._lines[-SHOWN_MAX:])
            ],
        )

    async def change(self, asked: dict[str, Any], principal: Principal, address: str | None) -> ConfigView:
        """Check a change, write it down, then let it take effect."""
        async with self._lock:
            overlay = _laid_over(self._overlay, asked)
            config = _with(self._base, overlay)
            before = {name: value for name, value in _values(self.config).items() if name in asked}
            line = _Line(self._clock.now_ms(), principal.sub, address, before, asked)
            await asyncio.to_thread(_append, self._path, msgspec.json.encode(line) + b"\n")
            self._lines.append(line)
            earlier = self.config
            self._overlay, self.config = overlay, config
            for listener in self._listeners:
                listener(earlier, config)
        return self.view()


def _laid_over(overlay: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**overlay, **after}.items() if value is not None}


def _values(config: Config) -> dict[str, Any]:
    values = {}
    for name, place in PLACES.items():
        value = getattr(getattr(config, place.section), place.field)
        values[name] = value if place.units == 1 else round(value * place.units)
    return values


def _with(base: Config, overlay: dict[str, Any]) -> Config:
    document = msgspec.to_builtins(base)
    for name, value in overlay.items():
        place = PLACES.get(name)
        if place is None:
            # Written by a later version: it means nothing here.
            continue
        document[place.section][place.field] = value if place.units == 1 else value / place.units
    try:
        config = msgspec.convert(document, Config)
    # A section that checks itself raises ValueError.
    except (msgspec.ValidationError, ValueError) as error:
        raise Invalid(f"the settings do not fit. reason={error}") from error
    if config.compaction.min_files > config.compaction.max_files:
        raise Invalid(
            "compaction would never begin. "
            f"expected=minFilesToCompact of at most {config.compaction.max_files} got={config.compaction.min_files}"
        )
    if config.log.flush_bytes > config.log.buffer_bytes_max:
        raise Invalid(
            "the buffer has to hold what one flush waits for. "
            f"expected=maxBufferSize of at least {config.log.flush_bytes} got={config.log.buffer_bytes_max}"
        )
    return config


def _read(path: Path) -> list[_Line]:
    """Every change that was kept. A last line that was cut off was never answered: it goes."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(data) - len(torn))
    try:
        return [msgspec.json.decode(line, type=_Line) for line in whole.splitlines() if line]
    except msgspec.DecodeError as error:
        raise Invalid(f"changes of the configuration cannot be read. file={path} reason={error}") from error


def _append(path: Path, line: bytes) -> None:
    try:
        with path.open("ab") as file:
            if file.tell() + len(line) > FILE_BYTES_MAX:
                raise Invalid(f"too many changes are kept. Move their file away, and restart. file={path}")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Overloaded(f"the change cannot be kept. reason={error.strerror}", retry_after_s=5.0) from error
