"""Document queries: MongoDB's filter, projection, sort and update languages over documents and tables."""

from mainstem.documents.ast import Node
from mainstem.documents.columns import Column, Columns, Kind, columns, row_document
from mainstem.documents.match import matcher, matches
from mainstem.documents.parse import parse_filter
from mainstem.documents.positional import matched_offset
from mainstem.documents.predicate import ColumnStats, Predicate, may_match
from mainstem.documents.projection import Projection, parse_projection, project
from mainstem.documents.pushdown import pushdown
from mainstem.documents.sort import parse_sort, sort_documents, sort_key
from mainstem.documents.sql import SqlFilter, to_duckdb, to_spark
from mainstem.documents.update import Updated, apply_update, upsert_seed
from mainstem.documents.update_syntax import Update, parse_update

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
