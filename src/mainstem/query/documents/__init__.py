"""Document queries: MongoDB's filter, projection, sort and update languages over documents and tables."""

from mainstem.query.documents.ast import Node
from mainstem.query.documents.columns import Column, Columns, Kind, columns, row_document
from mainstem.query.documents.match import matcher, matches
from mainstem.query.documents.parse import parse_filter
from mainstem.query.documents.positional import matched_offset
from mainstem.query.documents.predicate import ColumnStats, Predicate, may_match
from mainstem.query.documents.projection import Projection, parse_projection, project
from mainstem.query.documents.pushdown import pushdown
from mainstem.query.documents.sort import parse_sort, sort_documents, sort_key
from mainstem.query.documents.sql import SqlFilter, to_duckdb, to_spark
from mainstem.query.documents.update import Updated, apply_update, upsert_seed
from mainstem.query.documents.update_syntax import Update, parse_update

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
