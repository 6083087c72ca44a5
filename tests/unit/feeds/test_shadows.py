"""The rows and rules of a gateway are shown to nobody before all of them are known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from mainstem.feeds.entries import Entry, entry_of
from mainstem.feeds.feeds import Page
from mainstem.feeds.rules import RULES_COLUMN, RULES_ROW
from mainstem.feeds.shadows import Shadows
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import LogPosition
from mainstem.wire.sync import ColumnDelta, Op, RowDelta

CLAIMS = {"sub": "ada"}
MINE = {"buckets": [{"name": "mine", "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}


def rules() -> RowDelta:
    document = ColumnDelta(RULES_COLUMN, msgspec.json.encode(MINE))
    return RowDelta(op=Op.UPDATE, table=RULES_TABLE, row_id=RULES_ROW, columns=(document,), hlc=1, client_id="admin")


def note(row_id: str, owner: str) -> RowDelta:
    columns = (ColumnDelta("owner", msgspec.json.encode(owner)),)
    return RowDelta(op=Op.INSERT, table="notes", row_id=row_id, columns=columns, hlc=2, client_id="w")


class SlowFeeds:
    """A log that began anew: its changes are all in memory, and what the lost one wrote is read slowly."""

    def __init__(self, lost: list[RowDelta], arrived: list[RowDelta]) -> None:
        self._lost = [entry_of(0, delta) for delta in lost]
        self._arrived = [entry_of(at, delta) for at, delta in enumerate(arrived, 1)]
        self.readers = 0
        self.asked = asyncio.Condition()
        self.goes_on = asyncio.Event()

    async def others(self, gateway: str) -> AsyncIterator[list[Entry]]:
        async with self.asked:
            self.readers += 1
            self.asked.notify_all()
        # The first time is how it is found out which columns the rules look at.
        if self.readers > 1:
            await self.goes_on.wait()
        yield self._lost

    def pull_hot(self, gateway: str, since: LogPosition, limit: int) -> Page:
        return Page(self._arrived[since:], LogPosition(len(self._arrived)), False)

    async def pull(self, gateway: str, since: int, limit: int) -> Page:
        return self.pull_hot(gateway, LogPosition(since), limit)


@pytest.mark.timeout(60)
async def test_nobody_is_shown_a_gateway_whose_rules_are_still_read(tmp_path: Path) -> None:
    """The rules are among what a lost log wrote. A client that asks while they are read waits for them: it would be
    shown everything otherwise."""
    feeds = SlowFeeds([rules(), note("n1", "bob")], [note("n2", "bob")])
    shadows = Shadows(tmp_path / "ruled.json", feeds)  # type: ignore[arg-type]
    making = asyncio.create_task(shadows.ready("g"))
    async with feeds.asked:
        await feeds.asked.wait_for(lambda: feeds.readers == 2)
    assert shadows.current("g") is None
    feeds.goes_on.set()
    shadow = await making
    assert shadows.current("g") is shadow
    assert {row_id for _, row_id, _ in shadow.rows()} == {"n1", "n2"}
    assert not shadow.view_at(shadow.position, CLAIMS).sees("notes", {"owner": "bob"})


async def test_rules_that_look_at_other_columns_are_laid_over_every_row(tmp_path: Path) -> None:
    """Over those of a lost log as well."""
    feeds = SlowFeeds([note("n1", "bob")], [note("n2", "bob")])
    feeds.goes_on.set()
    shadows = Shadows(tmp_path / "ruled.json", feeds)  # type: ignore[arg-type]
    await shadows.ready("g")
    feeds._arrived.append(entry_of(2, rules()))
    assert shadows.current("g") is None
    assert shadows.current("g") is None
    shadow = await shadows.ready("g")
    assert {row_id for _, row_id, _ in shadow.rows()} == {"n1", "n2"}
    assert shadow.columns == {"owner"}
