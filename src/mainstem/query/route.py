"""Which engine a query belongs on: DuckDB in the gateway, or Spark. Decides; runs nothing.

DuckDB answers what it can read right and what fits its memory and time. The measure is what the plan leaves to read,
not the size of the table.
"""

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec

from mainstem.model import Invalid
from mainstem.query.plan import Plan, Planner, PlanRequest
from mainstem.query.ports import Readable, everything


class EngineName(StrEnum):
    """Where a query runs."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Reason(StrEnum):
    """Why it runs there."""

    SMALL = "small"
    BYTES = "bytes_over_limit"
    ROWS = "rows_over_limit"
    DELETION_VECTORS = "shared_deletion_vectors"
    NOT_PORTABLE = "not_portable"


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a query in the gateway may have to read, after pruning."""

    bytes_max: int = 2 * 1024 * 1024 * 1024
    rows_max: int = 50_000_000


class RoutedTable(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a query reads of one table: the partitions by name, at most a thousand, and how many there are."""

    table: str
    partitions: tuple[str, ...]
    partitions_selected: int
    partitions_total: int


class Route(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The decision, with the estimate it rests on."""

    engine: EngineName
    reason: Reason
    explanation: str
    estimated_bytes: int
    estimated_rows: int
    files: int
    # One for each scan of the statement.
    tables: tuple[RoutedTable, ...] = ()


# Raises `Invalid` for a statement that Spark cannot run.
FitsSpark = Callable[[str], Awaitable[None]]


async def always(sql: str) -> None:
    """Where every statement may run on Spark."""
    del sql


class Router:
    """Decides by the plan."""

    def __init__(self, planner: Planner, settings: RouteSettings, fits_spark: FitsSpark = always) -> None:
        self._planner = planner
        self._settings = settings
        self._fits_spark = fits_spark

    async def route(self, request: PlanRequest, readable: Readable = everything) -> Route:
        """Plan the query, and say where it belongs."""
        route = decide(await self._planner.plan(request, readable), self._settings)
        if route.engine is EngineName.SPARK and route.reason is not Reason.DELETION_VECTORS:
            try:
                await self._fits_spark(request.statement())
            except Invalid as error:
                return msgspec.structs.replace(
                    route,
                    engine=EngineName.DUCKDB,
                    reason=Reason.NOT_PORTABLE,
                    explanation=f"{route.explanation}; {error}",
                )
        return route


def decide(plan: Plan, settings: RouteSettings) -> Route:
    """Where a planned query belongs. A table that DuckDB would misread goes to Spark whatever its size."""
    engine = EngineName.SPARK
    if shared := sorted({scan.table for scan in plan.scans if scan.shared_deletion_vectors}):
        reason = Reason.DELETION_VECTORS
        explanation = f"deletion vectors share files, which DuckDB misreads: {', '.join(shared)}"
    elif plan.bytes_to_read > settings.bytes_max:
        reason = Reason.BYTES
        explanation = f"bytes to read. expected=at most {settings.bytes_max} got={plan.bytes_to_read}"
    elif plan.rows_to_read > settings.rows_max:
        reason = Reason.ROWS
        explanation = f"rows to read. expected=at most {settings.rows_max} got={plan.rows_to_read}"
    else:
        engine, reason = EngineName.DUCKDB, Reason.SMALL
        explanation = f"{plan.bytes_to_read} bytes of {plan.files_to_read} files are read in the gateway"
    return Route(
        engine=engine,
        reason=reason,
        explanation=explanation,
        estimated_bytes=plan.bytes_to_read,
        estimated_rows=plan.rows_to_read,
        files=plan.files_to_read,
        tables=tuple(
            RoutedTable(
                table=scan.table,
                partitions=scan.partition_names,
                partitions_selected=scan.partitions.selected,
                partitions_total=scan.partitions.total,
            )
            for scan in plan.scans
        ),
    )
