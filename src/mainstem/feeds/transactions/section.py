"""What is durable of transactions: their names and states, and the records of those that are open.

A function of the log, kept by its companion. Records of an open transaction are held here as they came, beside their
frames in the log: when it commits, the marker's frame in each partition carries them once more, and becomes their rows
when it is sealed. So what is not committed never is a row, and a commit's rows and its marker are one frame. What is
held is bounded (`open_bytes_max`): a producer that wants more is refused, and its transaction aborts.
"""

from bisect import insort
from collections.abc import Container
from typing import Any, NamedTuple

import msgspec

from mainstem.feeds.transactions.states import State
from mainstem.model.batch import BatchHeader
from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Corrupt
from mainstem.model.position import LogPosition
from mainstem.wire.kafka.markers import is_commit
from mainstem.wire.kafka.records import BatchHead

TRANSACTIONS = "__transactions"
# Aborted transactions of one partition that readers are told of; older ones are beyond the log, where no aborted
# record is.
ABORTED_MAX = 10_000
_VERSION = 1

PartitionKey = tuple[bytes, int]


class Transaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A producer's name and what it does. Stored: fields are only ever added, with a default."""

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    # Topic ids in hexadecimal.
    partitions: tuple[tuple[str, int], ...] = ()
    groups: tuple[str, ...] = ()
    started_ms: int = -1
    updated_ms: int = 0
    # Who it was before its last end gave it another epoch (and once in a long while another id): an end that is asked
    # for again comes from that one.
    last_producer_id: int = -1
    last_epoch: int = -1

    def has(self, topic_id: bytes, index: int) -> bool:
        """Whether it is open, and a partition is part of it."""
        return self.state is State.ONGOING and (topic_id.hex(), index) in self.partitions


class Batch(NamedTuple):
    """A record batch of a transaction."""

    base: int
    next: int
    records: int
    producer_id: int
    bytes: bytes


class Aborted(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """A transaction that was aborted in a partition: from its first record to its marker."""

    first: int
    last: int
    producer_id: int


class Part:
    """What one partition has of transactions."""

    __slots__ = ("aborted", "firsts", "held", "sealing")

    def __init__(self) -> None:
        # By producer: the first offset of the transaction that it has open.
        self.firsts: dict[int, int] = {}
        # Batches of open transactions by offset; and those whose marker is not in a segment yet, with its position.
        self.held: list[Batch] = []
        self.sealing: list[tuple[LogPosition, Batch]] = []
        self.aborted: list[Aborted] = []

    def stable(self, end: int) -> int:
        """The last stable offset: nothing before it is undecided."""
        return min(self.firsts.values(), default=end)


class _StoredPart(msgspec.Struct, array_like=True):
    topic_id: bytes
    partition: int
    firsts: dict[int, int]
    held: list[tuple[int, int, int, int, bytes]]
    sealing: list[tuple[int, tuple[int, int, int, int, bytes]]]
    aborted: list[Aborted]


class _Stored(msgspec.Struct, array_like=True):
    version: int
    transactions: list[Transaction]
    parts: list[_StoredPart]


_transaction = msgspec.json.Decoder(Transaction)
_to_json = msgspec.json.Encoder().encode


class TransactionsSection:
    """Belongs to the event loop."""

    name = "transactions"
    tables = frozenset((TRANSACTIONS,))

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.by_producer: dict[int, str] = {}
        self.parts: dict[PartitionKey, Part] = {}
        self.open_bytes = 0

    # The log

    def apply(self, change: Change, header: BatchHeader) -> None:
        """A change is durable."""
        if change.operation is Operation.DELETE:
            gone = self.transactions.pop(change.key, None)
            if gone is not None:
                self.by_producer.pop(gone.producer_id, None)
            return
        try:
            transaction = _transaction.decode((change.columns or {})["entry"])
        except (msgspec.MsgspecError, KeyError) as error:
            message = f"an entry of a transaction cannot be read. got={error}"
            raise Corrupt(message, place=f"position {header.first}") from error
        before = self.transactions.get(transaction.name)
        if before is not None:
            self.by_producer.pop(before.producer_id, None)
        self.transactions[transaction.name] = transaction
        self.by_producer[transaction.producer_id] = transaction.name

    def apply_batch(self, topic_id: bytes, partition: int, head: BatchHead, batch: bytes, last: LogPosition) -> None:
        """A batch of a transaction, or the control batch that ends one, is durable."""
        key = (topic_id, partition)
        if head.is_control:
            self.apply_marker(key, head.producer_id, head.base_offset, last, commits=is_commit(batch))
        else:
            held = Batch(head.base_offset, head.next_offset, head.records, head.producer_id, batch)
            self.apply_records(key, held)

    def apply_records(self, key: PartitionKey, batch: Batch) -> None:
        """Records of a transaction are durable."""
        part = self.parts.setdefault(key, Part())
        part.firsts.setdefault(batch.producer_id, batch.base)
        insort(part.held, batch)
        self.open_bytes += len(batch.bytes)

    def apply_marker(
        self, key: PartitionKey, producer_id: int, offset: int, position: LogPosition, *, commits: bool
    ) -> None:
        """A transaction ended in a partition."""
        part = self.parts.get(key)
        if part is None:
            return
        first = part.firsts.pop(producer_id, None)
        ended = [batch for batch in part.held if batch.producer_id == producer_id]
        part.held = [batch for batch in part.held if batch.producer_id != producer_id]
        if commits:
            # Until the marker is sealed these are in no segment, though their own frames may be gone.
            part.sealing += [(position, batch) for batch in ended]
        else:
            self.open_bytes -= sum(len(batch.bytes) for batch in ended)
            if first is not None:
                insort(part.aborted, Aborted(first, offset, producer_id))
                del part.aborted[:-ABORTED_MAX]

    def sealed(self, position: LogPosition) -> None:
        """Everything up to here is in segments."""
        for part in self.parts.values():
            if part.sealing and part.sealing[0][0] <= position:
                self.open_bytes -= sum(len(batch.bytes) for at, batch in part.sealing if at <= position)
                part.sealing = [(at, batch) for at, batch in part.sealing if at > position]

    # Questions

    def of_producer(self, key: PartitionKey, producer_id: int) -> list[Batch]:
        """The records that a producer's open transaction has in a partition."""
        part = self.parts.get(key)
        return [] if part is None else [batch for batch in part.held if batch.producer_id == producer_id]

    def held_from(self, key: PartitionKey, offset: int) -> list[Batch]:
        """Records from an offset on that are in no segment, though the frames that they came in may be gone."""
        part = self.parts.get(key)
        if part is None:
            return []
        every = [*part.held, *(batch for _, batch in part.sealing)]
        return sorted(batch for batch in every if batch.next > offset)

    def knows(self, key: PartitionKey) -> bool:
        """Whether a partition ever had a transaction."""
        return key in self.parts

    def forget_all_but(self, topic_ids: Container[bytes]) -> None:
        """Topics were deleted: nothing is kept of others than these."""
        for key in [key for key in self.parts if key[0] not in topic_ids]:
            part = self.parts.pop(key)
            held = [*part.held, *(batch for _, batch in part.sealing)]
            self.open_bytes -= sum(len(batch.bytes) for batch in held)

    def stable(self, key: PartitionKey, end: int) -> int:
        """The last stable offset of a partition."""
        part = self.parts.get(key)
        return end if part is None else min(part.stable(end), end)

    def aborted(self, key: PartitionKey, first: int, end: int) -> list[Aborted]:
        """Aborted transactions that have records from `first` on and before `end`."""
        part = self.parts.get(key)
        if part is None:
            return []
        return [each for each in part.aborted if each.last >= first and each.first < end]

    # The companion

    def dump(self) -> bytes:
        """Everything applied so far."""
        parts = [
            _StoredPart(topic_id, partition, part.firsts, list(part.held), list(part.sealing), part.aborted)
            for (topic_id, partition), part in self.parts.items()
        ]
        return msgspec.msgpack.encode(_Stored(_VERSION, list(self.transactions.values()), parts))

    def load(self, data: bytes) -> None:
        """Become what `dump` gave."""
        try:
            stored = msgspec.msgpack.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise Corrupt(f"state of transactions cannot be read. got={error}", place="companion") from error
        if stored.version != _VERSION:
            raise Corrupt(f"state of transactions. expected=version {_VERSION} got={stored.version}", place="companion")
        self.transactions = {each.name: each for each in stored.transactions}
        self.by_producer = {each.producer_id: each.name for each in stored.transactions}
        self.parts = {}
        self.open_bytes = 0
        for each in stored.parts:
            part = self.parts[each.topic_id, each.partition] = Part()
            part.firsts = each.firsts
            part.held = [Batch(*batch) for batch in each.held]
            part.sealing = [(LogPosition(position), Batch(*batch)) for position, batch in each.sealing]
            part.aborted = each.aborted
            held = [*part.held, *(batch for _, batch in part.sealing)]
            self.open_bytes += sum(len(batch.bytes) for batch in held)


def transaction_change(transaction: Transaction, namespace: str, source: SourceId) -> Change:
    """The journal's entry that makes a transaction what it is said to be."""
    columns: dict[str, Any] = {
        "transactional_id": transaction.name,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "state": str(transaction.state),
        "entry": _to_json(transaction).decode(),
    }
    return Change(
        namespace=namespace,
        table=TRANSACTIONS,
        key=transaction.name,
        operation=Operation.UPDATE,
        columns=columns,
        source=source,
        batch_sequence=0,
    )


def no_transaction_change(name: str, namespace: str, source: SourceId) -> Change:
    """The journal's entry that forgets a name."""
    return Change(
        namespace=namespace,
        table=TRANSACTIONS,
        key=name,
        operation=Operation.DELETE,
        columns=None,
        source=source,
        batch_sequence=0,
    )
