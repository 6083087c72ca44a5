"""Document queries: MongoDB's filter, projection, sort and update languages over documents and tables."""

from mainstem.query.documents.ast import Node
from mainstem.query.documents.columns import Column, Columns, Kind, columns, row_document
from mainstem.query.documents.match import matcher, matches
from mainstem.query.documents.parse import parse_filter
from mainstem.query.documents.predicate import ColumnStats, Predicate, may_match
from mainstem.query.documents.pushdown import pushdown
from mainstem.query.documents.sql import SqlFilter, to_duckdb, to_spark

__all__ = [
    "Column",
    "ColumnStats",
    "Columns",
    "Kind",
    "Node",
    "Predicate",
    "SqlFilter",
    "columns",
    "matcher",
    "matches",
    "may_match",
    "parse_filter",
    "pushdown",
    "row_document",
    "to_duckdb",
    "to_spark",
]
