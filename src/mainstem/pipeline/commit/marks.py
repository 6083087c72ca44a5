"""How far a table is: what its commits say of the logs that they carried."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mainstem.model.position import LogId, LogPosition
from mainstem.tables.marks import HLC_MARK, position_mark, positions_of

# Iceberg's own name, in a snapshot's summary, for the Spark application that made it.
APPLICATION = "spark.app.id"


@dataclass(frozen=True, slots=True)
class Marks:
    """What the newest marked snapshot of a table says: how much it covers of each log, and its highest clock."""

    positions: Mapping[LogId, LogPosition] = field(default_factory=dict)
    hlc_max: int = 0

    def advanced(self, log: LogId, position: LogPosition, hlc_max: int) -> "Marks":
        """The marks after changes of one log up to a position, with clocks up to another. Other logs' marks stay."""
        return Marks({**self.positions, log: position}, max(self.hlc_max, hlc_max))

    def summary(self) -> dict[str, str]:
        """As entries of a snapshot summary."""
        return {
            **{position_mark(log): str(position) for log, position in self.positions.items()},
            HLC_MARK: str(self.hlc_max),
        }

    @classmethod
    def of_summary(cls, summary: Mapping[str, str]) -> "Marks":
        """Read them from a snapshot's summary."""
        hlc = str(summary.get(HLC_MARK, "0"))
        return cls(positions_of(summary), int(hlc) if hlc.isdecimal() else 0)
