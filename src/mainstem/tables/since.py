"""Since when a state's columns are there, for those that came later than the table.

A row without `_clocks` has every column that its table had when the row was written, so a reader must know which those
were. A position says so only within one log, and a table may have rows of several. Clocks are one order for all logs:
a column that comes is kept with the highest clock that its table has then, and every row that is written later has a
clock above it, or says the clocks of its columns one by one.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from mainstem.model.errors import Corrupt
from mainstem.model.position import NOWHERE, LogPosition

# Of columns from before clocks were kept: the position that the table covered, of whichever log that was.
_POSITIONS = "mainstem.columns-since"
_CLOCKS = "mainstem.columns-since-clock"


class Since(NamedTuple):
    """By column, where the rows that lack it end."""

    positions: Mapping[str, LogPosition] = {}
    clocks: Mapping[str, int] = {}

    @classmethod
    def of_properties(cls, properties: Mapping[str, str | None]) -> "Since":
        """As a table's properties say. Raises Corrupt where they do not say it as we do."""
        positions, clocks = ({} if text is None else _read(text) for text in map(properties.get, (_POSITIONS, _CLOCKS)))
        return cls({name: LogPosition(at) for name, at in positions.items()}, clocks)

    def with_columns(self, names: Iterable[str], clock_max: int) -> "Since":
        """The same with columns that come now, while the highest clock of the table is this."""
        new = dict.fromkeys(names, clock_max)
        positions = {name: at for name, at in self.positions.items() if name not in new}
        return Since(positions, {**self.clocks, **new})

    def properties(self) -> dict[str, str]:
        """As a table's properties."""
        return {
            _POSITIONS: json.dumps(self.positions, sort_keys=True),
            _CLOCKS: json.dumps(self.clocks, sort_keys=True),
        }

    @property
    def clock_max(self) -> int:
        """Rows up to this clock have to say the clocks of their columns."""
        return max(self.clocks.values(), default=-1)

    def lacks(self, name: str, position: int, hlc: int) -> bool:
        """Whether a row that says no clocks was written before a column came."""
        return position <= self.positions.get(name, NOWHERE) or hlc <= self.clocks.get(name, -1)


def _read(text: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a property is not as it was written. got={error}", place=_POSITIONS) from error
