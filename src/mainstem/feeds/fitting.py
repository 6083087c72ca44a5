"""Whether a value fits the declared type of its column, as the pipeline will judge it when it writes the tables.

What does not fit becomes a dead letter there, so it must reach no replica either. The rule itself is `tables.convert`.
"""

from collections.abc import Iterable, Mapping

from mainstem.tables.convert import UNFIT, converter
from mainstem.tables.types import STRING, VARIANT, ColumnType
from mainstem.wire.sync import ColumnDelta

Columns = Mapping[str, ColumnType]


def first_misfit(columns: Iterable[ColumnDelta], declared: Columns) -> ColumnDelta | None:
    """The first column whose value is not of its declared type."""
    for each in columns:
        column_type = declared.get(each.column)
        if column_type is not None and not fits(column_type, each.value):
            return each
    return None


def fits(column_type: ColumnType, value: bytes) -> bool:
    """Whether a column of this type takes a value, given as JSON text. Null always fits."""
    text = value.strip()
    return text == b"null" or column_type in (STRING, VARIANT) or converter(column_type)(text) is not UNFIT
