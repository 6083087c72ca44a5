"""The log: every change, durable before it is acknowledged, then sealed into Parquet segments."""

from mainstem.log.companion import Companion, NoCompanion
from mainstem.log.coverage import Coverage, TableLag
from mainstem.log.embedded import Log
from mainstem.log.segments import SegmentInfo, TableSlice
from mainstem.log.settings import LogSettings
from mainstem.log.stats import Appended, LogStats

__all__ = [
    "Appended",
    "Companion",
    "Coverage",
    "Log",
    "LogSettings",
    "LogStats",
    "NoCompanion",
    "SegmentInfo",
    "TableLag",
    "TableSlice",
]
