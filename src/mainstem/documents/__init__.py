"""Document queries: MongoDB's filter, projection, sort, update and aggregation languages over documents and tables."""

from mainstem.documents.aggregation import Namespace, Pipeline, Run, Sources, compile_pipeline
from mainstem.documents.columns import Column, Columns, Kind, columns, row_document
from mainstem.documents.errors import Refused, code_name, error_code
from mainstem.documents.filters.ast import Node
from mainstem.documents.filters.match import matcher, matches
from mainstem.documents.filters.parse import parse_filter
from mainstem.documents.filters.predicate import ColumnStats, Predicate, may_match
from mainstem.documents.filters.pushdown import pushdown
from mainstem.documents.filters.sql import SqlFilter, to_duckdb, to_spark
from mainstem.documents.projection import Projection, parse_projection, project
from mainstem.documents.sort import parse_sort, sort_documents, sort_key
from mainstem.documents.updates.difference import Difference, difference
from mainstem.documents.updates.positional import matched_offset
from mainstem.documents.updates.syntax import Update, parse_update
from mainstem.documents.updates.update import Updated, apply_update, upsert_document, upsert_seed

__all__ = [
    "Column",
    "ColumnStats",
    "Columns",
    "Difference",
    "Kind",
    "Namespace",
    "Node",
    "Pipeline",
    "Predicate",
    "Projection",
    "Refused",
    "Run",
    "Sources",
    "SqlFilter",
    "Update",
    "Updated",
    "apply_update",
    "code_name",
    "columns",
    "compile_pipeline",
    "difference",
    "error_code",
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
    "upsert_document",
    "upsert_seed",
]
