"""The way in for deltas: checked whole, each counted once, through the same gate and log as every other change."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from mainstem.admission import Intake
from mainstem.feeds.columns import KnownColumns
from mainstem.feeds.delta_batch import DeltaBatch
from mainstem.feeds.feeds import Feeds
from mainstem.feeds.fitting import Columns, first_misfit
from mainstem.feeds.schemas import Schemas
from mainstem.log.seal.shapes import names_error
from mainstem.model.batch import Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.errors import Overloaded
from mainstem.model.hlc import Hlc
from mainstem.model.names import RULES_TABLE, TableName, describes_collections
from mainstem.model.position import LogPosition
from mainstem.runtime.clock import Clock
from mainstem.wire.sync import BadDelta, RowDelta, SyncPush, check_push, join_push, push_part, tables_of

# Larger pushes are checked in a thread: others wait for the loop.
_CHECKED_HERE_MAX = 200
_RETRY_AFTER_S = 2.0
_NO_COLUMNS: Columns = MappingProxyType({})


class Pushes:
    """Takes pushes in. Those of one client wait for each other, so that none is taken for new twice."""

    def __init__(self, intake: Intake, feeds: Feeds, schemas: Schemas, clock: Clock) -> None:
        self._intake = intake
        self._feeds = feeds
        self._schemas = schemas
        self._clock = clock
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self._under_way: set[asyncio.Task[LogPosition]] = set()
        self._closing = False

    async def push(self, gateway: str, push: SyncPush, parts: Sequence[bytes] | None = None) -> LogPosition:
        """Make a push durable; the arrival of its last delta. Raises Invalid, Denied or Overloaded; then nothing moved.

        `parts` are the deltas as they were encoded, if they were: they are stored and passed on like that.

        What is under way goes on when the caller goes away: its outcome decides what a retry is told.
        """
        declared = await self._feeds.declared.load(gateway)
        known = self._feeds.columns_of(gateway)
        if len(push.deltas) > _CHECKED_HERE_MAX:
            await asyncio.to_thread(self._check, gateway, push, declared, known)
        else:
            self._check(gateway, push, declared, known)
        if not push.deltas:
            return self._feeds.newest
        return await self.write(gateway, push, parts)

    async def write(self, gateway: str, push: SyncPush, parts: Sequence[bytes] | None = None) -> LogPosition:
        """The same for what the server itself writes, unchecked."""
        if self._closing:
            raise Overloaded("the server is stopping", retry_after_s=_RETRY_AFTER_S, reason="shutting_down")
        if parts is None:
            parts = [push_part(delta) for delta in push.deltas]
        task = asyncio.create_task(self._store(gateway, push, parts))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Take nothing more, and wait for what is under way."""
        self._closing = True
        await self.settled()

    async def settled(self) -> None:
        """Wait until what is under way has an outcome."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _check(self, gateway: str, push: SyncPush, declared: Mapping[str, Columns], known: KnownColumns | None) -> None:
        check_push(push, gateway, self._clock.now_ms())
        for delta in push.deltas:
            if delta.table == RULES_TABLE or describes_collections(TableName(gateway, delta.table)):
                raise BadDelta(
                    f"a table is the server's own. got={delta.table}", reason="invalid_name", delta_id=delta.delta_id
                )
            _check_fits(delta, declared.get(delta.table, _NO_COLUMNS))
            reason = None if known is None else known.refusal(delta.table, delta.columns)
            if reason is not None:
                raise BadDelta(reason, reason="schema_mismatch", delta_id=delta.delta_id)
        self._schemas.check(gateway, push.deltas)

    async def _store(self, gateway: str, push: SyncPush, parts: Sequence[bytes]) -> LogPosition:
        client = push.client_id
        with self._turn(client) as turn:
            async with turn:
                places = await self._feeds.seen.unseen(gateway, client, push.deltas)
                if not places:
                    return self._feeds.newest
                fresh, kept = [push.deltas[place] for place in places], [parts[place] for place in places]
                payload = join_push(client, kept)
                ticket = self._intake.take(
                    DeltaBatch(
                        source=SourceId(client),
                        # Below zero: a CDC producer of the same name counts upwards.
                        sequence=self._intake.gate.dedup.lowest(SourceId(client)) - 1,
                        count=len(fresh),
                        encoding=Encoding.DELTAS,
                        payload=gateway.encode() + b"\0" + payload,
                        fingerprint=crc32(payload),
                        tables=tables_of(gateway, fresh),
                        hlc_max=Hlc(max(delta.hlc for delta in fresh)),
                        gateway=gateway,
                        deltas=tuple(fresh),
                        parts=tuple(kept),
                    )
                )
                assert ticket.outcome is not None
                return (await ticket.outcome).last

    @contextmanager
    def _turn(self, client: str) -> Iterator[asyncio.Lock]:
        lock, users = self._turns.setdefault(client, (asyncio.Lock(), []))
        users.append(None)
        try:
            yield lock
        finally:
            users.pop()
            if not users:
                del self._turns[client]


def _check_fits(delta: RowDelta, declared: Columns) -> None:
    """Refuse what its table would have as a dead letter: its writer must hear of it, and no replica may have it."""
    error = names_error([each.column for each in delta.columns])
    if error is not None:
        raise BadDelta(error, reason="invalid_name", delta_id=delta.delta_id)
    misfit = first_misfit(delta.columns, declared) if declared else None
    if misfit is not None:
        raise BadDelta(
            f"a value is not of its column's declared type. table={delta.table} column={misfit.column} "
            f"expected={declared[misfit.column]} got={misfit.value[:64]!r}",
            reason="schema_mismatch",
            delta_id=delta.delta_id,
        )
