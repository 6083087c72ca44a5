"""How a logical table is stored: names, types, evolution and settings. No Spark and no I/O."""

from mainstem.tables.evolution import Column, Evolution, plan_evolution
from mainstem.tables.settings import DEFAULT_SETTINGS, TableSettings, Transform, parse_transform
from mainstem.tables.types import ColumnType, Kind, Nested, join_kinds, kind_of, parse_type

__all__ = [
    "DEFAULT_SETTINGS",
    "Column",
    "ColumnType",
    "Evolution",
    "Kind",
    "Nested",
    "TableSettings",
    "Transform",
    "join_kinds",
    "kind_of",
    "parse_transform",
    "parse_type",
    "plan_evolution",
]
