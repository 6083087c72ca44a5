"""Produce from version 12 on (KIP-890): a partition takes part in a transaction with its first records.

Older clients say so beforehand (AddPartitionsToTxn). Here it is noted in the journal before the records are let in. The
connection's requests stay in order meanwhile: those that come after one that waits for the journal wait behind it.
"""

import asyncio
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import Cluster, may_write
from mainstem.doors.kafka.dispatch import Answered, Context, Encoded, Handler, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.doors.kafka.producing import named
from mainstem.doors.kafka.transacting import own_name
from mainstem.feeds.transactions.coordinator import Transactions
from mainstem.feeds.transactions.section import PartitionKey
from mainstem.feeds.transactions.states import Reason, Refused
from mainstem.model.errors import Invalid
from mainstem.wire.kafka.produced import ProducedPartition, ProducedTopic, encode_produced
from mainstem.wire.kafka.records import read_head

PRODUCE = 0
JOINS = 12
_LINE = "produce.line"


class _Line:
    """Requests of one connection that wait, and those behind them."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


def register(table: Table, cluster: Cluster, transactions: Transactions) -> None:
    """Let partitions take part before the handler of Produce gets the request."""
    entry = table.get(PRODUCE)
    assert entry is not None, "Produce is registered first"
    handler = partial(_produce, cluster, transactions, entry.handler)
    table.add(entry.key, entry.name, entry.min_version, entry.max_version, handler, pipelined=entry.pipelined)


async def _produce(
    cluster: Cluster, transactions: Transactions, produce: Handler, request: Any, context: Context
) -> Answered:
    version = context.version
    if version < JOINS or request.transactional_id is None:
        return await produce(request, context)
    line: _Line = context.kept.setdefault(_LINE, _Line())
    missing = _missing(cluster, transactions, request, context, by_id=version > JOINS)
    if not missing and not line.waiting:
        return await produce(request, context)
    line.waiting += 1
    try:
        # First come, first served: that is what an asyncio lock promises.
        async with line.lock:
            try:
                await _join(transactions, own_name(context.principal, request.transactional_id), missing)
            except Refused as refused:
                return None if request.acks == 0 else _refused(request, refused, version)
            context.version = version
            # Up to its first await the handler puts the records in line: then the next one may. Where the connection
            # is lost right here no client waits for the answer, and the records are durable or not, as ever.
            answering = asyncio.ensure_future(produce(request, context))
            await asyncio.sleep(0)
    finally:
        line.waiting -= 1
    return await answering


def _missing(
    cluster: Cluster, transactions: Transactions, request: Any, context: Context, *, by_id: bool
) -> dict[tuple[int, int], list[PartitionKey]]:
    """By producer id and epoch: partitions that are not part of its transaction yet, though it may write them."""
    found: dict[tuple[int, int], list[PartitionKey]] = {}
    known = transactions.get(own_name(context.principal, request.transactional_id))
    for each in request.topic_data:
        topic = cluster.topics.by_id(each.topic_id) if by_id else cluster.topics.get(each.name)
        if topic is None or not may_write(context.principal, topic):
            continue
        for part in each.partition_data:
            if not 0 <= part.index < len(topic.partitions):
                continue
            try:
                head = read_head(bytes(part.records or b""))
            except Invalid:
                # Refused by name where it would be let in.
                continue
            if head.is_transactional and not (known is not None and known.has(topic.id, part.index)):
                found.setdefault((head.producer_id, head.producer_epoch), []).append((topic.id, part.index))
    return found


async def _join(transactions: Transactions, name: str, missing: dict[tuple[int, int], list[PartitionKey]]) -> None:
    for (producer_id, epoch), keys in missing.items():
        await transactions.add(name, producer_id, epoch, partitions=keys)


def _refused(request: Any, refused: Refused, version: int) -> Encoded:
    code = code_of(refused)
    if refused.reason is Reason.FENCED:
        code = ErrorCode.invalid_producer_epoch
    elif refused.reason is Reason.NOT_AVAILABLE:
        # The one that producers try again.
        code = ErrorCode.not_enough_replicas
    topics = [
        ProducedTopic(
            named(each, by_id=version > JOINS),
            [ProducedPartition(part.index, code, error_message=str(refused)) for part in each.partition_data],
        )
        for each in request.topic_data
    ]
    return Encoded(encode_produced(version, topics))
