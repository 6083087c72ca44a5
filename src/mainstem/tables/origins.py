"""Of which log the rows of a history are, as conditions in SQL that DuckDB and Spark both take.

A row has its log beside its position. Rows from before histories said so have none: they are of the logs that the table
held when it began to, and ours as far as it covered ours then.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from mainstem.model.errors import Corrupt
from mainstem.model.position import NOWHERE, Lineage, LogId, LogPosition
from mainstem.tables.layout import LOG, POSITION, UNLOGGED_PROPERTY

_SPECIAL = frozenset("'\\")
_SPLIT = re.compile(r"(['\\])")


class Origins(msgspec.Struct, frozen=True):
    """What a history says of the logs of its rows."""

    # Whether it has the column; and how much it held of each log, of rows without a value in it.
    has_log: bool
    unlogged: Mapping[LogId, LogPosition]

    def of_ours(self, lineage: Lineage) -> str:
        """The rows whose positions are of this log."""
        unlogged = lineage.covered(self.unlogged)
        if not self.has_log:
            return f"({POSITION} <= {int(unlogged)})"
        ends: Sequence[int | None] = [int(span.first) - 1 for span in lineage.spans[1:]] + [None]
        parts = [f"({LOG} IS NULL AND {POSITION} <= {int(unlogged)})"] if unlogged > NOWHERE else []
        for span, end in zip(lineage.spans, ends, strict=True):
            upto = "" if end is None else f" AND {POSITION} <= {end}"
            parts.append(f"({LOG} = {_text(span.log)} AND {POSITION} >= {int(span.first)}{upto})")
        return f"({' OR '.join(parts)})"

    def of_others(self, lineage: Lineage, seen: Mapping[LogId, LogPosition] | None = None) -> str:
        """The rows that another log wrote, or a part of this one that was lost; without those that were `seen`."""
        others = f"NOT coalesce({self.of_ours(lineage)}, false)"
        for log, position in (seen or {}).items():
            others += f" AND NOT coalesce({LOG} = {_text(log)} AND {POSITION} <= {int(position)}, false)"
        return f"({others})"


def origins_of(
    names: Collection[str], properties: Mapping[str, str | None], marks: Mapping[LogId, LogPosition]
) -> Origins:
    """Of a history with these columns, properties and marks. Raises Corrupt where a property is not as we write it."""
    if LOG not in names:
        return Origins(False, marks)
    text = properties.get(UNLOGGED_PROPERTY)
    try:
        return Origins(True, {} if text is None else msgspec.json.decode(text, type=dict[LogId, LogPosition]))
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a property is not as it was written. got={error}", place=UNLOGGED_PROPERTY) from error


def unlogged_property(marks: Mapping[LogId, LogPosition]) -> str:
    """What a table says that gets the column now."""
    return json.dumps(marks, sort_keys=True)


def has_others(marks: Mapping[LogId, LogPosition], lineage: Lineage) -> bool:
    """Whether a table holds changes of another log, or of a part of this one that was lost."""
    return any(lineage.covered({log: position}) != position for log, position in marks.items())


def _text(log: LogId) -> str:
    """A log's name as a text of both dialects. A backslash, which escapes in Spark alone, is spelt as chr()."""
    parts = [f"chr({ord(part)})" if part in _SPECIAL else f"'{part}'" for part in _SPLIT.split(log) if part]
    return f"({' || '.join(parts)})" if len(parts) > 1 else "".join(parts) or "''"
