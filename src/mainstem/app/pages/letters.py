"""Dead letters: counted by table and reason, listed, and sent again. See `doors.admin.letters` for what is told.

A replay is a batch of one change, whose source and sequence are made of the letter. The dedup of the log therefore
knows which letters were replayed, across restarts and backups: that is their mark, and nothing else keeps one.
"""

import asyncio
import hashlib
import logging
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mainstem.admission import Intake, Principal
from mainstem.admission.intake import Ticket
from mainstem.app.pages.letter_rows import (
    LetterRow,
    count_letters,
    exact_value,
    has_reason,
    raw_object,
    select_letters,
    value_of,
)
from mainstem.app.pages.tables import shown_name
from mainstem.catalog import Catalog
from mainstem.doors.admin import letters as door
from mainstem.doors.admin.server import DeadLetterStatus
from mainstem.model import (
    Batch,
    Change,
    Denied,
    Encoding,
    Hlc,
    Invalid,
    NotFound,
    Operation,
    SourceId,
    TableName,
    parse_table_name,
)
from mainstem.model.hlc import check_drift
from mainstem.model.names import DEAD_LETTERS_SUFFIX
from mainstem.query.engine import QueryEngine, QueryRequest
from mainstem.query.ports import LoadedTable, named_tables
from mainstem.runtime.clock import Clock

logger = logging.getLogger(__name__)

# Sources of replays. The gate refuses this prefix to clients.
SOURCE = "dead-letters/"
# So many positions share a source: then no source has more gaps than dedup keeps.
_POSITIONS_PER_SOURCE = 512
_BUCKETS_PER_QUERY = 200
REASONS_MAX = 20
OTHER_REASONS = "other"
# How often tables are looked at, and at most so many of them.
COUNT_INTERVAL_S = 5.0
TABLES_MAX = 1_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


class DeadLetters:
    """Counts, lists and replays. Belongs to the event loop."""

    def __init__(
        self,
        catalog: Catalog,
        in_delta: Callable[[TableName], LoadedTable | None],
        engine: QueryEngine,
        intake: Intake,
        kind_of: Callable[[TableName], str],
        clock: Clock,
    ) -> None:
        """`kind_of` says of which kind a door's own table is: empty for every other."""
        self._catalog = catalog
        self._in_delta = in_delta
        self._engine = engine
        self._intake = intake
        self._kind_of = kind_of
        self._clock = clock
        self._news = asyncio.Event()
        # By logical table: at which version it was counted, and what was found.
        self._counted: dict[TableName, tuple[object, DeadLetterStatus]] = {}

    @property
    def counts(self) -> dict[str, DeadLetterStatus]:
        """What was found when it was counted last, by table."""
        return {str(name): found for name, (_, found) in sorted(self._counted.items())}

    def committed(self, table: TableName) -> None:
        """A table has a new snapshot."""
        if table.table.endswith(DEAD_LETTERS_SUFFIX):
            self._news.set()

    async def run(self) -> None:
        """Keep the counts up to date, until cancelled."""
        while True:
            self._news.clear()
            try:
                await self.count()
            # The task's edge: it is tried again, and the doors stay open meanwhile.
            except Exception as error:
                logger.warning("dead letters could not be counted: %s", error)
            await asyncio.sleep(COUNT_INTERVAL_S)

    async def count(self) -> None:
        """Count the letters of each table that has changed."""
        versions = await asyncio.to_thread(self._versions)
        for gone in self._counted.keys() - versions.keys():
            del self._counted[gone]
        for name, version in versions.items():
            known = self._counted.get(name)
            if known is not None and known[0] == version:
                continue
            try:
                self._counted[name] = version, await self._count(name)
            # The edge of one table: anybody may make one of that name, with anything in it.
            except Exception as error:
                logger.warning("the dead letters of %s could not be counted: %s", name, error)

    def _versions(self) -> dict[TableName, object]:
        found: dict[TableName, object] = {}
        for state in self._catalog.tables():
            if not state.table.table.endswith(DEAD_LETTERS_SUFFIX) or len(found) >= TABLES_MAX:
                continue
            version: object = state.snapshot_id
            if version is None and (delta := self._in_delta(state.table)) is not None and delta.delta is not None:
                version = ("delta", delta.delta.state.version)
            if version is not None:
                found[state.table.logical] = version
        return found

    async def _check_exists(self, name: TableName) -> None:
        """Raise NotFound where there is no table that letters could be of."""
        if not await asyncio.to_thread(self._exists, name):
            raise NotFound(f"table does not exist. got={name}")

    def _exists(self, name: TableName) -> bool:
        """Whether there is a table that letters could be of; a topic's comes with its first record."""
        there = {state.table for state in self._catalog.tables()}
        return bool(self._kind_of(name)) or not there.isdisjoint((name, name.history, name.dead_letters))

    async def _count(self, name: TableName) -> DeadLetterStatus:
        reasons: dict[str, int] = {}
        for reason, count in await self._ask(count_letters(name), 10_000):
            kept = str(reason) if len(reasons) < REASONS_MAX else OTHER_REASONS
            reasons[kept] = reasons.get(kept, 0) + int(count)
        replayed = await self._replayed(name)
        return DeadLetterStatus(total=sum(reasons.values()), replayed=replayed, reasons=reasons)

    async def _replayed(self, name: TableName) -> int:
        """How many of the letters that the table has were replayed: somebody may have deleted others of them."""
        prefix = _source_prefix(name)
        buckets = [each.removeprefix(prefix) for each in self._intake.gate.dedup.names(prefix)]
        count = 0
        for first in range(0, len(buckets), _BUCKETS_PER_QUERY):
            some = ", ".join(buckets[first : first + _BUCKETS_PER_QUERY])
            sql = select_letters(name, f"_position // {_POSITIONS_PER_SOURCE} IN ({some})")
            rows = await self._rows(sql, _POSITIONS_PER_SOURCE * _BUCKETS_PER_QUERY)
            count += sum(self._is_replayed(name, row) for row in rows)
        return count

    # What the door asks

    async def letters(
        self, principal: Principal, name: str, *, limit: int, before: int | None, reason: str | None
    ) -> door.Letters:
        """Some of a table's letters, the newest first."""
        table = shown_name(name, principal).logical
        wanted = [] if before is None else [f"_position < {before}"]
        wanted += [] if reason is None else [has_reason(reason)]
        sql = select_letters(table, " AND ".join(wanted), "_position DESC")
        try:
            rows = [LetterRow(*row) for row in await self._ask(sql, limit + 1)]
            counts = await self._count(table)
        except NotFound:
            await self._check_exists(table)
            return door.Letters(letters=[], truncated=False, total=0, replayed=0, reasons={})
        return door.Letters(
            letters=[self._shown(table, row) for row in rows[:limit]],
            truncated=len(rows) > limit,
            total=counts.total,
            replayed=counts.replayed,
            reasons=counts.reasons,
        )

    async def replay(self, principal: Principal, name: str, asked: door.Replay) -> door.Replayed:
        """Send letters again."""
        table = parse_table_name(name)
        if not principal.may_read(table):
            raise NotFound(f"table does not exist. got={name[:300]}")
        if not principal.may_write(table):
            raise Denied(f"the token does not let {principal.sub!r:.100} write this table. got={table}")
        self._intake.gate.tables([str(table)], principal)
        if kind := self._kind_of(table):
            raise Invalid(f"a table that a door of its own fills takes no replay. got={table}, a {kind}")
        await self._check_exists(table)
        rows, remaining, failures = await self._chosen(table, asked)
        mends = {mend.id: mend for mend in asked.letters}
        tickets: list[tuple[str, Ticket]] = []
        try:
            for row in rows:
                mend = mends.get(row.letter_id)
                columns, drop = (mend.columns, mend.drop) if mend else (asked.columns, asked.drop)
                try:
                    # No clock that the log ever gave out is ahead: everybody's would follow one that is.
                    check_drift(Hlc(row.hlc), self._clock.now_ms())
                    batch = _batch(table, row, columns, drop, self._intake.gate.limits.check_event)
                    tickets.append((row.letter_id, self._intake.take(batch)))
                except Invalid as error:
                    failures.append(door.NotReplayed(id=row.letter_id, error=str(error)))
        finally:
            # Also where one found no room: those before it are on their way.
            outcomes = [ticket.outcome for _, ticket in tickets if ticket.outcome is not None]
            if outcomes:
                await asyncio.wait(outcomes)
        return self._told(table, tickets, failures, remaining)

    def _told(
        self, table: TableName, tickets: list[tuple[str, Ticket]], failures: list[door.NotReplayed], remaining: bool
    ) -> door.Replayed:
        durable = 0
        for letter_id, ticket in tickets:
            if not ticket.failed:
                durable += not ticket.duplicate
            elif ticket.outcome is not None:
                error = None if ticket.outcome.cancelled() else ticket.outcome.exception()
                failures.append(door.NotReplayed(id=letter_id, error=str(error or "the server is stopping")))
        if table in self._counted:
            version, counts = self._counted[table]
            self._counted[table] = version, msgspec.structs.replace(counts, replayed=counts.replayed + durable)
        duplicates = sum(ticket.duplicate and not ticket.failed for _, ticket in tickets)
        return door.Replayed(replayed=durable, duplicates=duplicates, failures=failures, remaining=remaining)

    async def _chosen(
        self, table: TableName, asked: door.Replay
    ) -> tuple[list[LetterRow], bool, list[door.NotReplayed]]:
        """The letters that are meant, whether there are more, and which of them are not there."""
        ways = [bool(asked.letters), asked.reason is not None, asked.all]
        if sum(ways) != 1:
            raise Invalid("what to replay. expected=one of letters, reason and all got=" + str(sum(ways)))
        if not asked.letters:
            return await self._every(table, asked.reason)
        positions = sorted({int(mend.id.partition("-")[0]) for mend in asked.letters})
        sql = select_letters(table, f"_position IN ({', '.join(map(str, positions))})")
        found = {row.letter_id: row for row in await self._rows(sql, door.LETTERS_MAX * 2)}
        wanted = list(dict.fromkeys(mend.id for mend in asked.letters))
        missing = [door.NotReplayed(id=each, error="no such dead letter") for each in wanted if each not in found]
        return [found[each] for each in wanted if each in found], False, missing

    async def _every(
        self, table: TableName, reason: str | None
    ) -> tuple[list[LetterRow], bool, list[door.NotReplayed]]:
        """Letters of a reason, or all, that were not replayed yet: the oldest first, as many as one call takes."""
        wanted = "" if reason is None else f" AND {has_reason(reason)}"
        found: list[LetterRow] = []
        after = -1
        while len(found) <= door.LETTERS_MAX:
            sql = select_letters(table, f"_position > {after}{wanted}", "_position")
            rows = await self._rows(sql, door.LETTERS_MAX * 4)
            found += [row for row in rows if not self._is_replayed(table, row)]
            if len(rows) < door.LETTERS_MAX * 4:
                break
            after = rows[-1].position
        return found[: door.LETTERS_MAX], len(found) > door.LETTERS_MAX, []

    async def _rows(self, sql: str, limit: int) -> list[LetterRow]:
        try:
            return [LetterRow(*row) for row in await self._ask(sql, limit)]
        except NotFound:
            return []

    async def _ask(self, sql: str, limit: int) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        async with self._engine.open(QueryRequest(sql=sql, limit=limit), named_tables) as running:
            async for batch in running.batches():
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    def _is_replayed(self, table: TableName, row: LetterRow) -> bool:
        return self._intake.gate.dedup.has(_source(table, row), row.number)

    def _shown(self, table: TableName, row: LetterRow) -> door.Letter:
        return door.Letter(
            id=row.letter_id,
            position=row.position,
            key=row.key,
            operation=row.op,
            columns=value_of(row.columns),
            before=value_of(row.before),
            source=row.source,
            arrived_ms=row.time_ms,
            reason=row.reason,
            replayed=self._is_replayed(table, row),
        )


def _batch(
    table: TableName, row: LetterRow, columns: dict[str, Any], drop: Iterable[str], check: Callable[[int], None]
) -> Batch:
    """The change, as it came or mended, under its own clock."""
    change = Change(
        namespace=table.namespace,
        table=table.table,
        key=row.key,
        operation=Operation(row.op),
        columns=None if row.op == Operation.DELETE else _mended(row.columns, columns, frozenset(drop)),
        before=_object(row.before),
        hlc=Hlc(row.hlc),
        source=_source(table, row),
        batch_sequence=row.number,
        sequence=row.sequence,
        id=row.id,
        source_time_ms=row.source_time_ms,
        metadata={**(_object(row.metadata) or {}), "deadLetter": row.letter_id, "deadLetterSource": row.source},
    )
    try:
        payload = _encode([change])
        # As it will be read when the log is sealed: what cannot be read then would stop everybody's changes.
        _decode(payload)
    except OverflowError as error:
        raise Invalid("a number of the letter has more than 64 bits: give the column as text") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"the letter is no change. got={error}") from error
    check(len(payload))
    return Batch(
        source=change.source,
        sequence=row.number,
        count=1,
        encoding=Encoding.CHANGES,
        payload=payload,
        fingerprint=zlib.crc32(payload),
        tables=frozenset({table}),
        hlc_max=Hlc(row.hlc),
    )


def _mended(text: str | None, columns: dict[str, Any], drop: frozenset[str]) -> dict[str, Any]:
    own = {} if text is None else raw_object(text)
    kept = {name: value for name, value in own.items() if name not in drop and name not in columns}
    return {name: exact_value(name, value) for name, value in kept.items()} | columns


def _object(text: str | None) -> dict[str, Any] | None:
    found = value_of(text)
    return found if isinstance(found, dict) else None


def _source_prefix(table: TableName) -> str:
    return f"{SOURCE}{hashlib.blake2b(str(table).encode(), digest_size=8).hexdigest()}/"


def _source(table: TableName, row: LetterRow) -> SourceId:
    return SourceId(f"{_source_prefix(table)}{row.position // _POSITIONS_PER_SOURCE}")
