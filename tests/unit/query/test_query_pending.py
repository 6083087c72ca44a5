"""What is durable and not yet in a table, read from a real log: segments, the tail, and both at once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.log import Log
from mainstem.model import Conflict, LogPosition, Overloaded, TableName
from mainstem.query.pending import LogPending
from mainstem.runtime.clock import ManualClock
from tests.unit.log.log_fixtures import InlineSealer, batch, event, quiet

ORDERS = TableName("default", "orders")


class Setting:
    """A log, and what the catalog says that tables cover."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self.log = log
        self.clock = clock
        self.covered = 0
        self.pending = LogPending(log, lambda _: {log.lineage.log: LogPosition(self.covered)})

    async def append(self, sequence: int, *events: dict[str, Any]) -> None:
        await self.log.append(batch(sequence, list(events) or None))

    async def values(self, after: int = 0, through: int | None = None) -> dict[str, Any]:
        through = self.pending.durable() if through is None else through
        rows = await self.pending.rows(ORDERS, after=LogPosition(after), through=LogPosition(through), limit=1000)
        return {key: each.row.values() if each.row.visible else None for key, each in rows.items()}


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    clock = ManualClock()
    log = await Log.open(quiet(tmp_path), clock=clock, sealer=InlineSealer())
    yield Setting(log, clock)
    await log.close()


def row(key: str, after: dict[str, Any] | None, table: str = "orders") -> dict[str, Any]:
    operation = "DELETE" if after is None else "UPDATE"
    return event(1, table, rowId=key, operation=operation, after=... if after is None else after)


async def test_nothing_is_pending_in_an_empty_log(setting: Setting) -> None:
    assert await setting.values() == {}


async def test_the_tail_is_merged_by_key(setting: Setting) -> None:
    await setting.append(1, row("a", {"x": 1, "y": 2}), row("b", {"x": 1}), row("a", {"x": 3}, "lines"))
    await setting.append(2, row("a", {"x": 5}), row("b", None))
    assert await setting.values() == {"a": {"x": 5, "y": 2}, "b": None}
    assert await setting.values(through=3) == {"a": {"x": 1, "y": 2}, "b": {"x": 1}}
    assert await setting.values(after=3) == {"a": {"x": 5}, "b": None}
    assert await setting.values(after=5) == {}


async def test_segments_and_tail_are_one(setting: Setting) -> None:
    await setting.append(1, row("a", {"x": 1}), row("b", {"x": 2}), row("c", {"x": 3}))
    await setting.log.flush()
    await setting.append(2, row("a", None), row("d", {"x": 4}))
    assert await setting.values() == {"a": None, "b": {"x": 2}, "c": {"x": 3}, "d": {"x": 4}}
    assert await setting.values(after=2, through=4) == {"c": {"x": 3}, "a": None}
    positions = await setting.pending.rows(ORDERS, after=LogPosition(0), through=LogPosition(5), limit=10)
    assert {key: each.position for key, each in positions.items()} == {"a": 4, "b": 2, "c": 3, "d": 5}


@pytest.mark.parametrize("sealed", [False, True])
async def test_what_becomes_a_dead_letter_is_not_shown(setting: Setting, sealed: bool) -> None:
    await setting.append(1, row("a", {"x": 1}), row("b", {"": 1}), row("c", {"big": 2**70}))
    if sealed:
        await setting.log.flush()
    assert await setting.values() == {"a": {"x": 1}, "c": {"big": 2**70}}


async def test_a_trimmed_log_asks_for_a_newer_snapshot_only_where_there_is_one(setting: Setting) -> None:
    await setting.append(1, row("a", {"x": 1}))
    await setting.log.flush()
    await setting.append(2, row("b", {"x": 2}, "lines"))
    await setting.log.flush()
    setting.clock.advance(100)
    await setting.log.drop_segments(lambda segment: True, 0)
    # The table was committed up to 1 in the meantime: whoever has an older snapshot must look again.
    setting.covered = 1
    with pytest.raises(Conflict):
        await setting.values(after=0)
    # Nothing of it was in what was dropped after that.
    assert await setting.values(after=1) == {}


async def test_a_table_that_is_too_far_behind_is_refused(setting: Setting) -> None:
    setting.pending = LogPending(setting.log, lambda _: {}, changes_max=3)
    await setting.append(1, *[row("a", {"x": number}) for number in range(3)])
    assert await setting.values() == {"a": {"x": 2}}
    await setting.append(2, row("a", {"x": 9}))
    with pytest.raises(Overloaded):
        await setting.values()
    await setting.log.flush()
    with pytest.raises(Overloaded):
        await setting.values()
