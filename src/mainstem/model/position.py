"""Positions in the log.

A position is the number of one change: 1 for the first one ever accepted, dense, never reused. `NOWHERE` comes
before the first change. A table that covers position 41 holds the effect of the changes 1 to 41.
"""

from typing import NewType

LogPosition = NewType("LogPosition", int)

NOWHERE = LogPosition(0)
