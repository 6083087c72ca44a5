"""Transactions: who has a name, what takes part, and how it ends. One at a time per name.

An end is decided by one entry of the journal (PrepareCommit or PrepareAbort). What follows can be done again after a
crash: markers into every partition that took part, then the entry that completes it, in one batch with the group
offsets that it committed. `recover` finishes what a crash left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from mainstem.feeds.groups.deadlines import Deadlines
from mainstem.feeds.groups.outbox import Journal
from mainstem.feeds.transactions.section import (
    PartitionKey,
    Transaction,
    TransactionsSection,
    no_transaction_change,
    transaction_change,
)
from mainstem.feeds.transactions.settings import TransactionSettings
from mainstem.feeds.transactions.states import Event, Reason, Refused, State, after
from mainstem.model.change import Change, SourceId
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock

logger = logging.getLogger(__name__)

EPOCH_MAX = 32_766
NAME_CHARS_MAX = 255
# Groups whose offsets one transaction commits: its entry in the journal names them all.
GROUPS_MAX = 1_000
# Records of one transaction in one partition. Their commit is one batch, of which admission takes 4,000,000 at most.
RECORDS_MAX = 2_000_000
_IDLE_S = 60.0
_RETRY_S = 1.0
_DONE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class Markers(Protocol):
    """Writes the end of a transaction into a partition."""

    async def write(self, key: PartitionKey, producer_id: int, epoch: int, *, commits: bool) -> None:
        """Return once the marker is durable. Nothing where the partition is gone. Raises MainstemError."""


class Transactions:
    """Belongs to the event loop. `run` aborts what takes too long."""

    def __init__(
        self,
        section: TransactionsSection,
        journal: Journal,
        markers: Markers,
        *,
        new_producer_id: Callable[[], Awaitable[int]],
        settled_offsets: Callable[[int, bool], list[Change]],
        namespace: str,
        source: SourceId,
        clock: Clock,
        settings: TransactionSettings | None = None,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self._section = section
        self._journal = journal
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._settled_offsets = settled_offsets
        self._namespace = namespace
        self._source = source
        self._clock = clock
        self._locks: dict[str, asyncio.Lock] = {}
        self._deadlines = Deadlines()
        self._wake = asyncio.Event()

    # What producers ask

    async def init(self, name: str, timeout_ms: int, producer_id: int = -1, epoch: int = -1) -> tuple[int, int]:
        """A producer starts under a name: its id and epoch. The name's former producer is fenced. Raises Refused."""
        if not name or len(name) > NAME_CHARS_MAX:
            raise Refused(Reason.INVALID_REQUEST, f"transactional id. expected=1 to {NAME_CHARS_MAX} characters")
        if not 0 < timeout_ms <= self.settings.timeout_ms_max:
            message = f"transaction time-out. expected=1..{self.settings.timeout_ms_max} ms got={timeout_ms}"
            raise Refused(Reason.INVALID_TIMEOUT, message)
        async with self._lock(name):
            known = self._section.transactions.get(name)
            if known is None:
                if len(self._section.transactions) >= self.settings.names_max:
                    raise Refused(Reason.NOT_AVAILABLE, f"names. expected=at most {self.settings.names_max}")
                made = await self._given_id()
                await self._write(self._fresh(name, made, 0, timeout_ms))
                return made, 0
            if producer_id >= 0 and (producer_id, epoch) != (known.producer_id, known.epoch):
                raise Refused(Reason.FENCED, f"producer. expected=epoch {known.epoch} got={epoch}")
            if after(known.state, Event.INIT) is State.PREPARE_ABORT:
                # With a higher epoch, so that the one that has it open can write nothing more.
                known = await self._end(_fenced(known), commits=False)
            next_id, next_epoch = known.producer_id, known.epoch + 1
            if next_epoch > EPOCH_MAX:
                next_id, next_epoch = await self._given_id(), 0
            await self._write(self._fresh(name, next_id, next_epoch, timeout_ms))
            return next_id, next_epoch

    async def add(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        *,
        partitions: Sequence[PartitionKey] = (),
        groups: Sequence[str] = (),
    ) -> None:
        """Partitions and groups take part from here on. Raises Refused."""
        async with self._lock(name):
            known = self._checked(name, producer_id, epoch)
            state = after(known.state, Event.ADD)
            is_new = known.state is not State.ONGOING
            had = () if is_new else known.partitions
            had_groups = () if is_new else known.groups
            more = [(topic.hex(), index) for topic, index in partitions if (topic.hex(), index) not in had]
            more_groups = [group for group in groups if group not in had_groups]
            if not is_new and not more and not more_groups:
                return
            if len(had) + len(more) > self.settings.partitions_max:
                raise Refused(Reason.TOO_LARGE, f"partitions. expected=at most {self.settings.partitions_max}")
            if len(had_groups) + len(more_groups) > GROUPS_MAX or any(len(name) > NAME_CHARS_MAX for name in groups):
                message = f"groups. expected=at most {GROUPS_MAX} of at most {NAME_CHARS_MAX} characters"
                raise Refused(Reason.TOO_LARGE, message)
            now_ms = self._clock.now_ms()
            await self._write(
                msgspec.structs.replace(
                    known,
                    state=state,
                    partitions=(*had, *dict.fromkeys(more)),
                    groups=(*had_groups, *dict.fromkeys(more_groups)),
                    started_ms=now_ms if is_new else known.started_ms,
                    updated_ms=now_ms,
                )
            )
            if is_new:
                self._expect_end(known.name, known.timeout_ms)

    async def end(
        self, name: str, producer_id: int, epoch: int, *, commits: bool, bumps: bool = False
    ) -> tuple[int, int]:
        """Commit or abort. Returns once every partition has its marker and the offsets count. Raises Refused.

        With `bumps` (KIP-890) the producer goes on with the id and epoch of the answer, so that nothing that it sent
        before can become part of its next transaction.
        """
        event = Event.COMMIT if commits else Event.ABORT
        known = self._section.transactions.get(name)
        if known is not None and known.producer_id == producer_id and known.epoch == epoch and not bumps:
            # Before the line: a producer that asks again meanwhile is told that its first request is under way.
            after(known.state, event)
        async with self._lock(name):
            if bumps:
                return await self._end_and_bump(name, producer_id, epoch, event)
            known = self._checked(name, producer_id, epoch)
            state = after(known.state, event)
            if state is not known.state:
                await self._end(known, commits=commits)
            return producer_id, epoch

    async def _end_and_bump(self, name: str, producer_id: int, epoch: int, event: Event) -> tuple[int, int]:
        known = self._section.transactions.get(name)
        is_again = known is not None and (known.last_producer_id, known.last_epoch) == (producer_id, epoch)
        if known is not None and is_again and known.state is not State.ONGOING:
            # Its first answer was lost. Where it asks for the other end than the first time, this refuses.
            after(known.state, event)
            return known.producer_id, known.epoch
        known = self._checked(name, producer_id, epoch)
        bumped = msgspec.structs.replace(
            known, epoch=known.epoch + 1, last_producer_id=known.producer_id, last_epoch=known.epoch
        )
        if known.state in _DONE:
            # Nothing took part: there is nothing to commit, and an abort only gives the next epoch.
            if event is Event.COMMIT:
                raise Refused(Reason.INVALID_STATE, f"transaction. expected=an open one got={known.state}")
            done = await self._renewed(msgspec.structs.replace(bumped, state=State.COMPLETE_ABORT))
            await self._write(done)
        else:
            after(known.state, event)
            done = await self._end(bumped, commits=event is Event.COMMIT)
        return done.producer_id, done.epoch

    async def _renewed(self, bumped: Transaction) -> Transaction:
        """With a new id where epochs have come to their end."""
        if bumped.epoch <= EPOCH_MAX or bumped.last_epoch < 0:
            return bumped
        return msgspec.structs.replace(bumped, producer_id=await self._given_id(), epoch=0)

    def check_produce(self, producer_id: int, epoch: int, key: PartitionKey, size_bytes: int, records: int = 0) -> None:
        """Whether a producer may write records of its transaction into a partition. `size_bytes` and `records` are of
        what it brings and of what is on its way to that partition already. Raises Refused."""
        known = self._section.transactions.get(self._section.by_producer.get(producer_id, ""))
        if known is None:
            raise Refused(Reason.INVALID_MAPPING, f"no transaction of this producer. got={producer_id}")
        if epoch != known.epoch:
            raise Refused(Reason.FENCED, f"producer epoch. expected={known.epoch} got={epoch}")
        if known.state is not State.ONGOING or (key[0].hex(), key[1]) not in known.partitions:
            raise Refused(Reason.INVALID_STATE, "the partition is not part of an open transaction")
        if self._section.open_bytes + size_bytes > self.settings.open_bytes_max:
            bound = self.settings.open_bytes_max
            raise Refused(Reason.TOO_LARGE, f"records of open transactions. expected=at most {bound} bytes")
        held = sum(batch.records for batch in self._section.of_producer(key, producer_id)) if records else 0
        if held + records > RECORDS_MAX:
            # The marker's frame would be refused each time, and the transaction could never end.
            raise Refused(Reason.TOO_LARGE, f"records of a transaction. expected=at most {RECORDS_MAX} in a partition")

    def check_offsets(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """Whether a producer may commit a group's offsets with its transaction. Raises Refused."""
        known = self._checked(name, producer_id, epoch)
        if known.state is not State.ONGOING or group not in known.groups:
            raise Refused(Reason.INVALID_STATE, "the group is not part of an open transaction")

    # What tools ask

    def get(self, name: str) -> Transaction | None:
        """A transaction by its name."""
        return self._section.transactions.get(name)

    def all(self) -> Iterable[Transaction]:
        """Every name, and what it does."""
        return self._section.transactions.values()

    # Time and restarts

    async def recover(self) -> None:
        """Finish what was decided before a restart, and expect the end of what is open. Once, when the log is open."""
        for known in list(self._section.transactions.values()):
            if known.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                try:
                    async with self._lock(known.name):
                        if self._section.transactions.get(known.name) is known:
                            await self._finish(known)
                except Refused as refused:
                    # `_finish` has put it down for another try: one that has to wait holds up none of the others.
                    logger.warning("a transaction could not be finished yet: %s", refused)
            elif known.state is State.ONGOING:
                self._expect_end(known.name, max(0, known.started_ms + known.timeout_ms - self._clock.now_ms()))

    async def run(self) -> None:
        """Abort what takes too long, until cancelled."""
        while True:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            await self.tick(now_s)
            next_s = self._deadlines.next_s()
            wait_s = _IDLE_S if next_s is None else min(_IDLE_S, max(0.0, next_s - now_s))
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def tick(self, now_s: float) -> None:
        """Abort what is due."""
        while (name := self._deadlines.pop(now_s)) is not None:
            try:
                await self._time_out(name)
            # The task's edge: what could not be written is tried again.
            except MainstemError as error:
                logger.warning("a transaction could not be aborted: %s", error)
                self._deadlines.add(name, now_s + _RETRY_S)

    async def _time_out(self, name: str) -> None:
        async with self._lock(name):
            known = self._section.transactions.get(name)
            if known is None:
                return
            if known.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                await self._finish(known)
            elif known.state is State.ONGOING:
                left_ms = known.started_ms + known.timeout_ms - self._clock.now_ms()
                if left_ms > 0:
                    self._expect_end(name, left_ms)
                    return
                after(known.state, Event.TIMEOUT)
                logger.info("kafka.transaction_timed_out", extra={"transaction": name})
                await self._end(_fenced(known), commits=False)

    async def expire(self) -> int:
        """Forget names that were not used for long; how many."""
        before_ms = self._clock.now_ms() - self.settings.expiry_s * 1000
        old = [each.name for each in self.all() if each.state in _DONE and each.updated_ms < before_ms]
        for name in old:
            async with self._lock(name):
                await self._journal.append([no_transaction_change(name, self._namespace, self._source)])
        return len(old)

    # Parts

    def _lock(self, name: str) -> asyncio.Lock:
        found = self._locks.get(name)
        if found is None:
            if len(self._locks) > 2 * self.settings.names_max:
                self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
            found = self._locks[name] = asyncio.Lock()
        return found

    def _checked(self, name: str, producer_id: int, epoch: int) -> Transaction:
        known = self._section.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            raise Refused(Reason.INVALID_MAPPING, f"another producer has this name. got={producer_id}")
        if known.epoch != epoch:
            raise Refused(Reason.FENCED, f"producer epoch. expected={known.epoch} got={epoch}")
        return known

    async def _given_id(self) -> int:
        try:
            return await self._new_producer_id()
        except MainstemError as error:
            raise Refused(Reason.NOT_AVAILABLE, f"no producer id could be written: {error}") from error

    def _fresh(self, name: str, producer_id: int, epoch: int, timeout_ms: int) -> Transaction:
        return Transaction(
            name=name,
            producer_id=producer_id,
            epoch=epoch,
            timeout_ms=timeout_ms,
            updated_ms=self._clock.now_ms(),
        )

    async def _end(self, known: Transaction, *, commits: bool) -> Transaction:
        state = State.PREPARE_COMMIT if commits else State.PREPARE_ABORT
        prepared = msgspec.structs.replace(known, state=state, updated_ms=self._clock.now_ms())
        await self._write(prepared)
        return await self._finish(prepared)

    async def _finish(self, prepared: Transaction) -> Transaction:
        """What follows from a decision that is durable. May be done again: a marker where none is due is harmless."""
        commits = prepared.state is State.PREPARE_COMMIT
        try:
            for topic, index in prepared.partitions:
                key = (bytes.fromhex(topic), index)
                await self._markers.write(key, prepared.producer_id, prepared.epoch, commits=commits)
            done = msgspec.structs.replace(
                prepared,
                state=after(prepared.state, Event.MARKED),
                partitions=(),
                groups=(),
                updated_ms=self._clock.now_ms(),
            )
            done = await self._renewed(done)
            await self._write(done, self._settled_offsets(prepared.producer_id, commits))
        except MainstemError as error:
            # It is decided, and will be: by the next look at it.
            if self._deadlines.add(prepared.name, self._clock.monotonic_s() + _RETRY_S):
                self._wake.set()
            raise Refused(Reason.CONCURRENT, f"the transaction's end is on its way: {error}") from error
        return done

    async def _write(self, transaction: Transaction, more: Sequence[Change] = ()) -> None:
        change = transaction_change(transaction, self._namespace, self._source)
        try:
            await self._journal.append([change, *more])
        except Refused:
            raise
        except MainstemError as error:
            raise Refused(Reason.NOT_AVAILABLE, f"the transaction could not be written: {error}") from error

    def _expect_end(self, name: str, in_ms: int) -> None:
        if self._deadlines.add(name, self._clock.monotonic_s() + in_ms / 1000):
            self._wake.set()


def _fenced(known: Transaction) -> Transaction:
    """With an epoch that no producer was told: the one that has it open can neither write to it nor end it."""
    return msgspec.structs.replace(known, epoch=known.epoch + 1, last_producer_id=-1, last_epoch=-1)
