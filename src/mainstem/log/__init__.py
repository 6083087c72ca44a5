"""The log: every change, durable before it is acknowledged, then sealed into Parquet segments."""

from mainstem.log.coverage import Coverage, TableLag
from mainstem.log.log import Log
from mainstem.log.seal.segments import SegmentInfo
from mainstem.log.settings import LogSettings

__all__ = [
    "Coverage",
    "Log",
    "LogSettings",
    "SegmentInfo",
    "TableLag",
]
