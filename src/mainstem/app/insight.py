"""What an operator looks at, gathered from the parts: see `doors.insight` for what is told."""

import asyncio
import os
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from mainstem.admission import Principal
from mainstem.app.pages.describing import SNAPSHOTS_SHOWN_MAX, Rows, ShownTable, current_of, summary_of, view_of
from mainstem.catalog import Catalog, TableIdent
from mainstem.catalog.scan.live_rows import LiveRows
from mainstem.doors.admin import insight as door
from mainstem.doors.admin.server import Status
from mainstem.log import Log
from mainstem.maintenance.answers import TableFailure
from mainstem.maintenance.each_table import failure
from mainstem.model import NotFound, TableName
from mainstem.query.ports import LoadedTable
from mainstem.runtime.clock import Clock
from mainstem.runtime.logs import RecentErrors
from mainstem.runtime.memory import rss_bytes
from mainstem.tables.live_rows import rows_added
from mainstem.tables.maintenance import count_of

T = TypeVar("T")

BUSY = 0.7
FULL = 0.95
# Commits of a Delta table that are looked through for the last hour.
COMMITS_COUNTED_MAX = 100
HOUR_MS = 3_600_000

_ADVICE = {
    "backlog": "the tables are behind: give the pipeline more cores or memory, or slow the producers down",
    "connections": "raise maxConnections, or put another gateway beside this one",
    "pipeline heap": "raise [pipeline] driver_memory",
    "descriptors": "raise the limit on open files (ulimit -n)",
    "memory": "the machine is short of memory",
}


class Observer:
    """Looks, and changes nothing."""

    def __init__(
        self,
        catalog: Catalog,
        log: Log,
        clock: Clock,
        status: Callable[[], Status],
        in_delta: Callable[[TableName], LoadedTable | None] = lambda _: None,
        *,
        bounds: Callable[[], dict[str, tuple[int, int]]] = dict,
        recent: RecentErrors | None = None,
    ) -> None:
        """`in_delta` loads a table of ours that is kept in Delta; None for every other. `bounds`: used and limit."""
        self._catalog = catalog
        self._live_rows = LiveRows(catalog.inventories)
        self.in_delta = in_delta
        self._log = log
        self._clock = clock
        self._status = status
        self._recent = recent
        self._bounds = bounds

    def scaling(self) -> door.Scaling:
        """How much of each bound is in use."""
        status = self._status()
        measured = {**self._bounds(), **_machine_bounds(status)}
        bounds = [
            door.Bound(name=name, used=used, limit=limit, utilization=round(min(1.0, used / limit), 4))
            for name, (used, limit) in measured.items()
            if limit > 0
        ]
        fullest = max((bound.utilization for bound in bounds), default=0.0)
        advice = [_ADVICE[bound.name] for bound in bounds if bound.utilization > BUSY and bound.name in _ADVICE]
        if status.pipeline.state == "down":
            advice.insert(0, "the pipeline is down: see pipeline.lastExit in /status")
        try:
            load = round(os.getloadavg()[0], 2)
        except OSError:
            load = None
        return door.Scaling(
            state="full" if fullest > FULL else "busy" if fullest > BUSY else "ok",
            gateways=1,
            pipelines=int(status.pipeline.running),
            cores=os.cpu_count() or 1,
            load_average=load,
            bounds=bounds,
            lag_changes=status.buffer.event_count,
            advice=advice,
        )

    def memory(self) -> door.Memory:
        """Memory, by process."""
        stats = self._log.stats()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        gateway = {
            "residentBytes": rss_bytes(),
            "residentBytesMax": peak,
            "logPendingBytes": stats.pending_bytes,
            "catalogCachedBytes": self._catalog.cached_bytes,
        }
        pipeline = {_camel(name): value for name, value in self._status().pipeline.memory.items()}
        return door.Memory(gateway=gateway, pipeline=pipeline, machine=_machine_memory())

    async def writes(self, principal: Principal, limit: int) -> door.Writes:
        """What was written, table by table."""
        names, truncated = await self._names(principal, limit)
        since_ms = self._clock.now_ms() - HOUR_MS

        def view(each: ShownTable) -> door.TableWrites:
            current = current_of(each.document)
            rows = 0 if current is None else self.rows(each, [current])[current["snapshot-id"]]
            return _writes(each, since_ms, rows)

        found, failures = await self._look(names, COMMITS_COUNTED_MAX, view)
        stats = self._log.stats()
        return door.Writes(
            tables=found,
            truncated=truncated,
            segments=stats.segments if principal.is_unbounded else None,
            segment_bytes=stats.segment_bytes if principal.is_unbounded else None,
            rows=sum(table.rows or 0 for table in found),
            bytes=sum(table.bytes for table in found),
            data_files=sum(table.data_files for table in found),
            failures=failures,
        )

    async def tables(self, principal: Principal, limit: int) -> door.Tables:
        """The tables with their schemas and latest snapshots."""
        names, truncated = await self._names(principal, limit)
        lags = self._status().tables

        def view(each: ShownTable) -> door.TableView:
            lag = lags.get(str(each.name))
            rows = self.rows(each, each.shown())
            return view_of(each, self._log.lineage, rows, lag.lag_changes if lag else None, lag.error if lag else None)

        found, failures = await self._look(names, SNAPSHOTS_SHOWN_MAX, view)
        return door.Tables(tables=found, truncated=truncated, failures=failures)

    def errors(self) -> door.Errors:
        """What went wrong lately."""
        if self._recent is None:
            return door.Errors(errors=[], total=0)
        told = [
            door.LoggedError(at_ms=each.at_ms, level=each.level, logger=each.logger, message=each.message)
            for each in reversed(self._recent.recent)
        ]
        return door.Errors(errors=told, total=self._recent.total)

    async def _names(self, principal: Principal, limit: int) -> tuple[list[TableName], bool]:
        every = await asyncio.to_thread(self._catalog.tables)
        names = sorted(state.table for state in every if principal.may_read(state.table))
        return names[:limit], len(names) > limit

    async def _look(
        self, names: Iterable[TableName], commits_max: int, show: Callable[[ShownTable], T]
    ) -> tuple[list[T], list[TableFailure]]:
        """What is shown of each table, and which could not be looked at."""

        def look() -> tuple[list[T], list[TableFailure]]:
            found, failures = [], []
            for name in names:
                try:
                    table = self.load(name, commits_max)
                    found += [] if table is None else [show(table)]
                # The edge of one table: its metadata and its files may be anything.
                except Exception as error:
                    failures.append(failure(error, name))
            return found, failures

        return await asyncio.to_thread(look)

    def rows(self, table: ShownTable, snapshots: list[Any]) -> Rows:
        """Rows of some snapshots, without those that are deleted; of Delta, as far as its commits say."""
        if table.format == "iceberg":
            return self._live_rows.of(table.document, snapshots)
        summaries = {each["snapshot-id"]: summary_of(each) for each in snapshots}
        return {
            number: count_of(summary, "total-records") if "total-records" in summary else None
            for number, summary in summaries.items()
        }

    def load(self, name: TableName, commits_max: int) -> ShownTable | None:
        """A table of either format; None where there is none. Blocks."""
        try:
            loaded = self._catalog.load_table(TableIdent(name.levels, name.table))
        except NotFound:
            return self._found_in_delta(name, commits_max)
        return ShownTable(name, "iceberg", loaded.stored.document)

    def _found_in_delta(self, name: TableName, commits_max: int) -> ShownTable | None:
        try:
            table = self.in_delta(name)
        except NotFound:
            # Listed, and not made yet; or dropped since.
            table = None
        if table is None or table.delta is None:
            return None
        from mainstem.maintenance.delta_inventory import described

        return ShownTable(name, "delta", described(table, commits_max), table.delta.state.version + 1)


def _machine_bounds(status: Status) -> dict[str, tuple[int, int]]:
    bounds = {}
    heap, heap_max = (status.pipeline.memory.get(name, 0) for name in ("jvm_heap_bytes", "jvm_heap_bytes_max"))
    bounds["pipeline heap"] = (heap, heap_max)
    machine = _machine_memory()
    if "totalBytes" in machine and "availableBytes" in machine:
        bounds["memory"] = (machine["totalBytes"] - machine["availableBytes"], machine["totalBytes"])
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return bounds
    return bounds | {"descriptors": (used, soft if soft != resource.RLIM_INFINITY else 0)}


def _machine_memory() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest.split()}
    names = {"MemTotal": "totalBytes", "MemAvailable": "availableBytes"}
    return {told: kib[name] * 1024 for name, told in names.items() if name in kib}


def _writes(table: ShownTable, since_ms: int, rows: int | None) -> door.TableWrites:
    document = table.document
    snapshots: list[Any] = document.get("snapshots") or []
    current = current_of(document)
    total = summary_of(current)
    lately = [each for each in snapshots if each.get("timestamp-ms", 0) >= since_ms]
    files, size = count_of(total, "total-data-files"), count_of(total, "total-files-size")
    return door.TableWrites(
        table=str(table.name),
        format=f"{table.format} v{document.get('format-version', 1)}",
        snapshots=table.snapshot_count,
        data_files=files,
        delete_files=count_of(total, "total-delete-files"),
        rows=rows,
        bytes=size,
        average_file_bytes=size // files if files else 0,
        last_commit_ms=None if current is None else current.get("timestamp-ms"),
        commits_hour=len(lately),
        files_added_hour=sum(count_of(summary_of(each), "added-data-files") for each in lately),
        rows_added_hour=sum(rows_added(summary_of(each)) for each in lately),
        bytes_added_hour=sum(count_of(summary_of(each), "added-files-size") for each in lately),
    )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
