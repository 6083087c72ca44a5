"""Queries over the lake. The document queries of `mainstem.documents` are had from here by their usual name.

Those are loaded when they are asked for: the gateway imports this package, and starts without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.documents import (
        Column,
        Columns,
        ColumnStats,
        Kind,
        Node,
        Predicate,
        Projection,
        SqlFilter,
        Update,
        Updated,
        apply_update,
        columns,
        matched_offset,
        matcher,
        matches,
        may_match,
        parse_filter,
        parse_projection,
        parse_sort,
        parse_update,
        project,
        pushdown,
        row_document,
        sort_documents,
        sort_key,
        to_duckdb,
        to_spark,
        upsert_seed,
    )

__all__ = [
    "Column",
    "ColumnStats",
    "Columns",
    "Kind",
    "Node",
    "Predicate",
    "Projection",
    "SqlFilter",
    "Update",
    "Updated",
    "apply_update",
    "columns",
    "matched_offset",
    "matcher",
    "matches",
    "may_match",
    "parse_filter",
    "parse_projection",
    "parse_sort",
    "parse_update",
    "project",
    "pushdown",
    "row_document",
    "sort_documents",
    "sort_key",
    "to_duckdb",
    "to_spark",
    "upsert_seed",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("mainstem.documents"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
