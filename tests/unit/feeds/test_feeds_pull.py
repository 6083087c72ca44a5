"""Pulls over a real log: every row that its table takes arrives once, whatever lies between the rows."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstem.feeds.declared import Begin, Begun, Declared
from mainstem.feeds.entries import StoredChange
from mainstem.feeds.feeds import Feeds, FeedSettings
from mainstem.feeds.fitting import Columns
from mainstem.feeds.seen import Identified, SeenDeltas
from mainstem.log import Log
from mainstem.log.tap import Tap
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import ManualClock
from mainstem.tables.evolution import TABLE_COLUMNS_MAX, Names
from mainstem.tables.settings import Format, TableSettings
from mainstem.tables.types import LONG
from mainstem.wire.sync import RowDelta, decode_response
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, event, quiet

NAMESPACE = "default"
PAGES_MAX = 1_000


class StoredHistory:
    """A history table that holds what it is given."""

    def __init__(self, changes: Sequence[StoredChange] = ()) -> None:
        self._changes = changes

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        return [change for change in self._changes if after < change.position <= through][:limit]

    async def identified(self, through: LogPosition) -> AsyncIterator[list[Identified]]:
        yield []

    async def has_others(self, namespace: str) -> bool:
        return False

    async def lost_since(self, namespace: str, position: LogPosition) -> bool:
        return False

    async def others(self, namespace: str) -> AsyncIterator[list[StoredChange]]:
        yield []


@asynccontextmanager
async def opened(
    folder: Path,
    settings: FeedSettings | None = None,
    history: StoredHistory | None = None,
    declared: Declared | None = None,
) -> AsyncIterator[tuple[Feeds, Tap, Log]]:
    log = await Log.open(
        quiet(folder / "log"), companion=Diary(), clock=ManualClock(1_764_000_000_000), sealer=InlineSealer()
    )
    tap = Tap(log)
    feeds = Feeds(log, tap, SeenDeltas(folder / "seen.db"), history or StoredHistory(), settings, declared)
    await feeds.start()
    try:
        yield feeds, tap, log
    finally:
        await feeds.close()
        await log.close()


async def pulled(feeds: Feeds, limit: int, since: int = 0) -> list[RowDelta]:
    found: list[RowDelta] = []
    for _ in range(PAGES_MAX):
        page = await feeds.pull(NAMESPACE, since, limit)
        found += [delta for entry in page.entries for delta in decode_response(entry.encoded).deltas]
        assert page.cursor > since or not page.has_more, "a page goes nowhere"
        since = page.cursor
        if not page.has_more:
            return found
    raise AssertionError("pulls do not end")


def rows(count: int, bad: Sequence[int]) -> list[dict[str, Any]]:
    return [event(number, after=None) if number in bad else event(number) for number in range(count)]


async def put(tap: Tap, events: list[dict[str, Any]], sequence: int = 1) -> None:
    await tap.append(batch(sequence, events))


@pytest.mark.parametrize("where", ["segment", "tail"])
@pytest.mark.parametrize("bad", [[0], [99], [100], [7, 150, 151, 152], range(0, 300), range(250, 300)])
async def test_a_row_that_is_no_delta_hides_none_behind_it(tmp_path: Path, where: str, bad: Sequence[int]) -> None:
    async with opened(tmp_path) as (feeds, tap, log):
        await put(tap, rows(300, bad))
        if where == "segment":
            await log.flush()
        good = [f"key-{number}" for number in range(300) if number not in bad]
        assert [delta.row_id for delta in await pulled(feeds, 100)] == good


async def test_a_row_of_the_history_that_is_no_delta_hides_none_behind_it(tmp_path: Path) -> None:
    texts = [b"[]", b"null", b'{"a":1}', b"7", b'{"a":2}', b"{}"]
    stored = [
        StoredChange(number, 1_000 + number, "orders", "insert", f"old-{number}", columns, "app", None)
        for number, columns in enumerate(texts, start=1)
    ]
    async with opened(tmp_path, history=StoredHistory(stored)) as (feeds, tap, log):
        await put(tap, [event(number) for number in range(6)])
        await log.flush()
        await log.drop_segments(lambda _: True, 0)
        await put(tap, [event(7), event(8)], 2)
        assert [delta.row_id for delta in await pulled(feeds, 2)] == ["old-3", "old-5", "old-6", "key-7", "key-8"]


class SlowHistory(StoredHistory):
    """Lets something else happen while it is read."""

    def __init__(self, changes: Sequence[StoredChange], meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(changes)
        self._meanwhile = meanwhile

    async def page(
        self, namespace: str, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[StoredChange]:
        await self._meanwhile()
        return await super().page(namespace, after=after, through=through, limit=limit)


async def test_what_arrives_while_a_feed_is_evicted_is_not_skipped(tmp_path: Path) -> None:
    """While a cold pull reads, another gateway takes its feed's place, and something arrives that nobody keeps."""

    async def meanwhile() -> None:
        if feeds.newest == 1:
            feeds.pull_hot("other", LogPosition(0), 10)
            await put(tap, [event(2)], 2)

    stored = [StoredChange(1, 1_001, "orders", "insert", "old-1", b"{}", "app", None)]
    history = SlowHistory(stored, meanwhile)
    async with opened(tmp_path, FeedSettings(gateways_max=1), history) as (feeds, tap, log):
        await put(tap, [event(1)])
        await log.flush()
        await log.drop_segments(lambda _: True, 0)
        assert [delta.row_id for delta in await pulled(feeds, 10)] == ["old-1", "key-2"]


DIRTY: list[tuple[str, dict[str, Any]]] = [
    ("null", {"after": None}),
    ("nothing", {"after": ...}),
    ("list", {"after": [1]}),
    ("control", {"after": {"a\u0085b": 1}}),
    ("empty name", {"after": {"": 1}}),
    ("deep", {"after": {"a": json.loads("[" * 80 + "]" * 80)}}),
    ("operation", {"operation": "\u0131nsert"}),
    ("typed", {"after": {"n": "seven"}}),
    ("typed number", {"after": {"n": 7.5}}),
]
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"after": {"n": 7}}),
    ("typed text", {"after": {"n": "7"}}),
    ("typed null", {"after": {"n": None}}),
    ("undeclared", {"after": {"m": "seven"}}),
    ("upper", {"operation": "INSERT", "after": {"n": 1}}),
]


class Typed:
    """One table with a declared column, known at once or only once it was loaded."""

    def __init__(self, *, at_once: bool) -> None:
        self._known = {"orders": {"n": LONG}} if at_once else None

    def known(self, namespace: str, /) -> Mapping[str, Columns] | None:
        return self._known

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        self._known = {"orders": {"n": LONG}}
        return self._known

    def begin_of(self, namespace: str, /) -> Begin:
        return lambda _: None


@pytest.mark.parametrize("where", ["memory", "memory, unknown", "tail", "segment"])
@pytest.mark.parametrize("together", [True, False])
async def test_a_dead_letter_reaches_nobody(tmp_path: Path, where: str, together: bool) -> None:
    """Neither what the sealer refuses nor what does not fit a declared type, from wherever it is read."""
    events = [event(n, rowId=name, **fields) for n, (name, fields) in enumerate([*DIRTY, *GOOD])]
    typed = Typed(at_once=where != "memory, unknown")
    async with opened(tmp_path, declared=typed) as (feeds, tap, log):
        if where.startswith("memory"):
            # A feed that is there keeps what arrives.
            feeds.pull_hot(NAMESPACE, LogPosition(0), 1)
        for number, part in enumerate([events] if together else [[each] for each in events], start=1):
            await put(tap, part, number)
        if where == "segment":
            await log.flush()
        assert [delta.row_id for delta in await pulled(feeds, 100)] == [name for name, _ in GOOD]


async def test_rows_wait_in_the_log_until_it_is_known_what_fits(tmp_path: Path) -> None:
    """Whoever listens is told, and a look at memory alone says that it does not reach back far enough."""
    heard: list[None] = []
    async with opened(tmp_path, declared=Typed(at_once=False)) as (feeds, tap, _):
        feeds.listen(NAMESPACE, lambda: heard.append(None))
        await put(tap, [event(1, after={"n": "seven"}), event(2, after={"n": 2})])
        assert heard
        assert feeds.pull_hot(NAMESPACE, LogPosition(0), 10) is None
        assert [delta.row_id for delta in await pulled(feeds, 10)] == ["key-2"]


class Shaped(Typed):
    """A table that has some columns, and covers the log up to a position."""

    def __init__(self, has: Sequence[str], *, table_format: Format = Format.ICEBERG, covered: int = 0) -> None:
        super().__init__(at_once=False)
        self._has = has
        self._settings = TableSettings(format=table_format)
        self._covered = covered

    def forget(self) -> None:
        self._known = None

    def begin_of(self, namespace: str, /) -> Begin:
        return lambda _: Begun(Names(self._has, self._settings), LogPosition(self._covered))


ALMOST = tuple(f"c{number}" for number in range(TABLE_COLUMNS_MAX - 2))
# Each row's columns, and whether the table takes it.
LIMIT: list[tuple[dict[str, Any], bool]] = [
    ({"c1": 1}, True),
    ({"a": 1}, True),
    ({"a": 1, "b": 1}, True),
    ({"c1": 1, "over": 1}, False),
    ({"a": 1, "b": 2}, True),
    ({"over": 2}, False),
]
# The first spelling wins, in the table or in the log; a row that is refused for one column brings its others.
CASES: list[tuple[dict[str, Any], bool]] = [
    ({"c1": 1, "C1": 2}, False),
    ({"Title": 1}, True),
    ({"title": 1, "new": 1}, False),
    ({"New": 1}, False),
    ({"new": 2, "Title": 2}, True),
    ({"_KEY": 1}, False),
    ({"file_index": 1}, False),
]


@pytest.mark.parametrize("where", ["memory", "tail", "segment", "each a segment", "a feed that learns again"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("shaped", "written"),
    [(Shaped(ALMOST), LIMIT), (Shaped(["c1"], table_format=Format.DELTA), CASES)],
    ids=["limit", "case"],
)
async def test_a_row_whose_column_the_table_refuses_reaches_nobody(
    tmp_path: Path, where: str, together: bool, shaped: Shaped, written: list[tuple[dict[str, Any], bool]]
) -> None:
    """The pipeline has not seen any of it yet: what comes first in the log decides."""
    shaped.forget()
    events = [event(number, after=columns) for number, (columns, _) in enumerate(written)]
    async with opened(tmp_path, declared=shaped) as (feeds, tap, log):
        if where in ("memory", "a feed that learns again"):
            assert await pulled(feeds, 100) == []
        for number, part in enumerate([events] if together else [[each] for each in events], start=1):
            if where == "a feed that learns again":
                shaped.forget()
            await put(tap, part, number)
            if where == "each a segment":
                await log.flush()
        if where == "segment":
            await log.flush()
        assert (feeds.pull_hot(NAMESPACE, LogPosition(0), 1) is None) == (where != "memory")
        wanted = [f"key-{number}" for number, (_, is_taken) in enumerate(written) if is_taken]
        for limit in (100, 1):
            assert [delta.row_id for delta in await pulled(feeds, limit)] == wanted


async def test_what_a_table_covers_is_judged_by_what_it_has(tmp_path: Path) -> None:
    """A column that somebody dropped leaves room for another one, though the log still has rows with it."""
    shaped = Shaped(ALMOST, covered=2)
    async with opened(tmp_path, declared=shaped) as (feeds, tap, log):
        await put(tap, [event(0, after={"dropped": 1}), event(1, after={"dropped": 2})])
        await log.flush()
        await put(tap, [event(2, after={"a": 1, "b": 1}), event(3, after={"over": 1})], 2)
        assert [delta.row_id for delta in (await pulled(feeds, 100))][-1:] == ["key-2"]
