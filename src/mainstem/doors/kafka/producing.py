"""Produce. The hot way in: a batch is checked, gets its offsets, and is the log's."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import Cluster, may_write
from mainstem.doors.kafka.dispatch import Context, Encoded, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.feeds.topics.partition import Accepted, Partition
from mainstem.feeds.topics.state import TopicState
from mainstem.model.errors import Invalid, MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.produced import BY_ID, ProducedPartition, ProducedTopic, encode_produced
from mainstem.wire.kafka.records import BatchHead, read_batch

# What a request says that names no topic.
NO_TOPIC = UUID(int=0)

# Raises a MainstemError where a producer may not write a batch of its transaction into a partition.
CheckTransaction = Callable[[BatchHead, Partition], None]


def _none_open(head: BatchHead, partition: Partition) -> None:
    raise Invalid("records of a transaction. expected=an open one got=none", reason="invalid")


def register(table: Table, cluster: Cluster, clock: Clock, check_transaction: CheckTransaction = _none_open) -> None:
    """Answer these APIs."""
    produce = partial(_produce, cluster, clock, check_transaction)
    table.add(0, "Produce", 3, 13, produce, pipelined=True)


async def _produce(
    cluster: Cluster, clock: Clock, check: CheckTransaction, request: Any, context: Context
) -> Encoded | None:
    acks: int = request.acks
    version = context.version
    by_id = version >= BY_ID
    now_ms = clock.now_ms()
    topics: list[ProducedTopic] = []
    waiting: list[tuple[list[ProducedPartition], int, Accepted]] = []
    # All of it before the first await: requests of one connection are appended in the order in which they came.
    for each in request.topic_data:
        topic = cluster.topics.by_id(each.topic_id) if by_id else cluster.topics.get(each.name)
        answers: list[ProducedPartition] = []
        for part in each.partition_data:
            answer, accepted = _append(cluster, check, topic, part, acks, now_ms, context, by_id=by_id)
            if accepted is not None:
                waiting.append((answers, len(answers), accepted))
            answers.append(answer)
        topics.append(ProducedTopic(named(each, by_id=by_id), answers))
    if acks == 0:
        return None
    for answers, at, accepted in waiting:
        if (error := await _durable(accepted)) is not None:
            answers[at] = refused(answers[at].partition, error)
    return Encoded(encode_produced(version, topics))


def _append(
    cluster: Cluster,
    check: CheckTransaction,
    topic: TopicState | None,
    part: Any,
    acks: int,
    now_ms: int,
    context: Context,
    *,
    by_id: bool,
) -> tuple[ProducedPartition, Accepted | None]:
    partition: Partition | None = None
    if topic is not None:
        partition = cluster.topics.partition(topic, part.index)
    if topic is None or partition is None:
        unknown = ErrorCode.unknown_topic_id if by_id and topic is None else ErrorCode.unknown_topic_or_partition
        return ProducedPartition(part.index, unknown), None
    if not may_write(context.principal, topic):
        return ProducedPartition(part.index, ErrorCode.topic_authorization_failed), None
    if acks not in (0, 1, -1):
        return ProducedPartition(part.index, ErrorCode.invalid_required_acks), None
    try:
        records = bytes(part.records or b"")
        head = read_batch(records)
        if head.is_control:
            raise Invalid("control records are the server's own", reason="invalid")
        if head.is_transactional:
            check(head, partition)
        accepted = partition.append(head, records, now_ms)
    except MainstemError as error:
        return refused(part.index, error), None
    base, time_ms, _ = accepted
    return ProducedPartition(part.index, 0, base, time_ms, partition.start), accepted


async def _durable(accepted: Accepted) -> MainstemError | None:
    """Wait until a batch is durable; why it is not, where it is not in the log. acks=1 waits as well: there is no other
    replica that could be behind."""
    outcome = accepted.outcome
    if outcome is None:
        return None
    if not outcome.done():
        await asyncio.wait([outcome])
    error = outcome.exception()
    if error is not None and not isinstance(error, MainstemError):
        raise error
    return error


def named(topic: Any, *, by_id: bool) -> str | UUID:
    """A topic of a request, as its answer names it."""
    return (topic.topic_id or NO_TOPIC) if by_id else topic.name


def refused(partition: int, error: MainstemError) -> ProducedPartition:
    """The answer for a batch that is not in the log."""
    return ProducedPartition(partition, code_of(error), error_message=str(error))
