"""Which rows of a namespace their tables refuse for the names of their columns: one too many, or in Delta one that
differs from another by case alone.

The pipeline decides that column by column, in the order of the log (`tables.evolution.Names`). The same is done here,
with the same function, ahead of the pipeline: from what the tables have, through all that the log has beyond that.
"""

from collections.abc import Collection, Mapping, Sequence

from mainstem.feeds.declared import Begin, Begun
from mainstem.feeds.fitting import Columns
from mainstem.log import SegmentInfo
from mainstem.model.position import LogPosition
from mainstem.wire.sync import ColumnDelta


class KnownColumns:
    """The columns that the tables of one namespace will have, once everything that was learnt is in them.

    Learns on one thread at a time, and answers on any: what a column's first row decided is not decided again.
    """

    def __init__(self, declared: Mapping[str, Columns], begin: Begin) -> None:
        # What was declared when this was begun: it counts for as long as that is so.
        self.declared = declared
        self._begin = begin
        self._tables: dict[str, Begun | None] = {}

    def learn(self, table: str, position: LogPosition, names: Collection[str]) -> None:
        """The log has rows with these columns, up to a position. Told in the order of the log."""
        if table not in self._tables:
            self._tables[table] = self._begin(table)
        begun = self._tables[table]
        if begun is not None and position > begun.covered and not begun.names.have(names):
            for name in names:
                begun.names.add(name)

    def learn_segment(self, segment: SegmentInfo, namespace: str) -> None:
        """The same of a whole segment, whose footer has the columns in the order of their first rows."""
        for name, footer in segment.tables.items():
            if name.namespace == namespace:
                self.learn(name.table, footer.last, footer.columns)

    def refusal(self, table: str, columns: Sequence[ColumnDelta]) -> str | None:
        """Why the table does not take a row; None where its columns' names are no reason."""
        # One that was not written to is as it is in the lake.
        begun = self._tables[table] if table in self._tables else self._begin(table)
        if begun is None or begun.names.have([each.column for each in columns]):
            return None
        return next((reason for each in columns if (reason := begun.names.refusal(each.column)) is not None), None)
